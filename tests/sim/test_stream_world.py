"""Histories of streams: shards that are split, merged and pinned at run time, under writers and
readers that crash, sleep and hear no answers; and planted bugs, each of which has to be noticed."""

from __future__ import annotations

import pytest

from dlog import trace
from dlog.testing.sim.planted.streams import PLANTS
from tests.sim.histories import (
    Stretch,
    names_what_no_longer_tells,
    noticed,
    play_and_meet,
    stretches,
)

HISTORIES_MAX = 3_000
# What must happen in a few hundred histories, or they are too tame.
HAPPENS = (
    "a lane dies, a lane is lost, sent again, known from before, not ours, refused, changed, "
    "change: Conflict, change: Timeout, a reader comes back, sleepers woke, terminates, "
    "a client crashes, a client freezes, metadata outage, metadata: late write, "
    "metadata: reply lost, logs: a reply is lost, logs: a request fails, logs: an append is slow"
).split(", ")
# What only the drivers announce, and what is not simulated.
ELSEWHERE = {
    "stream.resent",
    "stream.forgotten",
    "stream.log_removed",
    "stream.cleared",
    "stream.removed",
}


@stretches(400, 30_000, per_minute=10_700)
def test_no_history_breaks_a_promise(stretch: Stretch) -> None:
    points = sorted(trace.STREAM_POINTS - ELSEWHERE)
    play_and_meet("streams", stretch, HAPPENS, points, within=700)


@pytest.mark.tier("test")
@pytest.mark.timeout(240)
@names_what_no_longer_tells
@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_planted_bug_is_noticed(name: str) -> None:
    noticed(PLANTS[name], count=HISTORIES_MAX)
