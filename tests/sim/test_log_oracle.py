"""A silent checker is the worst bug: each check of the oracle refuses a history made to break
it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from dlog.admin.summary import Truncation
from dlog.errors import Outcome, Timeout, Truncated, Unsupported, WriterClosed
from dlog.ids import MessageId
from dlog.ledger.store import ClosedLedger, LedgerSpec
from dlog.meta.cas import Seen
from dlog.meta.listed import End, PageRef, Point, Sealed, WriterMark
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import page_to_bytes
from dlog.options import LogOptions
from dlog.reader.core import ReaderCore
from dlog.reader.message import Message
from dlog.reader.places import EARLIEST
from dlog.reader.resolve import Never, Present, Resolved, TooLate, Undecided
from dlog.testing.sim.abstract_ledgers import AbstractLedger
from dlog.testing.sim.log_life import SimTruncator
from dlog.testing.sim.log_oracle import LAYOUT, NAME, PATH, Handle, Sent
from dlog.testing.sim.log_readers import SimReader
from dlog.testing.sim.log_swarm import LogWeather
from dlog.testing.sim.log_world import LogHistory, abstract_scene
from dlog.testing.sim.tape import of_tape
from dlog.testing.sim.world import Violation, World
from dlog.wire.batch import encode
from dlog.writer.core import WriterCore
from dlog.writer.pipe import Pipe
from dlog.writer.segments import seam_entry

UID = "u"
META = LogMeta(UID, LogOptions(), epoch=1, writer=WriterMark("t", "w", 0)).listed(5)


def entries(base_seq: int, count: int) -> list[bytes]:
    """Of a segment with so many entries of one message behind its seam."""
    seam = seam_entry(META, number=1, epoch=1, predecessor=(-1, -1), base_seq=base_seq, now_us=0)
    data = [encode([b"x"], first_seq=i, timestamp_us=0) for i in range(count)]
    return [b"", *(b"".join(bytes(each) for each in entry) for entry in (seam, *data))]


class Scene:
    """A log with one open segment, ledger 5, and one writer."""

    def __init__(self) -> None:
        self.world = World(of_tape(()))
        scene = self.all = abstract_scene(self.world, LogWeather())
        self.meta, self.ledgers, self.oracle = scene.meta, scene.ledgers, scene.oracle
        self.ledger = self.ledgers.ledgers[5] = AbstractLedger(5, LedgerSpec(), entries(0, 8))
        self.ledger.committed = self.ledger.published = 9
        self.write(META)
        self.handle: Handle = self.oracle.opened("w", 1, UID)
        self.first: Sent = self.oracle.invoked(self.handle, b"a", 0)
        self.second: Sent = self.oracle.invoked(self.handle, b"b", 1)

    def write(self, meta: LogMeta) -> None:
        self.meta.store(PATH, meta.to_bytes())

    def ack(self, sent: Sent, entry_id: int, seq: int = 0) -> None:
        self.oracle.acked(sent, MessageId(5, entry_id, 0), seq, visible=True)

    def message(self, value: bytes, entry_id: int, seq: int, epoch: int = 1) -> Message:
        return Message(5, entry_id, 0, seq, None, value, (), 7, None, epoch)

    def deliver(self, message: Message) -> None:
        self.oracle.on_delivered("r", UID, message)

    def log(self, *messages: Message) -> None:
        self.oracle.check_log(UID, list(messages))


def _refused() -> WriterClosed:
    return WriterClosed("closed")


def _two_acks(scene: Scene) -> None:
    scene.ack(scene.first, 2, 0)
    scene.ack(scene.second, 3, 1)


def _lost_ack(scene: Scene) -> None:
    _two_acks(scene)
    scene.log(scene.message(b"a", 2, 0))


def _acked_elsewhere(scene: Scene) -> None:
    scene.ack(scene.first, 2)
    scene.log(scene.message(b"a", 3, 0))


def _not_durable(scene: Scene) -> None:
    scene.ledger.committed = 1
    scene.ack(scene.first, 2)


def _not_visible(scene: Scene) -> None:
    scene.ledger.published = 1
    scene.ack(scene.first, 2)


def _delivered_after_refusal(scene: Scene) -> None:
    scene.oracle.refused(scene.first, _refused())
    scene.deliver(scene.message(b"a", 2, 0))


def _refused_after_delivery(scene: Scene) -> None:
    scene.deliver(scene.message(b"a", 2, 0))
    scene.oracle.refused(scene.first, _refused())


def _refused_in_the_log(scene: Scene) -> None:
    scene.oracle.refused(scene.first, _refused())
    scene.log(scene.message(b"a", 2, 0))


def _later_without_earlier(scene: Scene) -> None:
    for sent in (scene.first, scene.second):
        scene.oracle.refused(sent, Timeout("?", outcome=Outcome.UNKNOWN))
    scene.log(scene.message(b"b", 2, 0))


def _ack_after_failure(scene: Scene) -> None:
    scene.oracle.refused(scene.first, _refused())
    scene.ack(scene.second, 2)


def _gap(scene: Scene) -> None:
    scene.log(scene.message(b"a", 2, 0), scene.message(b"b", 3, 2))


def _ids_go_back(scene: Scene) -> None:
    scene.ack(scene.first, 3)
    late = scene.oracle.invoked(scene.handle, b"c", 2)
    scene.handle.resolved = late.idx
    scene.ack(late, 2)


def _delivered_twice(scene: Scene) -> None:
    scene.deliver(scene.message(b"a", 2, 0))
    scene.deliver(scene.message(b"b", 3, 0))


def _delivered_then_gone(scene: Scene) -> None:
    scene.deliver(scene.message(b"b", 2, 0))
    scene.log()


def _epochs_go_back(scene: Scene) -> None:
    scene.log(scene.message(b"a", 2, 0, epoch=2), scene.message(b"b", 3, 1))


def _number_again(scene: Scene) -> None:
    scene.write(dataclasses.replace(META, segments=(), ledger_floor=-1, next_number=1).listed(6))


def _sealed_open(scene: Scene) -> None:
    scene.write(META.sealed(1, Sealed(4, 0, 0, 2, 0, 0)))


def _sealed_changes(scene: Scene) -> None:
    scene.ledger.closed = ClosedLedger(4, 0)
    scene.write(META.sealed(1, Sealed(4, 0, 0, 2, 0, 0)))
    scene.write(META.sealed(1, Sealed(4, 0, 0, 3, 0, 0)))


def _acked_segment_dropped(scene: Scene) -> None:
    scene.ack(scene.first, 2)
    scene.write(META.dropped(1, 0))


def _closed_below(scene: Scene) -> None:
    scene.ack(scene.first, 3)
    scene.ledgers.close_at(scene.ledger, 2)


def _opened_beside_an_open_ledger(scene: Scene) -> None:
    scene.oracle.opened("v", 2, UID)


def _id_given_twice(scene: Scene) -> None:
    scene.ack(scene.first, 2)
    scene.second.after = MessageId(-1, -1, -1)
    scene.ack(scene.second, 2)


def _other_bytes(scene: Scene) -> None:
    scene.ack(scene.first, 2)
    scene.deliver(scene.message(b"A", 2, 0))


def _closed_twice(scene: Scene) -> None:
    scene.ledgers.close_at(scene.ledger, 4)
    scene.ledgers.close_at(scene.ledger, 5)


def _told_another_end(scene: Scene) -> None:
    scene.oracle.on_end_told("w", 5, ClosedLedger(4, 0))
    scene.oracle.on_end_told("v", 5, ClosedLedger(3, 0))


def _closed_below_a_delivery(scene: Scene) -> None:
    scene.deliver(scene.message(b"a", 3, 0))
    scene.ledgers.close_at(scene.ledger, 2)


def _delivered_segment_dropped(scene: Scene) -> None:
    scene.deliver(scene.message(b"a", 3, 0))
    scene.write(META.dropped(1, 0))


def _listed_twice(scene: Scene) -> None:
    twice = dataclasses.replace(META.segments[0], number=2)
    scene.write(dataclasses.replace(META, segments=(twice,), next_number=3))


def _never_stored(scene: Scene) -> None:
    scene.oracle.on_seen("w", Seen(META.listed(6), 1))


def _ack_before_all_before_is_closed(scene: Scene) -> None:
    later = scene.ledgers.ledgers[6] = AbstractLedger(6, LedgerSpec(), [b""] * 4)
    later.committed = later.published = 3
    scene.write(META.listed(6))
    scene.oracle.acked(scene.first, MessageId(6, 2, 0), 0, visible=True)


def _more_than_the_window(scene: Scene) -> None:
    pipe = Pipe(1, 5, 0, (-1, -1), 0.0)
    pipe.last_pushed = 9
    core = SimpleNamespace(pipes=[pipe], closed=[], dropped=[], seen=Seen(META, 1))
    scene.oracle.on_step("w", cast(WriterCore, core), 2)


def _entry_gone(scene: Scene) -> None:
    scene.ledger.stored = []
    scene.ledger.closed = ClosedLedger(3, 0)
    scene.write(META.sealed(1, Sealed(3, 0, 0, 1, 0, 0)))
    scene.oracle.truth()


def _unsealed_at_the_end(scene: Scene) -> None:
    scene.oracle.truth()


def _wait_for_ever(scene: Scene) -> None:
    LogHistory(scene.all)._wait(lambda: False, "something that never comes")


def _round_and_round(scene: Scene) -> None:
    def again() -> None:
        scene.world.after(0.0, again)

    again()
    scene.world.run()


def _reader(scene: Scene, *, follow: bool = True) -> SimReader:
    reader = SimReader(scene.all, "r", follow=follow)
    reader.uid = UID
    reader.start = EARLIEST
    return reader


def _a_reader_skips(scene: Scene) -> None:
    reader = _reader(scene)
    reader._one(scene.message(b"a", 2, 0))
    reader._one(scene.message(b"b", 4, 2))


def _a_reader_starts_elsewhere(scene: Scene) -> None:
    reader = _reader(scene)
    reader._one(scene.message(b"b", 3, 1))
    reader.check_start([scene.message(b"a", 2, 0), scene.message(b"b", 3, 1)])


def _a_follower_ends(scene: Scene) -> None:
    reader = _reader(scene)
    view = SimpleNamespace(meta=META)
    reader.core = cast(ReaderCore, SimpleNamespace(view=view))
    reader._walked(reader.core, None)


def _a_reader_is_refused_for_good(scene: Scene) -> None:
    reader = _reader(scene)
    reader._uid_at_start = UID
    reader._failed(Unsupported("never mind"))


def _a_read_above_what_is_published(scene: Scene) -> None:
    scene.ledger.published = 2
    reader = _reader(scene)
    reader.ledgers.read_run(5, 2, 3, lambda value, error: None)
    scene.world.run()


def _another_seq_than_its_token(scene: Scene) -> None:
    scene.ack(scene.first, 2, 1)


def _answered(scene: Scene, answer: Resolved, *, visible_before: bool = False) -> None:
    scene.oracle.resolved(scene.first, answer, visible_before=visible_before)


def _never_and_acked(scene: Scene) -> None:
    _answered(scene, Never())
    scene.ack(scene.first, 2)


def _acked_and_never(scene: Scene) -> None:
    scene.ack(scene.first, 2)
    _answered(scene, Never())


def _acked_and_undecided(scene: Scene) -> None:
    scene.ack(scene.first, 2)
    _answered(scene, Undecided("?"), visible_before=True)


def _present_and_refused(scene: Scene) -> None:
    scene.oracle.refused(scene.first, _refused())
    _answered(scene, Present(MessageId(5, 2, 0)))


def _present_elsewhere(scene: Scene) -> None:
    scene.ack(scene.first, 2)
    _answered(scene, Present(MessageId(5, 3, 0)))


def _present_and_lost(scene: Scene) -> None:
    _answered(scene, Present(MessageId(5, 2, 0)))
    scene.log()


def _never_and_there(scene: Scene) -> None:
    _answered(scene, Never())
    scene.log(scene.message(b"a", 2, 0))


def _another_answer(scene: Scene) -> None:
    _answered(scene, Present(MessageId(5, 2, 0)))
    _answered(scene, Never())


def _numbered(scene: Scene, seq: int, number: int) -> Sent:
    return scene.oracle.invoked(scene.handle, b"n%d" % seq, seq, (7, number))


def _number_acked_twice(scene: Scene) -> None:
    scene.handle.sent.clear()
    scene.ack(_numbered(scene, 0, 3), 2, 0)
    scene.ack(_numbered(scene, 1, 3), 3, 1)


def _there_elsewhere(scene: Scene) -> None:
    scene.handle.sent.clear()
    scene.ack(_numbered(scene, 0, 3), 2, 0)
    scene.oracle.told_there(scene.handle, (7, 3), MessageId(5, 3, 0))


def _there_and_lost(scene: Scene) -> None:
    scene.oracle.told_there(scene.handle, (7, 3), None)
    scene.log()


def _number_there_twice(scene: Scene) -> None:
    entry = b"".join(encode([b"a"], first_seq=0, timestamp_us=1, producer=(7, 3)))
    scene.ledger.stored = [entry, entry]
    scene.ledger.closed = ClosedLedger(1, 0)
    scene.write(META.sealed(1, Sealed(1, 0, 0, 2, 0, 0)))
    scene.oracle.truth()


# --- the other end


def _sealed_behind(scene: Scene) -> LogMeta:
    """Segment 1 holds seqs 0 and 1, and is sealed; segment 2 is open."""
    _two_acks(scene)
    scene.ledger.closed = ClosedLedger(3, 0)
    later = scene.ledgers.ledgers[6] = AbstractLedger(6, LedgerSpec(), entries(2, 0))
    later.committed = later.published = 1
    meta = META.sealed(1, Sealed(3, 0, 0, 2, 0, 0)).listed(6)
    scene.write(meta)
    return meta


def _a_point_goes_back(scene: Scene) -> None:
    meta = _sealed_behind(scene).truncated(Point(2))
    scene.write(meta)
    scene.write(dataclasses.replace(meta, truncate_before=Point(1)))


def _messages_to_come_are_truncated(scene: Scene) -> None:
    scene.write(_sealed_behind(scene).truncated(Point(3)))


def _what_is_held_is_truncated(scene: Scene) -> None:
    meta = _sealed_behind(scene)
    scene.oracle.heads.hold_returned(UID, "h", 1)
    scene.write(meta.truncated(Point(2)))


def _a_hold_on_what_is_gone(scene: Scene) -> None:
    scene.write(_sealed_behind(scene).truncated(Point(2)))
    scene.oracle.heads.hold_returned(UID, "h", 1)


def _leaves_before_it_is_truncated(scene: Scene) -> None:
    meta = _sealed_behind(scene)
    scene.write(dataclasses.replace(meta, segments=meta.segments[1:]))


def _leaves_and_waits_for_nothing(scene: Scene) -> None:
    meta = _sealed_behind(scene).truncated(Point(2))
    scene.write(dataclasses.replace(meta, segments=meta.segments[1:]))


def _deleted_and_forgotten_before(scene: Scene) -> None:
    _forgotten(scene)
    scene.ledgers.delete(5)


def _forgotten(scene: Scene) -> None:
    swept = _sealed_behind(scene).truncated(Point(2)).swept(0)
    scene.write(swept)
    scene.write(swept.forgotten({5}, ()))


def _deleted_and_not_closed(scene: Scene) -> None:
    scene.write(META.dropped(1, 0))
    scene.ledgers.delete(5)


def _deleted_in_its_grace(scene: Scene) -> None:
    scene.write(_sealed_behind(scene).truncated(Point(2)).swept(1_000_000))
    scene.oracle.heads.on_collect("c", 5, 2_000_000)


def _waits_for_ever(scene: Scene) -> None:
    scene.write(_sealed_behind(scene).truncated(Point(2)).swept(0))
    scene.oracle.heads.check_collected(UID)


def _kept_though_truncated(scene: Scene) -> None:
    scene.write(_sealed_behind(scene).truncated(Point(2)))
    scene.oracle.heads.check_collected(UID)


def _in_no_list(scene: Scene) -> None:
    _forgotten(scene)
    scene.oracle.heads.check_collected(UID)


def _a_page_that_nothing_names(scene: Scene) -> None:
    meta = _sealed_behind(scene)
    scene.meta.store(LAYOUT.page(NAME, 0), page_to_bytes(meta.segments[:1]))
    scene.oracle.heads.check_collected(UID)


def _a_page_is_not_what_the_list_says(scene: Scene) -> None:
    meta = _sealed_behind(scene)
    ref = PageRef.of_segments(meta.segments[:1])
    scene.write(dataclasses.replace(meta, segments=meta.segments[1:], pages=(ref,)))


def _a_hold_vanished(scene: Scene) -> None:
    _sealed_behind(scene)
    scene.oracle.heads.hold_returned(UID, "h", 1)
    scene.oracle.heads.check_collected(UID)


def _a_terminated_log_goes_on(scene: Scene) -> None:
    scene.ledger.closed = ClosedLedger(3, 0)
    over = META.sealed(1, Sealed(3, 0, 0, 2, 0, 0)).terminated()
    scene.write(over)
    scene.write(dataclasses.replace(over, end=End(2, 6, 3, 4)))


def _truncated_is_delivered(scene: Scene) -> None:
    _sealed_behind(scene)
    scene.oracle.on_delivered("r", UID, scene.message(b"a", 2, 0), Point(1))


def _told_of_a_truncation_that_is_none(scene: Scene) -> None:
    reader = _reader(scene)
    reader._uid_at_start = UID
    reader._one(scene.message(b"a", 2, 0))
    reader._failed(Truncated("gone", new_head=1))


def _jumps_too_far(scene: Scene) -> None:
    reader = SimReader(scene.all, "r", follow=True, jumps=True)
    reader.uid = UID
    reader._one(scene.message(b"a", 2, 0))
    scene.write(META.truncated(Point(1)))
    reader._one(scene.message(b"b", 4, 2))


def _truncates_less_than_it_says(scene: Scene) -> None:
    _sealed_behind(scene)
    truncator = SimTruncator(scene.all, "t", force=False)
    told = Truncation("orders", "seq 2", True, False, "seq 2", 2, (), (), 0, 0)
    truncator.judge(UID, told, Point(2).seq)


BAD: list[tuple[str, Callable[[Scene], None]]] = [
    ("I1: an acked message is lost", _lost_ack),
    ("I1: acked elsewhere", _acked_elsewhere),
    ("I1: an entry was acked that is not durable", _not_durable),
    ("I3c", _not_visible),
    ("I2: a refused message was delivered", _delivered_after_refusal),
    ("I2: a refused message was delivered", _refused_after_delivery),
    ("I24", _refused_in_the_log),
    ("I2", lambda scene: scene.deliver(scene.message(b"nobody's", 2, 0))),
    ("I4b", _later_without_earlier),
    ("I4a: an ack after a failure", _ack_after_failure),
    ("I4a: tickets resolve out of order", lambda scene: scene.ack(scene.second, 2)),
    ("I6", _ids_go_back),
    ("I3b: two messages at one seq", _delivered_twice),
    ("I3b: a delivered message is not in the log", _delivered_then_gone),
    ("I5: seqs have a gap", _gap),
    ("I19: messages behind the head", lambda scene: scene.log(scene.message(b"a", 2, 1))),
    ("I7: epochs go back", _epochs_go_back),
    ("I7: an epoch was given twice", lambda scene: scene.oracle.opened("v", 1, UID)),
    ("I15: a number was used again", _number_again),
    ("I15: a segment is sealed where", _sealed_open),
    ("I15: a listed ledger was deleted", lambda scene: scene.ledgers.delete(5)),
    ("I8", _sealed_changes),
    ("I1: a segment with an acked message left", _acked_segment_dropped),
    ("I9", _closed_below),
    ("I16", lambda scene: scene.oracle.on_submit(6, 1)),
    ("I16: an ack before all before is closed", _ack_before_all_before_is_closed),
    ("I3a", _a_read_above_what_is_published),
    ("I3b: a segment with a delivered message left", _delivered_segment_dropped),
    ("I6: an id was given twice", _id_given_twice),
    ("I7: a writer opened beside", _opened_beside_an_open_ledger),
    ("I8: an entry of a closed ledger is gone", _entry_gone),
    ("I9: a ledger was closed below a delivered", _closed_below_a_delivery),
    ("I10: a ledger was closed twice", _closed_twice),
    ("I10: v was told another end", _told_another_end),
    ("I13", _other_bytes),
    ("I17: not what follows", _a_reader_skips),
    ("I17: a start", _a_reader_starts_elsewhere),
    ("I17: a following reader came to an end", _a_follower_ends),
    ("I17: r was told", _a_reader_is_refused_for_good),
    ("I23: a ledger was listed twice", _listed_twice),
    ("I23: nothing like this was stored", _never_stored),
    ("I25: more in flight", _more_than_the_window),
    ("I24: a token named another seq", _another_seq_than_its_token),
    ("I24: an ack after", _never_and_acked),
    ("I24: never, and it is there", _acked_and_never),
    ("I24: undecided, and it was acked", _acked_and_undecided),
    ("I24: present, and it was refused", _present_and_refused),
    ("I24: present elsewhere", _present_elsewhere),
    ("I24: present, and it is not there", _present_and_lost),
    ("I24: never, and it is there", _never_and_there),
    ("I24: another answer", _another_answer),
    ("I24: too late to tell", lambda scene: _answered(scene, TooLate("?"))),
    ("I29: a number was acked again", _number_acked_twice),
    ("I29: a number is there, but elsewhere", _there_elsewhere),
    ("I29: a number was answered and is lost", _there_and_lost),
    ("I29: a number is there twice", _number_there_twice),
    ("I27: a segment is not sealed", _unsealed_at_the_end),
    ("I27: after healing", _wait_for_ever),
    (r"I27 \(endless\): more than", _round_and_round),
    ("I19: a truncation point went back", _a_point_goes_back),
    ("I19: messages to come were truncated", _messages_to_come_are_truncated),
    ("I19: what is held was truncated", _what_is_held_is_truncated),
    ("I19: a hold was made on what is gone", _a_hold_on_what_is_gone),
    ("I15: a sealed segment left the list", _leaves_before_it_is_truncated),
    ("I26: a segment left the list and waits for no", _leaves_and_waits_for_nothing),
    ("I19: a ledger was deleted that does not wait", _deleted_and_forgotten_before),
    ("I19: a ledger was deleted that is not closed", _deleted_and_not_closed),
    ("I19: a ledger is deleted in its grace", _deleted_in_its_grace),
    ("I26: something waits for its deletion for ever", _waits_for_ever),
    ("I26: what was truncated is kept", _kept_though_truncated),
    ("I26: a ledger is in no list and still there", _in_no_list),
    ("I26: a page that nothing names", _a_page_that_nothing_names),
    ("I15: a page is not what the list says", _a_page_is_not_what_the_list_says),
    ("I19: a hold vanished", _a_hold_vanished),
    ("I7: a terminated log goes on", _a_terminated_log_goes_on),
    ("I18: what the reader knew to be truncated", _truncated_is_delivered),
    ("I18: told of a truncation", _told_of_a_truncation_that_is_none),
    ("I18: skipped", _jumps_too_far),
    ("I19: a truncation was told that is not", _truncates_less_than_it_says),
    ("I15: epoch went back", lambda scene: scene.write(dataclasses.replace(META, epoch=0))),
]


@pytest.mark.parametrize(
    ("promise", "history"), BAD, ids=[f"{p}-{i}" for i, (p, _) in enumerate(BAD)]
)
def test_a_bad_history_is_refused(promise: str, history: Callable[[Scene], None]) -> None:
    with pytest.raises(Violation, match=promise):
        history(Scene())


def test_a_good_history_passes() -> None:
    scene = Scene()
    _two_acks(scene)
    messages = [scene.message(b"a", 2, 0), scene.message(b"b", 3, 1)]
    for message in messages:
        scene.deliver(message)
    scene.log(*messages)
