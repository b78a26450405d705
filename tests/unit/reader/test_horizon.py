"""How far an open ledger may be read: a strict tail takes an advance only when metadata, looked at
afterwards, says OPEN; and it looks once for an advance (H1, H2)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from dlog.effects import Effect, LastReadable, LookAtLedger, Pause, Procedure, WaitPast
from dlog.errors import DlogError, NotFound, Timeout, Unavailable
from dlog.ledger.store import ClosedLedger, LedgerInfo, LedgerSpec, LedgerState
from dlog.reader.horizon import LEDGERS_MAX, Horizon
from dlog.testing.sim.planted import planted
from dlog.testing.sim.planted.log import PLANTS

LEDGER = 7


def info(state: LedgerState, end: int | None = None) -> LedgerInfo:
    closed = None if end is None else ClosedLedger(end, 0)
    return LedgerInfo(LEDGER, state, closed, LedgerSpec())


OPEN, RECOVERING = info(LedgerState.OPEN), info(LedgerState.IN_RECOVERY)


def play(asking: Procedure[int], answers: Iterable[object]) -> tuple[int, list[type[Effect]]]:
    """What it came to, and what it asked; a pause is answered by itself."""
    asked: list[type[Effect]] = []
    left = iter(answers)
    answer: object = None
    try:
        while True:
            thrown = isinstance(answer, DlogError)
            effect = asking.throw(answer) if thrown else asking.send(answer)  # type: ignore[arg-type]
            asked.append(type(effect))
            answer = None if isinstance(effect, Pause) else next(left)
    except StopIteration as stop:
        return int(stop.value), asked


def strict(*, walking: bool = True) -> Horizon:
    horizon = Horizon("strict")
    horizon.waits_for_recoveries = not walking
    return horizon


def test_a_normal_tail_takes_what_is_shown() -> None:
    assert play(Horizon().last_entry(LEDGER, 3), [5]) == (5, [LastReadable])


def test_an_advance_is_looked_at_once() -> None:
    horizon = strict()
    assert play(horizon.last_entry(LEDGER), [5, OPEN]) == (5, [LastReadable, LookAtLedger])
    assert play(horizon.last_entry(LEDGER, 5), []) == (5, [])
    assert play(horizon.last_entry(LEDGER, 6), [5]) == (5, [LastReadable])
    assert play(horizon.last_entry(LEDGER), [4]) == (5, [LastReadable]), "bookies may know less"


def test_what_a_recovery_shows_is_refused_until_the_end_is_decided() -> None:
    horizon = strict()
    play(horizon.last_entry(LEDGER), [2, OPEN])
    assert play(horizon.last_entry(LEDGER), [5, RECOVERING])[0] == 2
    assert horizon._waits_past(LEDGER, 2) == 5, "or the wait would be over before it began"
    assert play(horizon.last_entry(LEDGER, 3), [5, info(LedgerState.CLOSED, 3)])[0] == 3
    assert horizon._waits_past(LEDGER, 3) == 3


def _stranger_comes_after_the_first_question(horizon: Horizon) -> int:
    asking = horizon.last_entry(LEDGER)
    effect: Effect = next(asking)
    has_come = False
    try:
        while True:
            if isinstance(effect, LastReadable):
                answer: object = 6 if has_come else 5
            else:
                answer = RECOVERING if has_come else OPEN
            has_come = True
            effect = asking.send(answer)
    except StopIteration as stop:
        return int(stop.value)


def test_the_look_comes_after_what_it_vouches_for() -> None:
    assert _stranger_comes_after_the_first_question(strict()) == -1
    with planted(PLANTS["strict_tail_looks_before_instead_of_after"]):
        assert _stranger_comes_after_the_first_question(strict()) == 6


@pytest.mark.parametrize("error", [Unavailable("away"), Timeout("late")])
def test_without_metadata_a_walk_goes_on_with_what_it_has(error: DlogError) -> None:
    horizon = strict()
    play(horizon.last_entry(LEDGER), [2, OPEN])
    assert play(horizon.last_entry(LEDGER), [5, error]) == (2, [LastReadable, LookAtLedger, Pause])
    assert play(horizon.last_entry(LEDGER), [5, OPEN])[0] == 5


def test_a_ledger_that_is_gone_is_gone() -> None:
    with pytest.raises(NotFound):
        play(strict().last_entry(LEDGER), [5, NotFound("gone")])


def test_finding_a_place_waits_for_the_end() -> None:
    horizon = strict(walking=False)
    answers = [5, RECOVERING, 5, RECOVERING, 6, info(LedgerState.CLOSED, 4)]
    found, asked = play(horizon.last_entry(LEDGER), answers)
    assert found == 4
    assert asked.count(Pause) == 2


def test_nobody_waits_for_ever_for_a_recovery() -> None:
    def for_ever() -> Iterable[object]:
        while True:
            yield 5
            yield RECOVERING

    with pytest.raises(Unavailable, match="ledger 7 is being recovered"):
        play(strict(walking=False).last_entry(LEDGER), for_ever())


def test_few_ledgers_are_remembered() -> None:
    horizon = strict()
    for ledger_id in range(3 * LEDGERS_MAX):
        play(horizon.last_entry(ledger_id), [0, OPEN])
    assert len(horizon._ledgers) == LEDGERS_MAX


def test_what_a_wait_told_is_not_asked_again() -> None:
    """An advance of a strict tail is looked at behind the wait, as behind any other answer."""
    assert play(Horizon().wait(LEDGER, 4, 1.0), [5]) == (5, [WaitPast])
    assert play(Horizon().wait(LEDGER, 4, 1.0), [None, 5]) == (5, [WaitPast, LastReadable])
    horizon = strict()
    assert play(horizon.wait(LEDGER, 4, 1.0), [5, OPEN]) == (5, [WaitPast, LookAtLedger])
    assert play(horizon.wait(LEDGER, 5, 1.0), [5]) == (5, [WaitPast])
    assert play(horizon.wait(LEDGER, 5, 1.0), [6, RECOVERING]) == (5, [WaitPast, LookAtLedger])


def test_what_a_wait_told_is_looked_at_wherever_it_comes() -> None:
    """Also first of all, and behind what was refused: one look each, and nobody is asked again."""
    horizon = strict()
    away = Unavailable("away")
    assert play(horizon.last_entry(LEDGER), [away]) == (-1, [LastReadable, Pause])
    assert play(horizon.wait(LEDGER, -1, 9.0), [4, RECOVERING]) == (-1, [WaitPast, LookAtLedger])
    assert play(horizon.wait(LEDGER, -1, 9.0), [6, RECOVERING]) == (-1, [WaitPast, LookAtLedger])
    assert play(horizon.wait(LEDGER, -1, 9.0), [6, OPEN]) == (6, [WaitPast, LookAtLedger])
