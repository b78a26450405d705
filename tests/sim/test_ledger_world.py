"""Thousands of histories of a ledger on bookies, and what they are worth: bugs that others really
had, planted one at a time, must be noticed."""

from __future__ import annotations

import pytest

from dlog.testing.sim.planted import planted
from dlog.testing.sim.planted.ledger import PLANTS
from dlog.testing.sim.runs import hunt, run_many
from dlog.trace import BOOKIE_POINTS
from tests.sim.histories import (
    Stretch,
    counts,
    names_what_no_longer_tells,
    noticed,
    play,
    stretches,
)

PLANTED_HISTORIES_MAX = 2_500
CAUGHT = sorted(name for name, plant in PLANTS.items() if plant.survives is None)
SURVIVORS = sorted(PLANTS.keys() - set(CAUGHT))

# What must have happened somewhere, or the histories prove little.
MARKS = [
    "a bookie is killed",
    "a bookie is shut down",
    "a bookie is stopped",
    "a bookie takes no writes",
    "a client and a bookie are cut off",
    "a client dies",
    "a client is frozen",
    "a close comes too late",
    "a connection breaks",
    "a connection is refused",
    "a LAC is made up",
    "a long poll is forgotten",
    "a metadata reply is lost",
    "a poll brought the entry",
    "a recovery fails: Unavailable",
    "a striped ensemble changed",
    "a striped writer is fenced",
    "a watch is lost",
    "acks change places",
    "all bookies are killed",
    "an ack comes twice",
    "an ack is never sent",
    "an add is refused",
    "an entry comes back damaged",
    "an old version is read",
    "another entry comes back",
    "bad advice",
    "delivered",
    "its disks are lost",
    "its writer closed it",
    "metadata is away",
    "read to the end",
    "recovered more than was confirmed",
    "the writer fails: Fenced",
]


@stretches(800, 30_000, per_minute=13_800)
def test_nothing_is_lost_and_everything_ends(stretch: Stretch) -> None:
    tally = play("ledger", stretch)
    assert [mark for mark in MARKS if not tally.marks[mark]] == []
    assert [point for point in sorted(BOOKIE_POINTS) if tally.points[point] < 20] == []


def test_amnesiac_bookies_cost_no_more_than_they_must() -> None:
    """A2 is broken: what was confirmed may be lost, and nothing else may happen."""
    tally = run_many(
        "ledger",
        count=200,
        quorums=(3, 3, 2),
        is_striped=False,
        troubles__kills=0.3,
        troubles__wipes=1,
        troubles__wipes_are_noticed=False,
        recoverers=2,
    )
    tally.check()
    assert tally.marks["its disks are lost"] > 20


def test_stock_recoverers_publish_what_may_be_gone_later() -> None:
    """Why ours write back with the LAC of the beginning: without that excuse it shows (H1, H2)."""
    plant = PLANTS["lac_on_recovery_adds"]
    found = hunt(plant, count=PLANTED_HISTORIES_MAX)
    assert found.finding is not None
    assert found.finding.promise in ("I3a", "I9")


@pytest.mark.tier("test")
@names_what_no_longer_tells
@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_bug_is_noticed(name: str) -> None:
    """Recoveries are judged by what comes of them, not by the evidence that they give: of most."""
    noticed(PLANTS[name], count=PLANTED_HISTORIES_MAX)


@counts(50, 500, seconds=3)
@pytest.mark.parametrize("name", SURVIVORS)
def test_a_survivor_does_no_harm(name: str, count: int) -> None:
    """If one of these is noticed one day, it belongs to the others."""
    plant = PLANTS[name]
    with planted(plant):
        run_many(plant.world, count=count, **plant.fixed).check()
