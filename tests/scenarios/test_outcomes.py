"""What became of a message whose outcome was unknown (I24): each way it can end."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.ids import MessageId, Token
from dlog.meta.listed import Point
from dlog.reader.resolve import Never, Present, Resolved, TooLate, Undecided, resolve
from dlog.reader.segments import SegmentView
from dlog.testing.sim.clients import SimClient
from dlog.testing.sim.log_oracle import Sent
from dlog.testing.sim.log_writers import SimWriter
from tests.scenarios.stage import LAYOUT, NAME, Stage


def told(stage: Stage, sent: Sent | Token) -> Resolved:
    """What somebody is told who asks now."""
    answers: list[Any] = []
    asker = SimClient(stage.scene, "asker")
    token = sent.token if isinstance(sent, Sent) else sent
    view = SegmentView(NAME, LAYOUT, token.log_uid, tail="strict")
    asker.run(resolve(view, token), lambda answer, error: answers.append((answer, error)))
    stage.until(lambda: answers)
    answer, error = answers[0]
    assert error is None, error
    return answer  # type: ignore[no-any-return]


def sent_by(writer: SimWriter) -> list[Sent]:
    assert writer.handle is not None
    return writer.handle.sent


def acked(sent: Sent) -> Present:
    assert sent.id is not None
    return Present(sent.id)


def test_what_a_takeover_kept_is_present() -> None:
    """The writer died before it was told; the entry was on every replica, and recovery keeps it."""
    stage = Stage(ledger_store_ms=20.0)
    old = stage.opened("old")
    old.submit(1)
    stage.until(lambda: stage.newest().committed == 2)
    old.crash()
    assert stage.outcomes(old) == ["pending"]
    assert isinstance(told(stage, sent_by(old)[0]), Undecided)
    new = stage.opened("new")
    new.submit(1)
    new.close()
    stage.go_on()
    assert stage.read() == [b"old.0", b"new.0"]
    found = told(stage, sent_by(old)[0])
    assert isinstance(found, Present)
    assert found.id == stage.oracle.truth()[0].id


def test_what_a_takeover_cut_is_never_also_when_its_seq_is_given_again() -> None:
    stage = Stage(ledger_store_ms=20.0)
    old = stage.opened("old")
    old.submit(1)
    stage.until(lambda: old.handle is not None and old.handle.resolved == 1)
    stage.newest().held = True
    old.submit(2)
    stage.go_on(50)
    old.crash()
    stage.close_by_a_stranger(stage.newest(), 2)
    new = stage.opened("new")
    lost = sent_by(old)[1:]
    assert [told(stage, each) for each in lost] == [Never(), Never()]
    new.submit(1)
    stage.go_on()
    assert sent_by(new)[0].token.seq == lost[0].token.seq
    assert told(stage, sent_by(new)[0]) == acked(sent_by(new)[0])
    assert [told(stage, each) for each in lost] == [Never(), Never()]
    assert told(stage, sent_by(old)[0]) == acked(sent_by(old)[0])


def test_what_went_with_its_segment_is_never() -> None:
    """H3: the segment's predecessor was cut, so it is dropped, and nothing in it was acked."""
    stage = Stage()
    old = stage.opened("old")
    old.submit(1)
    stage.go_on(100)
    stage.newest().held = True
    old.submit(1)
    old.ask_rotation()
    stage.until(lambda: len(stage.log.unsealed) == 2)
    old.submit(1)
    stage.go_on(50)
    first, second = (stage.ledger(segment) for segment in stage.log.segments)
    old.crash()
    stage.close_by_a_stranger(first, first.committed)
    stage.close_by_a_stranger(second)
    assert isinstance(told(stage, sent_by(old)[2]), Undecided)
    stage.opened("new")
    assert [told(stage, each) for each in sent_by(old)[1:]] == [Never(), Never()]


def test_nothing_is_decided_while_a_takeover_is_under_way() -> None:
    """The log is claimed by another epoch, and what recovery keeps of the old one is not known."""
    stage = Stage(ledger_store_ms=5.0)
    old = stage.opened("old")
    old.submit(1)
    stage.until(lambda: len(stage.newest().stored) == 3)
    old.crash()
    new = stage.writer("new")
    stage.until(lambda: stage.log.epoch == 2)
    new.freeze()
    found = told(stage, sent_by(old)[0])
    assert isinstance(found, Undecided)
    assert "a takeover by new" in found.why
    new.thaw()
    stage.until(lambda: new.handle is not None)
    assert isinstance(told(stage, sent_by(old)[0]), Present)


def test_what_a_stranger_shows_is_not_present_before_it_is_decided() -> None:
    """Its write-back shows a message, and then it decides on an end below: an answer for good waits
    for that."""
    stage = Stage()
    old = stage.opened("old")
    old.submit(1)
    stage.go_on(100)
    ledger = stage.newest()
    ledger.held = True
    old.submit(1)
    stage.go_on(50)
    old.crash()
    stage.show_by_a_stranger(ledger)
    stage.world.after(200.0, lambda: stage.close_by_a_stranger(ledger, ledger.committed))
    assert isinstance(told(stage, sent_by(old)[1]), Undecided)
    stage.opened("new")
    assert [type(told(stage, each)) for each in sent_by(old)] == [Present, Never]


def test_a_healed_message_keeps_its_token() -> None:
    """Its ledger was closed by a stranger; it is rebuilt in another one, with the same seq."""
    stage = Stage()
    writer = stage.opened("w")
    writer.submit(1)
    stage.go_on(100)
    failed = stage.newest()
    failed.held = True
    writer.submit(2)
    stage.go_on(20)
    stage.close_by_a_stranger(failed, 2)
    failed.held = False
    stage.until(lambda: writer.handle is not None and writer.handle.resolved == 3)
    sent = sent_by(writer)
    assert [each.token.seq for each in sent] == [0, 1, 2]
    assert sent[1].id is not None
    assert sent[1].id.ledger_id > failed.id
    assert [told(stage, each) for each in sent] == [acked(each) for each in sent]


def test_a_closed_log_has_decided_everything() -> None:
    stage = Stage()
    writer = stage.opened("w")
    writer.submit(2)
    stage.go_on()
    token = sent_by(writer)[0].token
    beyond = Token(token.log_uid, 1, 2)
    assert isinstance(told(stage, beyond), Undecided)
    writer.close()
    stage.until(lambda: writer.is_closed)
    assert told(stage, beyond) == Never()
    assert told(stage, sent_by(writer)[1]) == acked(sent_by(writer)[1])


@pytest.mark.parametrize("way", ["seq", "id"])
def test_what_is_truncated_nobody_can_tell(way: str) -> None:
    stage = Stage()
    writer = stage.opened("w")
    for _ in range(3):
        writer.submit(1)
    writer.close()
    stage.until(lambda: writer.is_closed)
    sent = sent_by(writer)
    third = sent[2].id
    assert third is not None
    point = Point(seq=2) if way == "seq" else Point(0, *third)
    stage.meta.store(LAYOUT.log(NAME), stage.log.truncated(point).to_bytes())
    assert [type(told(stage, each)) for each in sent[:2]] == [TooLate, TooLate]
    assert told(stage, sent[2]) == Present(MessageId(*third))
