"""A pytest plugin that ends a run with what each ring took: tests, wall time, processor time.

`make check`, `make test` and `make full` load it. The processor time of a test is that of its
worker and of the children that it waited for; a server that a fixture ends counts for the last test
that used it. `--ring-times FILE` writes a row per test.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import pace

# Ring, its folders, and the seconds of processor time that it may take in `make check` and in `make
# test`, on a quiet machine. What servers and other programs take beside it is not counted. Later
# work has these as its budget.
RINGS: tuple[tuple[str, tuple[str, ...], float, float], ...] = (
    # Spark's machine ends behind the last test of its worker, and counts for that.
    ("unit", ("tests/unit/",), 180, 380),
    ("conformance", ("tests/conformance/",), 15, 15),
    ("api", ("tests/api/",), 180, 180),
    ("scenarios", ("tests/scenarios/",), 15, 15),
    ("handles", ("tests/handles/",), 25, 40),
    ("answers", ("tests/answers/",), 30, 30),
    ("simulator", ("tests/sim/",), 60, 250),
    ("tidy", ("tests/tidy/",), 40, 60),
    ("fuzz", ("tests/fuzz/",), 0, 30),
    ("chaos", ("tests/chaos/",), 0, 80),
    ("mutants", ("tests/mutants/",), 0, 20),
    ("spark", ("tests/spark/", "integration/spark/"), 0, 40),
    ("real servers", ("integration/",), 0, 600),
)


@dataclass(slots=True)
class Took:
    wall_s: float = 0.0
    cpu_s: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)


def ring_of(nodeid: str) -> str:
    """The first one that has its folder."""
    found = (ring for ring, folders, _, _ in RINGS if nodeid.startswith(folders))
    return next(found, "elsewhere")


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Measuring:
    """In each worker: the processor time of a phase travels with its report."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began_s = 0.0

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        self._began_s = _cpu_s()
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        self._began_s = _cpu_s()
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        self._began_s = _cpu_s()
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, None]:
        outcome = yield
        outcome.get_result().cpu_s = _cpu_s() - self._began_s

    def pytest_sessionfinish(self) -> None:
        output = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["stretched"] = max(pace.STRETCHED, default=1.0)


class Telling:
    """In the process that the user started: the table."""

    def __init__(self, file: str | None, tier: str | None) -> None:
        self._file, self._tier = file, tier
        self._tests: dict[str, Took] = defaultdict(Took)
        self._stretched = 1.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        took = self._tests[report.nodeid]
        took.wall_s += report.duration
        took.cpu_s += getattr(report, "cpu_s", 0.0)
        took.phases[report.when or "call"] = round(report.duration, 3)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        told = getattr(node, "workeroutput", {})
        self._stretched = max(self._stretched, told.get("stretched", 1.0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("what each ring took")
        for line in lines(self._tests, self._tier):
            terminalreporter.line(line)
        stretched = max(self._stretched, *pace.STRETCHED, 1.0)
        terminalreporter.line(f"deadlines were stretched by {stretched:.1f} at most")
        if self._file is not None:
            rows = {
                name: {"wall_s": round(took.wall_s, 3), "cpu_s": round(took.cpu_s, 3)}
                | {"phases": took.phases}
                for name, took in self._tests.items()
            }
            Path(self._file).write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")


def lines(tests: dict[str, Took], tier: str | None = None) -> list[str]:
    """The table, a line for each ring that ran, with its budget in this tier."""
    budgets = {ring: {"check": check, "test": test} for ring, _, check, test in RINGS}
    found: dict[str, list[Took]] = defaultdict(list)
    for name, took in tests.items():
        found[ring_of(name)].append(took)
    told = [
        f"{'ring':<14}{'tests':>7}{'wall s':>9}{'slowest s':>11}{'processor s':>13}{'may take':>10}"
    ]
    for ring in [*(each[0] for each in RINGS), "elsewhere"]:
        if of_ring := found.get(ring):
            wall, cpu = sum(each.wall_s for each in of_ring), sum(each.cpu_s for each in of_ring)
            slowest = max(each.wall_s for each in of_ring)
            may = budgets.get(ring, {}).get(tier or "", "")
            told.append(
                f"{ring:<14}{len(of_ring):>7}{wall:>9.0f}{slowest:>11.1f}{cpu:>13.0f}{may:>10}"
            )
    return told


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ring-times", metavar="FILE", help="write what each test took, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Measuring(config), "dlog-measuring")
    if not hasattr(config, "workerinput"):
        tier = config.getoption("--tier", None)
        telling = Telling(config.getoption("--ring-times"), tier)
        config.pluginmanager.register(telling, "dlog-telling")
