"""Histories of streams over their whole life: changed, truncated, trimmed, terminated and made
again while producers, readers, groups and jobs come and go, sleep and die; and planted bugs."""

from __future__ import annotations

import pytest

from dlog.testing.sim.corpus import recorded
from dlog.testing.sim.planted import planted
from dlog.testing.sim.planted.streams_life import PLANTS
from dlog.testing.sim.runs import run_many
from dlog.testing.sim.streams_life_pairs import FEATURES, PAIRS, table
from tests.sim.histories import (
    FIRST,
    FULL_TIMEOUT_S,
    Stretch,
    counts,
    names_what_no_longer_tells,
    noticed,
    play,
    stretches,
)

pytestmark = pytest.mark.tier("test")

HISTORIES_MAX = 2_000
CAUGHT = sorted(name for name, plant in PLANTS.items() if plant.survives is None)
SURVIVORS = sorted(PLANTS.keys() - set(CAUGHT))
HUNTED = pytest.mark.tier("full", seconds=60)  # as long as no history of it is recorded
# What must happen in a thousand histories, or they are too tame.
HAPPENS = (
    "a process is frozen, a process dies, a number is sent again, a run is sent again, "
    "a reader goes on from where it stood, a reader is told of a removal, a bounded reading, "
    "a reader is told what it missed, a group is removed, a worker leaves, "
    "a worker ends: all shards are done, a producer was forgotten, metadata: reply lost, "
    "metadata: late write, metadata: stale read, ledgers: refused, ledgers: reply lost, "
    "ledgers: an append is slow"
).split(", ")


@stretches(40, 5_000, per_minute=940)
def test_no_history_breaks_a_promise(stretch: Stretch) -> None:
    """I17 to I19, I25 to I27, I30, I31: see `streams_life_truth`."""
    play("streams-life", stretch)


@pytest.mark.tier("full", seconds=65)
@pytest.mark.timeout(FULL_TIMEOUT_S)
def test_all_features_meet() -> None:
    """The weather sees to each pair in about ten of a thousand histories."""
    tally = play("streams-life", Stretch(FIRST, 1_000))
    print(table(tally.marks))
    missing = [what for what in (*HAPPENS, *PAIRS) if not tally.marks[what]]
    assert not missing, f"{tally.histories} histories without {missing}"


def test_a_history_is_the_same_each_time() -> None:
    one, other = run_many("streams-life", 17, 3), run_many("streams-life", 17, 3)
    assert (one.marks, one.events, one.draws) == (other.marks, other.events, other.draws)


def test_pairs_are_of_all_features() -> None:
    assert len(PAIRS) == len(set(PAIRS)) == len(FEATURES) * (len(FEATURES) - 1) // 2
    assert len(table({PAIRS[0]: 7}).splitlines()) == 1 + len(FEATURES)


@pytest.mark.timeout(240)
@names_what_no_longer_tells
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in recorded() else HUNTED) for name in CAUGHT]
)
def test_a_planted_bug_is_noticed(name: str) -> None:
    noticed(PLANTS[name], count=HISTORIES_MAX)


@counts(5, 200, seconds=14)
@pytest.mark.parametrize("name", SURVIVORS)
def test_a_survivor_does_no_harm(name: str, count: int) -> None:
    """If one of these is noticed one day, it belongs to the others."""
    plant = PLANTS[name]
    with planted(plant):
        run_many(plant.world, count=count, **plant.fixed).check()
