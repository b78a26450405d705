"""Thousands of histories of ledger recovery, each from a seed; and what they are worth: bugs that
others really had, planted one at a time, must show."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from dlog.errors import Broken, ConfigError
from tests.sim.recovery_history import play
from tests.sim.recovery_planted import PLANTS
from tests.sim.recovery_world import Violation

HISTORIES = 1500
PLANTED_HISTORIES_MAX = 1000

# What must have happened somewhere, or the histories prove little.
MARKS = [
    "broken",
    "busy",
    "delivered",
    "died",
    "ensemble changed",
    "fenced",
    "frozen",
    "limbo",
    "meta reply lost",
    "more than acknowledged",
    "recoverer died",
    "timed out",
    "twice",
    "Unavailable",
    "writer died",
]


def test_histories() -> None:
    marks: Counter[str] = Counter()
    for seed in range(HISTORIES):
        try:
            world = play(seed)
        except Violation as violation:
            raise AssertionError(f"seed {seed}: {violation}") from violation
        marks.update(world.marks)
        if world.closed is not None and world.closed[0] > world.acked:
            marks["more than acknowledged"] += 1
    assert [mark for mark in MARKS if marks[mark] < 5] == []


THREE: dict[str, Any] = {"quorums": (3, 3, 2), "wipes": 0, "slow_ms": 20.0, "recoverers": 1}

# Bugs that want their faults together to show within seconds.
WEATHER: dict[str, dict[str, Any]] = {
    "recovery_read_must_fence": THREE | {"failing": 0.3, "late": 0.3, "appends": 20, "window": 4},
    "silence_denies": THREE | {"silent": 0.08, "appends": 20, "window": 4},
    "a_denial_counts_for_the_next_entry": THREE | {"late": 0.3, "broken": 0.2, "appends": 20},
    "acknowledgements_of_a_replaced_bookie_stay": THREE
    | {"dies": 0.08, "late": 0.3, "busy": 0.2, "spares": 2, "appends": 20, "window": 20},
    "reads_follow_the_changed_ensemble": THREE
    | {"dies": 0.1, "late": 0.3, "spares": 2, "appends": 20, "window": 4},
}

# name -> what protects, and where it is shown.
SURVIVORS = {
    "one_answer_covers": (
        "every read fences, so the denials that end a ledger fence a covering part of that entry's "
        "write set by themselves: tests/unit/ledger/bookkeeper/test_recovery.py"
    ),
    "late_confirmations_are_not_heard": (
        "they contradict an end only where bookies lost what they had acknowledged, which the "
        "rules exclude: tests/unit/ledger/bookkeeper/test_recovery.py::"
        "test_an_end_below_what_somebody_confirmed_is_refused"
    ),
}
CAUGHT = sorted(PLANTS.keys() - SURVIVORS.keys())


@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_bug_does_harm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged by what comes of it alone: not by the evidence that the core gives for itself."""
    PLANTS[name](monkeypatch)
    with pytest.raises((Violation, Broken, ConfigError)):
        _play_many(PLANTED_HISTORIES_MAX, audit=False, **WEATHER.get(name, {}))


@pytest.mark.parametrize("name", sorted(SURVIVORS))
def test_a_survivor_does_no_harm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one of these is noticed one day, it belongs to the others."""
    PLANTS[name](monkeypatch)
    _play_many(100)


def _play_many(histories: int, **options: Any) -> None:
    for seed in range(histories):
        play(seed, **options)
