"""What becomes of a mutant: some test that passes without it fails with it, or it lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.coverage_map import CoverageMap, MappedTest, tiers_up_to
from tests.mutants.draw import Mutant
from tests.mutants.runs import Runner, slowness
from tests.mutants.selection import order, select, unmapped

NOTICED, LIVES, NOT_COVERED = "noticed", "lives", "not covered"
LEAST_LIMIT_S = 15.0
TIMES_AS_LONG = 10.0  # as a test took: it hangs


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    outcome: str
    by: str = ""
    seconds: float = 0.0
    covering: int = 0  # tests that run the line
    ran: int = 0
    time_was_up: bool = False


class Unsteady:
    """The tests that fail without any mutant: they notice nothing. Each that failed with one is run
    alone without it, once."""

    def __init__(self) -> None:
        self._passes: dict[str, bool] = {}
        self._lock = threading.Lock()

    def passes(self, runner: Runner, name: str, limit: float) -> bool:
        with self._lock:
            known = self._passes.get(name)
        if known is None:
            ran = runner.run({name: limit}, 2 * limit + 60)
            known = ran.failed is None and ran.finished
            with self._lock:
                self._passes[name] = known
        return known

    def names(self) -> list[str]:
        with self._lock:
            return sorted(name for name, passes in self._passes.items() if not passes)


def limit_of(test: MappedTest) -> float:
    return LEAST_LIMIT_S + TIMES_AS_LONG * test.seconds


def chosen_tests(
    known: CoverageMap,
    mutant: Mutant,
    sources: dict[str, str],
    seconds: float,
    tree: Path,
    files: Sequence[str],
    tier: str,
) -> tuple[int, list[MappedTest]]:
    """How many tests up to this tier run the line, and those that are worth a try, in order.
    `files` are not in the map, or changed since."""
    found = select(known, mutant.edit, sources, tiers_up_to(tier))
    found = [test for test in found if (tree / test.file).exists()]
    found += unmapped(mutant.edit, files)
    return len(found), order(found, mutant.edit.path, seconds)


def try_one(
    runner: Runner,
    mutant: Mutant,
    tests: Sequence[MappedTest],
    covering: int,
    seconds: float,
    unsteady: Unsteady,
) -> Verdict:
    begun = time.monotonic()

    def verdict(outcome: str, by: str = "", ran: int = 0, late: bool = False) -> Verdict:
        spent = round(time.monotonic() - begun, 1)
        return Verdict(mutant, outcome, by, spent, covering, ran, late)

    if not tests:
        return verdict(NOT_COVERED) if runner.can_import(mutant) else verdict(NOTICED, "import")
    left = {test.name: limit_of(test) for test in tests if test.name not in unsteady.names()}
    passed, spent = 0, 0.0
    while left and spent < seconds:
        since, slow = time.monotonic(), slowness()
        ran = runner.run(left, seconds - spent, mutant=mutant, without=unsteady.names())
        spent += (time.monotonic() - since) / slow
        passed += ran.ended
        if ran.failed is None:
            return verdict(LIVES, ran=passed, late=not ran.finished)
        if ran.manner == "unimportable":
            return verdict(NOTICED, "import")
        limit = left.get(ran.failed, LEAST_LIMIT_S + TIMES_AS_LONG)
        if unsteady.passes(runner, ran.failed, limit):
            told = ran.failed if ran.manner == "failed" else f"{ran.failed} ({ran.manner})"
            return verdict(NOTICED, told, passed)
        seen = {*ran.begun, ran.failed}
        left = {
            name: limit
            for name, limit in left.items()
            if name not in seen and (ran.manner != "broken" or not name.startswith(ran.failed))
        }
    return verdict(LIVES, ran=passed, late=bool(left))
