"""What the simulator is worth: each planted bug must be noticed within a bounded number of short
histories. A bug that survives is redundant protection, and the table says what protects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.history import run_histories
from tests.sim.planted import PLANTS
from tests.sim.world import Violation

HISTORIES_MAX = 1000

# Bugs that want their faults together to show within seconds.
WEATHER: dict[str, dict[str, Any]] = {
    "a_ledger_is_deleted_though_its_listing_is_unknown": {
        "meta_reply_lost": 0.3,
        "writers": 4,
        "incarnations": 3,
        "takeover": "always",
        "crash": 0.0,
    },
    "no_barrier": {"store_ms": 20.0, "rotate_every": 2},
    "unknown_close_taken_as_won": {"close_fails": 0.3, "rotate_every": 2},
    "reader_enters_without_looking_at_the_predecessor": {"readers": 3, "rotate_every": 2},
}

# name -> what protects, and where it is shown.
SURVIVORS = {
    "acks_count_after_a_failure": (
        "an appender that failed acknowledges nothing any more (the contract of ledgers), so the "
        "core's own deafness is a second guard: tests/unit/writer/test_core.py::"
        "test_a_failed_ledger_is_heard_no_more"
    ),
    "unknown_close_taken_as_lost": (
        "only costs time: the old ledger is recovered to the same end, and the handle goes on"
    ),
    "reader_leaves_an_open_ledger": (
        "the next segment is entered only behind a predecessor CLOSED at its seam's end, and a "
        "step to any seq but the next is Truncated or Corrupt, never a skip"
    ),
}
CAUGHT = sorted(PLANTS.keys() - SURVIVORS.keys())


@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[name](monkeypatch)
    with pytest.raises(Violation):
        run_histories(HISTORIES_MAX, **WEATHER.get(name, {}))


@pytest.mark.parametrize("name", sorted(SURVIVORS))
def test_a_survivor_does_no_harm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one of these is noticed one day, it belongs to the others."""
    PLANTS[name](monkeypatch)
    run_histories(100)
