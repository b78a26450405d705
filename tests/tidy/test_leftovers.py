"""What a test left is noticed and named: a client that is open, a logger that was set up."""

from __future__ import annotations

import logging
from pathlib import Path

import dlog
from dlog.cli import diagnostics
from tests.leftovers import left_over, logging_of_ours, threads_of_ours


def test_a_client_that_is_left_open_is_named(tmp_path: Path) -> None:
    before = threads_of_ours()
    client = dlog.connect(f"file:{tmp_path}")
    try:
        client.admin.create("log")
        told = "\n".join(left_over(before, ends_in_s=0))
        assert "portal.py" in told
        assert "sqlite_worker.py" in told
        assert left_over(threads_of_ours(), ends_in_s=0) == []
    finally:
        client.close()
    assert left_over(before) == []


def test_a_logger_that_a_command_set_up_is_noticed() -> None:
    before = logging_of_ours()
    logger = logging.getLogger("dlog")
    level, propagate, handlers = logger.level, logger.propagate, [*logger.handlers]
    diagnostics.start(0)
    after = logging_of_ours()
    logger.setLevel(level)
    logger.propagate, logger.handlers = propagate, handlers
    assert after != before == logging_of_ours()
