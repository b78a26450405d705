"""For pytest: which histories `dlog.testing.sim.simulate` runs, and a failing one told in its own
words. Loads nothing until a simulated test runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("dlog", "simulated histories of logs")
    group.addoption(
        "--dlog-histories", type=_count, metavar="N", help="run N histories of each simulated test"
    )
    group.addoption("--dlog-seed", type=int, metavar="SEED", help="the first of them (default: 0)")
    group.addoption(
        "--dlog-tape", metavar="TAPE", help="run one history: of a tape, as a failure reports it"
    )
    group.addoption(
        "--dlog-shrink", type=float, metavar="S", help="make a failure small for S seconds at most"
    )


def _count(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} runs nothing: give a number from 1 on")
    return int(text)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    option = item.config.getoption
    names = {"histories": "histories", "seed": "seed", "tape": "tape", "shrink": "shrink_s"}
    values = {field: option(f"--dlog-{name}") for name, field in names.items()}
    given = {field: value for field, value in values.items() if value is not None}
    if not given:
        yield
        return
    from dlog.testing.sim import users

    before = users.PLAN
    users.PLAN = users.Plan(**given)
    try:
        yield
    finally:
        users.PLAN = before


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, Any, None]:
    outcome = yield
    told = getattr(call.excinfo.value, "dlog_story", None) if call.excinfo else None
    if told is not None and "dlog.testing.sim.users" in sys.modules:
        outcome.get_result().longrepr = told
