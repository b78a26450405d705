"""A pytest plugin that runs the tests of a list in the order of that list, each within a limit of
its own. It writes down what it does: a run that is killed shows where it stood."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Generator, Iterable
from pathlib import Path

import hypothesis
import pytest


class Chosen:
    """`limits`: the seconds of each test, by its name, or by its file for all tests of it; none
    of `without` is run."""

    def __init__(self, limits: dict[str, float], without: Iterable[str], told: Path) -> None:
        self._limits = limits
        self._without = set(without)
        self._told = told
        self.has_failed = False

    def arranged(self, items: Iterable[pytest.Item]) -> list[pytest.Item]:
        places = {name: place for place, name in enumerate(self._limits)}
        chosen: list[tuple[int, pytest.Item]] = []
        for item in items:
            key = item.nodeid if item.nodeid in places else item.nodeid.partition("::")[0]
            if key in places and item.nodeid not in self._without:
                item.add_marker(pytest.mark.timeout(self._limits[key]), append=False)
                chosen.append((places[key], item))
        chosen.sort(key=lambda pair: pair[0])
        return [item for _, item in chosen]

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        yield  # fixtures order the tests, too: theirs is not wanted
        items[:] = self.arranged(items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tell("broken", report.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.tell("begun", item.nodeid)
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.has_failed = True
            self.tell("failed", report.nodeid)
        elif report.when == "teardown":
            self.tell("ended", report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.tell("done", "")

    def tell(self, what: str, name: str) -> None:
        with self._told.open("a", encoding="utf-8") as file:
            file.write(json.dumps([what, name, time.monotonic()]) + "\n")


def draw_the_same_examples() -> None:
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None)
    hypothesis.settings.load_profile("mutants")


def pytest_configure(config: pytest.Config) -> None:
    draw_the_same_examples()
    asked = json.loads(Path(os.environ["MUTANTS_CHOSEN"]).read_text(encoding="utf-8"))
    plugin = Chosen(asked["limits"], asked["without"], Path(os.environ["MUTANTS_TOLD"]))
    config.pluginmanager.register(plugin, "mutants-chosen")
    try:
        for module in asked["modules"]:
            importlib.import_module(module)
    except Exception:
        plugin.tell("unimportable", module)
        pytest.exit(f"cannot import {module}", returncode=3)
