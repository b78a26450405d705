"""A pytest plugin that fills the coverage map while tests run.

A test file's tests are stored when the first test of another file begins. Planted bugs are left
out: they run code that is not the module's own. A test is traced for its first seconds of
processor time only; by then a simulated world has run what it will run.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Generator
from pathlib import Path
from types import FrameType

import coverage
import pytest

from tests.mutants.coverage_map import CoverageMap, TracedTest
from tests.tiers import TIERS, tier_of

TRACED_CPU_S = float(os.environ.get("MUTANTS_TRACED_CPU_S", "3"))
# A test's seconds are its processor time, which a busy machine does not stretch; of a test that
# waits for others they are at least this part of what the clock said.
WAITING = 0.2
PATCHES_CODE = re.compile(r"benchmark|planted|survivor|becomes_small|story_and_a_planted")


class Tracing:
    def __init__(self, root: Path, target: Path, tier: str) -> None:
        self._root = root
        self._tier = tier
        self._given: set[str] = set()  # files that were collected
        self._broken: set[str] = set()
        self._map = CoverageMap(target)
        self._coverage: coverage.Coverage | None = None
        self._running = False
        self._file = ""
        self._left: dict[str, int] = {}
        self._names: list[str] = []
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()
        self._tiers: dict[str, str] = {}
        self._cpu_s = 0.0
        signal.signal(signal.SIGVTALRM, self._on_enough)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        file = report.nodeid.partition("::")[0]
        if file.endswith(".py"):
            (self._broken if report.failed else self._given).add(file)

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        out = [item for item in items if PATCHES_CODE.search(item.name.partition("[")[0])]
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in set(out)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        file = item.nodeid.partition("::")[0]
        if file != self._file:
            self._finish_file(complete=True)
            self._file = file
            self._given.discard(file)
            self._coverage = _tracer(self._root)
        self._names.append(item.nodeid)
        self._tiers[item.nodeid] = tier_of(item)
        self._start()
        assert self._coverage is not None
        self._coverage.switch_context(str(len(self._names) - 1))
        signal.setitimer(signal.ITIMER_VIRTUAL, TRACED_CPU_S)
        self._cpu_s = _cpu_s()
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            spent = WAITING * self._seconds.get(item.nodeid, 0.0)
            self._seconds[item.nodeid] = max(spent, _cpu_s() - self._cpu_s)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        spent = self._seconds.get(report.nodeid, 0.0)
        self._seconds[report.nodeid] = spent + report.duration
        if report.outcome != "passed":
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        ended = exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.TESTS_FAILED,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        )
        self._finish_file(complete=ended)
        for file in self._given - self._broken if ended else ():
            self._map.store_file(self._root, file, [], complete=True, tier=self._tier)
        self._map.close()

    def _start(self) -> None:
        if not self._running and self._coverage is not None:
            self._coverage.start()
            self._running = True

    def _stop(self) -> None:
        if self._running and self._coverage is not None:
            self._running = False
            self._coverage.stop()

    def _on_enough(self, number: int, frame: FrameType | None) -> None:
        if threading.current_thread() is threading.main_thread():
            self._stop()

    def _finish_file(self, *, complete: bool) -> None:
        if self._coverage is None:
            return
        self._stop()
        lines: list[dict[str, set[int]]] = [{} for _ in self._names]
        data = self._coverage.get_data()
        for path in data.measured_files():
            module = Path(path).relative_to(self._root).as_posix()
            for line, contexts in data.contexts_by_lineno(path).items():
                for context in filter(None, contexts):
                    lines[int(context)].setdefault(module, set()).add(line)
        tests = [
            TracedTest(
                name,
                round(self._seconds.get(name, 0.0), 4),
                name not in self._failed,
                {module: frozenset(ran) for module, ran in traced.items()},
                self._tiers[name],
            )
            for name, traced in zip(self._names, lines, strict=True)
        ]
        self._map.store_file(self._root, self._file, tests, complete=complete, tier=self._tier)
        self._coverage, self._names, self._seconds, self._failed = None, [], {}, set()


def _cpu_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _tracer(root: Path) -> coverage.Coverage:
    tracer = coverage.Coverage(
        data_file=None,
        config_file=False,
        include=[f"{root}/dlog/*"],
        omit=[f"{root}/dlog/testing/*"],
        messages=False,
    )
    quiet = ["no-data-collected", "module-not-measured", "already-imported", "trace-changed"]
    tracer.set_option("run:disable_warnings", quiet)
    return tracer


def pytest_configure(config: pytest.Config) -> None:
    target = Path(os.environ["MUTANTS_MAP"])
    tier = config.getoption("--tier") or TIERS[-1]
    config.pluginmanager.register(Tracing(config.rootpath, target, tier), "mutants-tracing")
