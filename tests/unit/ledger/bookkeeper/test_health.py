"""Who is quarantined, for how long, and who is not to blame."""

from __future__ import annotations

import pytest

from dlog.ledger.bookkeeper.health import (
    ERRORS_DEFAULT,
    INTERVAL_S_DEFAULT,
    QUARANTINE_S_DEFAULT,
    QUARANTINE_S_MAX,
    Health,
)
from dlog.wire.bookie_codes import BLAMELESS, Answer


class Fixed:
    """A chance that always draws the same."""

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction

    def fraction(self) -> float:
        return self._fraction

    def token(self) -> str:
        return "token"


def _fail(health: Health, now_s: float, *, times: int = ERRORS_DEFAULT) -> None:
    for _ in range(times):
        health.note("b1", Answer.TIMED_OUT, now_s)


def test_errors_up_to_a_threshold_are_borne() -> None:
    health = Health(chance=Fixed(1.0))
    _fail(health, 100.0, times=ERRORS_DEFAULT - 1)
    assert health.avoided(100.0) == frozenset()
    _fail(health, 100.0, times=1)
    assert health.avoided(100.0) == {"b1"}
    assert health.avoided(99.9 + QUARANTINE_S_DEFAULT) == {"b1"}
    assert health.avoided(100.0 + QUARANTINE_S_DEFAULT) == frozenset()


def test_errors_of_another_interval_do_not_count() -> None:
    health = Health()
    _fail(health, 100.0, times=ERRORS_DEFAULT - 1)
    _fail(health, 100.1 + INTERVAL_S_DEFAULT, times=1)
    assert health.avoided(100.1 + INTERVAL_S_DEFAULT) == frozenset()


@pytest.mark.parametrize("answer", Answer)
def test_nobody_is_quarantined_for_what_he_is_not_to_blame_for(answer: Answer) -> None:
    health = Health()
    for _ in range(ERRORS_DEFAULT):
        health.note("b1", answer, 0.0)
    assert health.avoided(0.0) == (frozenset() if answer in BLAMELESS else {"b1"})


def test_a_bookie_that_hangs_is_quarantined_at_once() -> None:
    health = Health()
    health.note_hung("b1", 0.0)
    assert health.avoided(0.0) == {"b1"}


def test_failed_connections_count_each() -> None:
    health = Health()
    for step in range(ERRORS_DEFAULT):
        assert health.avoided(0.0) == frozenset()
        health.note_unreachable("b1", step * 0.1)
    assert health.avoided(0.5) == {"b1"}


def test_connections_lost_together_count_once() -> None:
    health = Health()
    for _ in range(ERRORS_DEFAULT):
        health.note_lost("b1", 5.0)
    assert health.avoided(5.0) == frozenset()
    for step in range(1, ERRORS_DEFAULT):
        health.note_lost("b1", 5.0 + 2 * step)
    assert health.avoided(5.0 + 2 * ERRORS_DEFAULT) == {"b1"}


def test_quarantine_is_jittered() -> None:
    health = Health(chance=Fixed(0.0))
    _fail(health, 0.0)
    assert health.avoided(QUARANTINE_S_DEFAULT / 2 - 0.1) == {"b1"}
    assert health.avoided(QUARANTINE_S_DEFAULT / 2) == frozenset()


def test_quarantine_grows_for_those_who_never_learn_up_to_a_bound() -> None:
    health = Health(chance=Fixed(1.0))
    now_s, lengths = 0.0, []
    for _ in range(8):
        _fail(health, now_s)
        begin_s = now_s
        while health.avoided(now_s):
            now_s += 1.0
        lengths.append(now_s - begin_s)
    assert lengths[:3] == [QUARANTINE_S_DEFAULT * factor for factor in (1, 2, 4)]
    assert lengths[-1] == QUARANTINE_S_MAX
    now_s += 10 * INTERVAL_S_DEFAULT  # it behaved
    _fail(health, now_s)
    assert health.avoided(now_s + QUARANTINE_S_DEFAULT) == frozenset()


def test_errors_in_quarantine_do_not_prolong_it() -> None:
    health = Health(chance=Fixed(1.0))
    _fail(health, 0.0)
    _fail(health, QUARANTINE_S_DEFAULT - 1)
    assert health.avoided(QUARANTINE_S_DEFAULT) == frozenset()


def test_an_operator_releases_all() -> None:
    health = Health()
    _fail(health, 0.0)
    health.enable(False)
    _fail(health, 0.0)
    health.note_lost("b1", 0.0)
    assert health.avoided(0.0) == frozenset()
    health.enable(True)
    assert health.avoided(0.0) == frozenset()
    _fail(health, 0.0)
    assert health.avoided(0.0) == {"b1"}


def test_who_left_is_forgotten() -> None:
    health = Health()
    _fail(health, 0.0)
    health.keep_only(["b1", "b2"])
    assert health.avoided(0.0) == {"b1"}
    health.keep_only(["b2"])
    assert health.avoided(0.0) == frozenset()
