"""Which tier notices each planted bug: `python -m dlog.testing.sim plants --table`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from dlog.testing.sim import corpus
from dlog.testing.sim.planted import Plant, planted
from dlog.testing.sim.planted.shown import show
from dlog.testing.sim.runs import STALE, hunt

Tier = Literal["check", "test"]

CORPUS = "tests/sim/test_corpus.py"
HUNT = "test_a_planted_bug_is_noticed"
# The folders whose tests are part of `make check` unless a test says otherwise.
_CHECK = ("tests/unit/", "tests/vectors/", "tests/conformance/", "tests/api/", "tests/scenarios/")
_HUNTED_MAX = 2_500


@dataclass(frozen=True, slots=True)
class Death:
    """Where a planted bug is noticed. `tier` is None if no test notices it."""

    bug: str
    world: str
    tier: Tier | None
    test: str
    took_s: float

    def __str__(self) -> str:
        tier = self.tier or "-"
        return f"{self.bug:<62} {self.world:<14} {tier:<6} {self.took_s:6.2f} s  {self.test}"


def death_of(plant: Plant, *, hunted: bool = True) -> Death:
    """By the corpus, by the test that it names, or (if `hunted`) by its own hunt."""
    began_s = time.process_time()

    def dies(tier: Tier | None, test: str, took_s: float | None = None) -> Death:
        spent_s = time.process_time() - began_s if took_s is None else took_s
        return Death(plant.name, plant.world, tier, test, spent_s)

    if plant.survives is None:
        if _is_noticed_by_corpus(plant):
            return dies("check", f"{CORPUS} [{plant.world}]")
        if hunted:
            weather = {**plant.fixed, **plant.harder}
            found = hunt(replace(plant, fixed=weather), count=_HUNTED_MAX)
            if found.finding is not None:
                return dies("test", f"{HUNT}[{plant.name}]")
    told = show(plant)
    if told is None:
        return dies(None, plant.survives or "not noticed")
    return dies("check" if told.by.startswith(_CHECK) else "test", told.by, told.took_s)


def _is_noticed_by_corpus(plant: Plant) -> bool:
    """Its recorded history first: which of them notices it is not the question."""
    recorded = corpus.recorded()
    own = recorded.get(plant.name)
    likely = own if own is None or own.by is None else recorded.get(own.by)
    histories = sorted(corpus.corpus(plant.world), key=lambda each: each != likely)
    with planted(plant):
        for telling in histories:
            finding = corpus.play(telling)
            if finding is not None and not isinstance(finding.error, STALE):
                return True
    return False


def summary(deaths: Iterable[Death]) -> list[str]:
    """A row for each world, and how many are noticed in all."""
    all_ = list(deaths)
    lines = [f"{'world':<16} {'bugs':>5} {'check':>6} {'test':>6} {'none':>6} {'seconds':>8}"]
    for world in [*sorted({each.world for each in all_}), "all"]:
        here = [each for each in all_ if world in ("all", each.world)]
        tiers = [sum(each.tier == tier for each in here) for tier in ("check", "test", None)]
        counted = " ".join(f"{count:>6}" for count in tiers)
        took_s = sum(each.took_s for each in here)
        lines.append(f"{world:<16} {len(here):>5} {counted} {took_s:>8.1f}")
    check, test = (sum(each.tier == tier for each in all_) for tier in ("check", "test"))
    share = 100 * check / len(all_) if all_ else 0.0
    lines.append(
        f"\n{check} of {len(all_)} planted bugs are noticed in check ({share:.1f} %), {test} more "
        f"in test, {len(all_) - check - test} by none"
    )
    return lines
