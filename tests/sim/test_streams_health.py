"""Clients, endpoints that die, freeze and flap, and messages between them: no history breaks a
promise, and each bug that is planted is noticed."""

from __future__ import annotations

import pytest

from dlog.testing.sim.planted import planted, streams_health
from dlog.testing.sim.runs import hunt, run_many, run_one, shrink_tape
from dlog.testing.sim.tape import of_tape
from tests.sim.histories import Stretch, names_what_no_longer_tells, noticed, play, stretches

WORLD = "streams-health"
HISTORIES_MAX = 1500
PLANTS = streams_health.PLANTS
CAUGHT = sorted(name for name, plant in PLANTS.items() if plant.survives is None)
SURVIVORS = sorted(PLANTS.keys() - set(CAUGHT))
MET = (
    "isolated",
    "recovered",
    "fenced",
    "frozen",
    "dead",
    "a storm",
    "a client sleeps",
    "a part is taken",
    "lost",
    "late",
    "twice",
    "swap: leave",
    "swap: come",
    "swap: pin",
)


@stretches(1_000, 60_000, per_minute=32_000)
def test_no_history_breaks_a_promise_and_all_kinds_of_trouble_are_met(stretch: Stretch) -> None:
    """CL-03, CL-06 to CL-12, CL-20, CL-21 and the flaws of that design: probes are few, isolation
    is for silence and in time, no more than a part, damped; messages are there once and in
    order."""
    tally = play(WORLD, stretch)
    assert not [what for what in MET if not tally.marks[what]]


def test_a_history_without_any_trouble_isolates_nobody() -> None:
    ended, finding = run_one(WORLD, of_tape([]))
    assert finding is None
    assert ended is not None
    assert not ended.marks


@pytest.mark.tier("test")
@pytest.mark.timeout(240)
@names_what_no_longer_tells
@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_bug_is_noticed(name: str) -> None:
    noticed(PLANTS[name], count=HISTORIES_MAX)


@pytest.mark.parametrize("name", SURVIVORS)
def test_a_survivor_does_no_harm(name: str) -> None:
    with planted(PLANTS[name]):
        run_many(WORLD, count=200, **PLANTS[name].fixed).check()


def test_nearly_all_that_is_planted_is_noticed() -> None:
    assert len(CAUGHT) >= 0.95 * len(PLANTS)
    assert len(PLANTS) >= 40


@pytest.mark.tier("test")
@pytest.mark.timeout(240)
def test_a_failure_becomes_small() -> None:
    plant = PLANTS["in_flight_is_dropped"]
    found = hunt(plant, count=HISTORIES_MAX)
    assert found.finding is not None
    with planted(plant):
        small = shrink_tape(WORLD, found.finding.values, tries=100, **plant.fixed)
    assert sum(value != 0.0 for value in small.values) <= 30
