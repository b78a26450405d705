"""Histories of documents that change while programs run: no promise breaks, every planted bug is
noticed, and they are light enough to be many."""

from __future__ import annotations

import pytest

from dlog import trace
from dlog.testing.sim.planted.streams_config import PLANTS
from tests.sim.histories import Stretch, names_what_no_longer_tells, noticed, play, stretches

HISTORIES_MAX = 1500
FACTS = (
    "in force, changed, refused, nothing new, told Conflict, told NotFound, told Timeout, "
    "a client crashes, a client freezes, metadata outage, metadata: stale read, "
    "metadata: reply lost, metadata: request lost, metadata: late write, metadata: watch lost, "
    "metadata: watch late, metadata: watch doubled, metadata: a stranger stores a node again"
).split(", ")


@stretches(1_500, 60_000, per_minute=38_000)
def test_no_history_of_a_document_loses_mixes_or_goes_back(stretch: Stretch) -> None:
    """CL-01, CL-02, CL-08, CL-20: versions grow for each follower, one is in force whole or not at
    all, what did not change is not touched, no update is lost or made twice, history is exact, and
    the newest valid version comes into force within a poll: whatever is lost, late or doubled, and
    whoever dies at which step."""
    tally = play("streams-config", stretch)
    never = [fact for fact in FACTS if not tally.marks[fact]]
    assert not never, f"these never happened: {never}"
    unreached = [p for p in trace.CONFIG_POINTS if p.startswith("config.") and not tally.points[p]]
    assert not unreached, f"steps that no history reached: {unreached}"


@pytest.mark.tier("test")
@pytest.mark.timeout(120)
@names_what_no_longer_tells
@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_planted_bug_is_noticed(name: str) -> None:
    noticed(PLANTS[name], count=HISTORIES_MAX)
