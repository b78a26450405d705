"""A client that a test left open is noticed, named, and not taken for one that was there before."""

from __future__ import annotations

from pathlib import Path

import dlog
from tests.leftovers import left_over, threads_of_ours


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
