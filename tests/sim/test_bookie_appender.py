"""The core of the BookKeeper appender in thousands of histories, and what those are worth: each
planted bug must be noticed. A bug that survives is redundant protection, and the table says what
protects."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.errors import Broken
from tests.sim.bookie_history import run_bookie_histories
from tests.sim.bookie_planted import PLANTS
from tests.sim.world import Violation

HISTORIES = 400
HISTORIES_MAX = 2_000

# Bugs that want their faults together to show within seconds.
ZOMBIES: dict[str, Any] = {
    "ensemble": 3,
    "ack_quorum": 2,
    "spares": 0,
    "birth": False,
    "idle_troubles": 8,
    "kills": 0.9,
    "recovery": 0.3,
}
WEATHER: dict[str, dict[str, Any]] = {
    "link_never_proven": ZOMBIES,
    # A look is under way while all of this happens.
    "look_from_before_the_link": {
        **ZOMBIES,
        "meta_slow": 300.0,
        "meta_refused": 0.0,
        "burst": 3,
        "appends": 20,
        "latency_ms": 0.5,
        "slow": 1.0,
    },
}
WEATHER["unknown_change_taken_for_not_stored"] = {
    "spares": 2,
    "kills": 0.2,
    "meta_unknown": 0.5,
    "meta_slow": 10.0,
    "recovery": 0.0,
}

# name -> what protects, and where it is shown.
SURVIVORS = {
    "lost_lac_not_repeated": (
        "a bookie that does not take the LAC for as long as an add may take is replaced"
    ),
    "fence_is_only_a_failure": (
        "whoever replaces a bookie, or comes back to it, asks metadata, which recovery marked "
        "before it fenced: tests/unit/ledger/bookkeeper/test_appender_core.py::"
        "test_a_fence_ends_the_appender"
    ),
    "answers_of_a_former_link": (
        "a late answer tells the truth about a bookie that keeps what it acked, and cursors take "
        "none that was not asked for: tests/unit/ledger/bookkeeper/test_appender_core.py::"
        "test_answers_of_a_former_link_are_not_heard"
    ),
}
CAUGHT = sorted(PLANTS.keys() - SURVIVORS.keys())


def test_nothing_is_lost_and_everything_ends() -> None:
    ends = run_bookie_histories(HISTORIES)
    assert ends["Unavailable"] < HISTORIES // 20
    assert min(ends["open"], ends["closed"]) > HISTORIES // 4
    assert ends["Fenced"] > 0


@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_bug_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[name](monkeypatch)
    with pytest.raises((Violation, Broken)):
        run_bookie_histories(HISTORIES_MAX, **WEATHER.get(name, {}))


@pytest.mark.parametrize("name", sorted(SURVIVORS))
def test_a_survivor_does_no_harm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If one of these is noticed one day, it belongs to the others."""
    PLANTS[name](monkeypatch)
    run_bookie_histories(200)
