"""Numbers of producers over the life of a log (I29): tables behind each seam, and what a takeover
makes of them."""

from __future__ import annotations

import pytest

from dlog import limits
from dlog.errors import AlreadyExists, NotFound
from dlog.ids import MessageId
from dlog.testing.sim.abstract_ledgers import AbstractLedger
from dlog.testing.sim.log_writers import SimWriter
from dlog.wire.batch import ControlKind, ProducerTable, decode
from tests.scenarios.stage import Stage

P, Q = 3, 4


def ready(stage: Stage, name: str) -> SimWriter:
    """Open, in a log that says that it has producers."""
    writer = stage.opened(name)
    stage.until(writer.allows_numbers)
    return writer


def tables(ledger: AbstractLedger) -> dict[int, ProducerTable]:
    """By entry."""
    found = {}
    for entry_id, raw in enumerate(ledger.stored):
        entry = decode(raw, where="")
        if entry.control is ControlKind.PRODUCERS:
            found[entry_id] = ProducerTable.from_bytes(entry.control_body, where="")
    return found


def knows(writer: SimWriter, producer_id: int, number: int) -> MessageId | None:
    """The id it is refused with."""
    with pytest.raises(AlreadyExists) as caught:
        writer.dedup.find(producer_id, number)
    id: MessageId | None = caught.value.id
    return id


def test_a_log_without_producers_pays_nothing() -> None:
    stage = Stage()
    old = stage.opened("old")
    old.submit(1)
    stage.go_on(50)
    old.crash()
    new = stage.opened("new")
    stage.go_on(50)
    assert not stage.log.producers
    assert "takeover.counted" not in stage.world.points
    assert all(not tables(each) for each in stage.ledgers.ledgers.values())
    new.close()
    stage.go_on()


def test_the_log_says_so_before_the_first_number() -> None:
    """Else a takeover would not look for it: the compare-and-set comes first, then a table, then
    the message."""
    stage = Stage()
    writer = stage.opened("w")
    writer.submit(1)
    stage.go_on(50)
    assert not writer.allows_numbers()
    stage.until(writer.allows_numbers)
    assert stage.log.producers
    writer.submit(2, (P, 0))
    stage.go_on(50)
    assert list(tables(stage.newest()).values()) == [ProducerTable()]
    entries = [decode(raw, where="") for raw in stage.newest().stored[2:]]
    assert [(each.control, each.producer) for each in entries] == [
        (None, None),
        (ControlKind.PRODUCERS, None),
        (None, (P, 0)),
    ]


def test_every_segment_begins_with_a_table_of_all_before() -> None:
    """Also of what was sent to the old ledger and is not acked yet: whoever keeps the new one kept
    that."""
    stage = Stage(ledger_store_ms=20.0)
    writer = ready(stage, "w")
    writer.submit(1, (P, 7))
    writer.ask_rotation()
    stage.until(lambda: len(stage.log.unsealed) == 2)
    writer.submit(1, (Q, 0))
    stage.until(lambda: 2 in tables(stage.newest()))
    rows = tables(stage.newest())[2].rows
    assert {(row.producer_id, row.number) for row in rows} >= {(P, 7)}
    stage.go_on()
    writer.submit(1, (P, 8))
    writer.close()
    stage.until(lambda: writer.is_closed)
    last = max(tables(stage.newest()))
    assert last == len(stage.newest().stored) - 1
    final = {row.producer_id: MessageId(*row[2:]) for row in tables(stage.newest())[last].rows}
    by_number = {sent.number: sent.id for sent in writer.handle.sent}  # type: ignore[union-attr]
    assert final == {P: by_number[P, 8], Q: by_number[Q, 0]}


def test_a_takeover_reads_back_to_the_newest_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_EVERY_ENTRIES", 4)
    stage = Stage(table_every=4)
    old = ready(stage, "old")
    for number in range(10):
        old.submit(1, (P, number))
        stage.go_on(20)
    old.submit(1, (Q, 5))
    stage.go_on(50)
    assert len(tables(stage.newest())) > 2
    old.crash()
    new = stage.opened("new")
    sent = old.handle.sent  # type: ignore[union-attr]
    assert knows(new, P, 9) == sent[9].id
    assert knows(new, P, 4) is None
    assert knows(new, Q, 5) == sent[10].id
    assert new.dedup.find(P, 10) is new.dedup.find(Q, 6) is new.dedup.find(99, 5) is None


def test_what_recovery_did_not_keep_is_new() -> None:
    """The table in the next segment names it, and goes with that segment."""
    stage = Stage()
    old = ready(stage, "old")
    old.submit(1, (P, 0))
    stage.go_on(100)
    stage.newest().held = True
    old.submit(1, (P, 1))
    old.ask_rotation()
    stage.until(lambda: len(stage.log.unsealed) == 2)
    stage.until(lambda: 2 in tables(stage.newest()))
    assert [row.number for row in tables(stage.newest())[2].rows] == [1]
    first, second = (stage.ledger(segment) for segment in stage.log.unsealed)
    old.crash()
    stage.close_by_a_stranger(first, first.committed)
    stage.close_by_a_stranger(second)
    new = stage.opened("new")
    assert knows(new, P, 0) is not None
    assert new.dedup.find(P, 1) is None


def test_segments_with_nothing_but_a_seam_are_looked_behind() -> None:
    """Writers that died right behind their seam leave no table."""
    stage = Stage()
    old = ready(stage, "old")
    old.submit(1, (P, 3))
    stage.go_on(50)
    old.crash()
    for name in ("b", "c"):
        number = len(stage.log.segments)
        dying = stage.writer(name)
        stage.until(lambda number=number: len(stage.log.segments) > number)  # type: ignore[misc]
        stage.until(lambda: len(stage.newest().stored) > 1)
        dying.crash()
        stage.close_by_a_stranger(stage.newest(), 1)
    new = stage.opened("new")
    assert [s.sealed.last_entry for s in stage.log.segments[-3:-1] if s.sealed] == [1, 1]
    assert knows(new, P, 3) is not None


def test_healing_keeps_the_numbers() -> None:
    """What the failed ledger kept is in the table behind the new seam, the rest is rebuilt behind
    that."""
    stage = Stage()
    writer = ready(stage, "w")
    writer.submit(1, (P, 0))
    stage.go_on(100)
    failed = stage.newest()
    end = len(failed.stored) - 1
    failed.held = True
    writer.submit(1, (P, 1))
    writer.submit(1, (Q, 0))
    stage.go_on(20)
    stage.close_by_a_stranger(failed, end)
    stage.until(lambda: writer.handle is not None and writer.handle.resolved == 3)
    assert [(row.producer_id, row.number) for row in tables(stage.newest())[2].rows] == [(P, 0)]
    writer.crash()
    new = stage.opened("new")
    sent = writer.handle.sent  # type: ignore[union-attr]
    assert knows(new, P, 1) == sent[1].id
    assert knows(new, Q, 0) == sent[2].id


def test_a_log_that_forgot_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(producers_max=2)
    old = ready(stage, "old")
    for producer_id in (1, 2, 1, 3):
        number = 5 if old.handle is not None and not old.handle.sent else 6
        old.submit(1, (producer_id, number if producer_id == 1 else 5))
        stage.go_on(50)
    old.crash()
    new = stage.opened("new")
    monkeypatch.setattr(limits, "PRODUCERS_MAX", 2)
    knows(new, 1, 6)
    knows(new, 3, 5)
    for number in (0, 5):
        with pytest.raises(NotFound, match="producer 2 is not known"):
            new.dedup.find(2, number)
    assert new.dedup.find(4, 0) is None
