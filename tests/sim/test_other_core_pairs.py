"""What the other cores hear in states in which histories hardly ever tell them anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlog.errors import Fenced
from dlog.ledger.bookkeeper.core.entry_read import HEDGE_MS_FIRST
from dlog.ledger.bookkeeper.core.tail_read import LacAnswer
from dlog.ledger.store import ClosedLedger
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v3_replies import ReadBody
from dlog.wire.ledger_metadata import LedgerState
from dlog.writer.core import WriterState
from tests.unit.ledger.bookkeeper.link_tools import Control, Data, add_frame
from tests.unit.ledger.bookkeeper.recovery_tools import ABC, metadata, packet
from tests.unit.ledger.bookkeeper.test_entry_read import asked, entry, new_read
from tests.unit.ledger.bookkeeper.test_recovery import NONE, fenced
from tests.unit.ledger.bookkeeper.test_tail_read import DIGEST, METADATA, polls, tail
from tests.unit.writer.test_core import FIRST, Scene

OPEN, IN_RECOVERY = LedgerState.OPEN, LedgerState.IN_RECOVERY


def at(state: LedgerState) -> object:
    if state is LedgerState.CLOSED:
        return replace(METADATA, state=state, last_entry_id=4, length_bytes=9)
    return replace(METADATA, state=state)


@pytest.mark.parametrize("state", list(LedgerState))
def test_a_deleted_ledger_stays_deleted(state: LedgerState) -> None:
    core = tail(at(state), knows=3)  # type: ignore[arg-type]
    former = polls(core)
    core.on_deleted()
    core.on_deleted()
    for read in map(at, LedgerState):
        core.on_metadata(read)  # type: ignore[arg-type]
        assert core.readable == -1
        assert core.asks(0.0) == ([], [])
    poll = former.get("b0") or next(iter(polls(tail(METADATA)).values()))
    core.on_poll(poll, Answer.OK, ReadBody(7, -1, None, 9, 0), DIGEST, 1.0)
    core.on_poll(poll, Answer.TIMED_OUT, None, DIGEST, 1.0)
    core.on_proof_answer(poll, LacAnswer(Answer.OK, 9), 1.0)
    core.on_lac_answer("b0", LacAnswer(Answer.OK, 9), 1.0)
    assert core.readable == -1
    assert core.take_brought(0) is None
    assert core.is_ended
    assert core.look_again_s() == float("inf")


def test_a_lost_connection_means_nothing_while_a_ledger_is_fenced() -> None:
    played = fenced(packet(0))
    played.core.on_down("b", now_s=0.0)
    played.fence("b", packet(0))
    assert played.core.is_covered


@pytest.mark.parametrize("late", [Answer.NO_ENTRY, Answer.IO_FAILED])
def test_a_late_fence_changes_no_size(late: Answer) -> None:
    """Nothing was found in the last fragment; the size of the entry before it is looked up, and c,
    who was asked first of all, speaks at last."""
    played = fenced(NONE, NONE, stored=metadata((0, ABC), (6, ("a", "b", "c"))))
    played.read("a", 6, NONE)
    played.read("b", 6, NONE)
    assert played.found() is None
    played.fence("c", late)
    assert played.found() is None
    played.read("c", 5, packet(5))
    assert played.end().last_entry == 5


def test_whatever_comes_to_a_read_that_is_over_only_teaches() -> None:
    hedge_s = HEDGE_MS_FIRST / 1000
    read = new_read()
    first, second, third = asked(read), asked(read, hedge_s), asked(read, 2 * hedge_s)
    read.on_answer(second, Answer.IO_FAILED, [], 0.6)
    assert not read.is_over
    read.on_answer(first, Answer.OK, [entry(0)], 0.7)
    assert read.is_over
    assert read.winner == "b0"
    read.on_answer(third, Answer.TIMED_OUT, [], 0.8)
    read.on_unreached(third, 0.9)
    assert read.winner == "b0"
    assert [bytes(each) for each in read.payloads] == [b"payload"]


def test_a_connection_ends_once() -> None:
    for link in (Data(), Control()):
        link.down(Answer.DISCONNECTED)
        link.down(Answer.CLIENT_CLOSED)
        assert link.end is Answer.DISCONNECTED


def test_a_connection_that_is_down_takes_adds_and_sends_nothing() -> None:
    link = Data()
    link.down(Answer.DISCONNECTED)
    frame = add_frame()
    link.send_adds(7, frame, entries=1, bytes=len(frame))
    assert link.sent == []
    assert link.entries_in_flight == 0


def test_a_dead_writer_acknowledges_nothing_more() -> None:
    scene = Scene()
    scene.push(b"a")
    error = Fenced("somebody took over")
    scene.core.die(error)
    scene.core.on_confirmed(FIRST, scene.core.current.last_pushed)
    scene.core.on_published(FIRST, scene.core.current.last_pushed)
    scene.core.on_failed(FIRST, Fenced("late"))
    scene.core.die(Fenced("again"))
    assert scene.released() == []
    assert scene.core.state is WriterState.DEAD
    assert scene.core.error is error


def test_a_writer_that_closed_hears_nothing_new() -> None:
    scene = Scene()
    scene.push(b"a")
    core, last = scene.core, scene.core.current.last_pushed
    core.move(WriterState.CLOSING)
    core.on_closed(core.current, ClosedLedger(last, 100))
    assert scene.released() == [b"a"]
    core.move(WriterState.CLOSED)
    core.on_confirmed(FIRST, last)
    core.on_published(FIRST, last)
    core.on_failed(FIRST, Fenced("late"))
    core.die(Fenced("late"))
    assert scene.released() == []
    assert core.state is WriterState.CLOSED
    assert core.error is None


def test_what_a_close_kept_is_acknowledged_whoever_died_meanwhile() -> None:
    scene = Scene()
    scene.push(b"a")
    scene.core.die(Fenced("somebody took over"))
    pipe = scene.core.current
    scene.core.on_closed(pipe, ClosedLedger(pipe.last_pushed, 100))
    assert scene.released() == [b"a"]
    assert scene.core.take_unacknowledged() == []
