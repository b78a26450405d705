"""Histories of documents that change while programs run: no promise breaks, every planted bug is
noticed, and they are light enough to be many. DLOG_SIM_SECONDS runs for longer."""

from __future__ import annotations

import os

import pytest

from dlog import trace
from dlog.testing.sim.planted.streams_config import PLANTS
from dlog.testing.sim.runs import hunt, run_many

SECONDS = float(os.environ.get("DLOG_SIM_SECONDS", "8"))
FIRST = int(os.environ.get("DLOG_SIM_FIRST", "0"))
HISTORIES_MAX = 1500
FACTS = (
    "in force, changed, refused, nothing new, told Conflict, told NotFound, told Timeout, "
    "a client crashes, a client freezes, metadata outage, metadata: stale read, "
    "metadata: reply lost, metadata: request lost, metadata: late write, metadata: watch lost, "
    "metadata: watch late, metadata: watch doubled, metadata: a stranger stores a node again"
).split(", ")


@pytest.mark.timeout(60 + 3 * SECONDS)
def test_no_history_of_a_document_loses_mixes_or_goes_back() -> None:
    """CL-01, CL-02, CL-08, CL-20: versions grow for each follower, one is in force whole or not at
    all, what did not change is not touched, no update is lost or made twice, history is exact, and
    the newest valid version comes into force within a poll: whatever is lost, late or doubled, and
    whoever dies at which step."""
    tally = run_many("streams-config", FIRST, seconds=SECONDS / 2, at_least=3000)
    print(f"{tally.histories} histories, {tally.per_minute:,.0f} a minute")
    tally.check()
    never = [fact for fact in FACTS if not tally.marks[fact]]
    assert not never, f"these never happened: {never}"
    unreached = [p for p in trace.CONFIG_POINTS if p.startswith("config.") and not tally.points[p]]
    assert not unreached, f"steps that no history reached: {unreached}"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_planted_bug_is_noticed(name: str) -> None:
    found = hunt(PLANTS[name], count=HISTORIES_MAX)
    assert found.finding is not None, f"{found.histories} histories"
    stale = isinstance(found.finding.error, (AttributeError, NameError, TypeError))
    assert not stale, found.finding
