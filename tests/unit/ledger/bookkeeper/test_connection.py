"""Which answer belongs to which request: the rules, one by one."""

from __future__ import annotations

from functools import partial

import pytest

from dlog.errors import Broken, Corrupt, FormatError
from dlog.ledger.bookkeeper.core import connection
from dlog.limits import LAGGARD_MS_DEFAULT, LINK_BYTES_MAX, LINK_ENTRIES_MAX, LINK_OWED_MS_MAX
from dlog.wire.bookie_codes import Answer, ReturnCode
from dlog.wire.bookie_v2 import BatchReadReply, Flag, ReadReply
from dlog.wire.bookie_v3 import Operation, pack_force, pack_read_lac, pack_write_lac
from dlog.wire.bookie_v3_replies import Response
from tests.unit.ledger.bookkeeper.link_tools import (
    BIG,
    KEY,
    Control,
    Data,
    Sink,
    add_frame,
    add_reply,
    batch_reply,
    entry_of,
    framed,
    lac_response,
    read_reply,
)

# --- Adds


def test_adds_are_told_in_runs_to_the_sink_of_their_ledger() -> None:
    link, one, other = Data(), Sink(), Sink()
    link.attach(1, one)
    link.attach(0, other)
    link.receive(b"".join(add_reply(1, entry) for entry in range(3)))
    link.receive(add_reply(0, 0) + add_reply(1, 3) + add_reply(0, 1))
    assert one.told == [(Answer.OK, [0, 1, 2]), (Answer.OK, [3])]
    assert other.told == [(Answer.OK, [0, 1])]
    assert not link.notes


def test_each_answer_is_a_run_of_its_own() -> None:
    link, sink = Data(), Sink()
    link.attach(1, sink)
    link.receive(add_reply(1, 0) + add_reply(1, 1, ReturnCode.ETOOMANYREQUESTS) + add_reply(1, 2))
    assert sink.told == [(Answer.OK, [0]), (Answer.BUSY, [1]), (Answer.OK, [2])]
    assert link.notes == [Answer.BUSY]


def test_answers_for_nobody_are_counted_by_name() -> None:
    link, sink = Data(), Sink()
    link.attach(1, sink)
    link.detach(1)
    link.receive(add_reply(1, 0) + add_reply(1, 1) + read_reply(1, 0, None))
    link.receive(batch_reply(1, 0, 1, [entry_of(b"")]))
    link.receive(framed(bytes.fromhex("020300000a0178 1200".replace(" ", ""))))
    assert link.strays == {"add": 2, "read": 1, "batch read": 1, "authentication": 1}
    assert not sink.told
    assert link.is_up


def test_a_ledger_has_one_sink() -> None:
    link = Data()
    link.attach(1, Sink())
    with pytest.raises(Broken):
        link.attach(1, Sink())


def test_room_ends_at_the_limit_and_comes_back_at_half() -> None:
    link, sink = Data(), Sink()
    link.attach(1, sink)
    link.send_adds(1, add_frame(), entries=LINK_ENTRIES_MAX - 1, bytes=0)
    assert link.has_room
    link.send_adds(1, add_frame(), entries=1, bytes=0)
    assert not link.has_room
    link.settle(1, entries=LINK_ENTRIES_MAX // 2 - 1, bytes=0)
    assert (link.has_room, link.rooms) == (False, 0)
    link.settle(1, entries=1, bytes=0)
    assert (link.has_room, link.rooms) == (True, 1)


def test_room_counts_bytes_of_all_ledgers() -> None:
    link = Data()
    link.attach(1, Sink())
    link.attach(2, Sink())
    link.send_adds(1, add_frame(), entries=1, bytes=LINK_BYTES_MAX // 2)
    assert link.has_room
    link.send_adds(2, add_frame(), entries=1, bytes=LINK_BYTES_MAX // 2)
    assert not link.has_room
    link.detach(1)
    assert link.has_room
    assert (link.entries_in_flight, link.bytes_in_flight) == (1, LINK_BYTES_MAX // 2)


def test_room_by_bytes_comes_back_at_half() -> None:
    link = Data()
    link.attach(1, Sink())
    link.send_adds(1, add_frame(), entries=2, bytes=LINK_BYTES_MAX)
    link.settle(1, entries=1, bytes=LINK_BYTES_MAX // 2 - 1)
    assert not link.has_room
    link.settle(1, entries=0, bytes=1)
    assert link.has_room


def test_unsent_bytes_take_the_room_whatever_is_in_flight() -> None:
    link = Data()
    link.attach(1, Sink())
    link.clogged(True)
    assert not link.has_room
    link.send_adds(1, add_frame(), entries=1, bytes=5)
    link.settle(1, entries=1, bytes=5)
    assert not link.has_room
    link.clogged(False)
    assert link.has_room


def test_who_was_not_told_of_room_is_told_first_next_time() -> None:
    link = Data()
    told: list[int] = []

    class Greedy(Sink):
        def __init__(self, ledger_id: int) -> None:
            super().__init__()
            self.ledger_id = ledger_id

        def on_room(self, link: Data) -> None:
            told.append(self.ledger_id)
            link.send_adds(self.ledger_id, add_frame(), entries=LINK_ENTRIES_MAX, bytes=0)

    for ledger_id in range(3):
        link.attach(ledger_id, Greedy(ledger_id))
    for _ in range(4):
        link.tell_room()
        link.settle(told[-1], entries=LINK_ENTRIES_MAX, bytes=0)
    assert told == [0, 1, 2, 0]


def test_no_more_is_settled_than_was_sent() -> None:
    link = Data()
    link.attach(1, Sink())
    link.send_adds(1, add_frame(), entries=1, bytes=5)
    with pytest.raises(Broken):
        link.settle(1, entries=2, bytes=5)


def test_a_data_link_sends_nothing_but_the_binary_protocol() -> None:
    link = Data()
    link.attach(1, Sink())
    with pytest.raises(Broken):
        link.send_adds(1, pack_read_lac(1, 1), entries=1, bytes=5)
    assert not link.sent


# --- Silence


def test_a_bookie_that_says_nothing_to_adds_hangs() -> None:
    link, step_s = Data(), connection.SWEEP_S
    link.attach(1, Sink())
    link.send_adds(1, add_frame(), entries=1, bytes=5)
    now_s = 100.0
    for _ in range(int(LAGGARD_MS_DEFAULT / 1000 / step_s)):
        now_s += step_s
        link.sweep(now_s)
    assert link.hung == 0
    for _ in range(2):
        now_s += step_s
        link.sweep(now_s)
    assert link.hung == 1
    for _ in range(int(LAGGARD_MS_DEFAULT / 1000 / step_s) - 2):
        now_s += step_s
        link.sweep(now_s)
    assert link.hung == 1, "said once for so much silence"


def test_a_bookie_that_answers_somebody_does_not_hang() -> None:
    link, step_s = Data(), connection.SWEEP_S
    link.attach(1, Sink())
    link.send_adds(1, add_frame(), entries=1, bytes=5)
    for step in range(100):
        link.receive(add_reply(2, step))
        link.sweep(step * step_s)
    assert link.hung == 0


def test_nobody_is_blamed_for_our_own_stall() -> None:
    link = Data()
    link.attach(1, Sink())
    link.send_adds(1, add_frame(), entries=1, bytes=5)
    for step in range(100):
        link.sweep(step * 1.0)
    assert link.hung == 0


def test_silence_begins_with_what_is_sent_into_it() -> None:
    """Before that, reads kept the sweeping going for long, or nobody swept at all."""
    link, step_s = Data(), connection.SWEEP_S
    link.attach(1, Sink())
    for now_s in (*(step * step_s for step in range(100)), 60.0):
        link.sweep(now_s)
    link.send_adds(1, add_frame(), entries=1, bytes=5)
    for step in range(5):
        link.sweep(60.0 + step * step_s)
    assert link.hung == 0


# --- Reads


class Reads:
    """Makes reads and keeps what they were answered."""

    def __init__(self, link: Data) -> None:
        self.link = link
        self.replies: dict[str, list[ReadReply]] = {}

    def ask(
        self, name: str, entry_id: int, *, deadline_s: float = 1e9, fence: bool = False
    ) -> None:
        self.replies[name] = []
        self.link.read(
            7,
            entry_id,
            deadline_s=deadline_s,
            fence_key=KEY if fence else None,
            on_reply=self.replies[name].append,
        )

    def answers(self, name: str) -> list[Answer]:
        return [reply.answer for reply in self.replies[name]]


def test_reads_of_one_entry_wait_for_each_other() -> None:
    link = Data()
    reads = Reads(link)
    reads.ask("first", 0)
    reads.ask("second", 0)
    reads.ask("other", 1)
    assert len(link.sent) == 2
    link.receive(read_reply(7, 0, entry_of(b"a")))
    assert len(link.sent) == 3
    assert reads.answers("first") == [Answer.OK]
    assert reads.answers("second") == []
    link.receive(read_reply(7, 1, None) + read_reply(7, 0, entry_of(b"b")))
    assert reads.replies["second"][0].entry == entry_of(b"b")
    assert reads.answers("other") == [Answer.NO_ENTRY]
    assert link.is_idle()


def test_a_late_answer_to_a_plain_read_is_not_the_answer_to_a_fence() -> None:
    """The plain read saw no entry; then one was added; then the fence. Had the fencing read been
    answered with what the plain one saw, recovery would count an entry as missing that is there."""
    link = Data(may_fence=True)
    reads = Reads(link)
    reads.ask("plain", 3, deadline_s=1.0)
    link.sweep(1.0)
    assert reads.answers("plain") == [Answer.TIMED_OUT]
    reads.ask("fence", 3, fence=True)
    link.receive(read_reply(7, 3, None))  # late
    assert reads.answers("fence") == []
    assert link.strays == {"late read": 1}
    link.receive(read_reply(7, 3, entry_of(b"there")))
    assert reads.answers("fence") == [Answer.OK]
    assert reads.answers("plain") == [Answer.TIMED_OUT]


def test_a_read_that_waits_may_run_out_of_time_unsent() -> None:
    link = Data()
    reads = Reads(link)
    reads.ask("first", 0, deadline_s=9.0)
    reads.ask("second", 0, deadline_s=1.0)
    reads.ask("third", 0, deadline_s=9.0)
    link.sweep(1.0)
    assert reads.answers("second") == [Answer.TIMED_OUT]
    link.receive(read_reply(7, 0, entry_of(b"")))
    link.receive(read_reply(7, 0, entry_of(b"")))
    assert (reads.answers("first"), reads.answers("third")) == ([Answer.OK], [Answer.OK])
    assert len(link.sent) == 2
    assert link.is_idle()


def test_an_answer_that_is_owed_for_too_long_wears_the_link_out() -> None:
    link = Data()
    reads = Reads(link)
    reads.ask("never", 0, deadline_s=1.0)
    assert link.sweep(1.0)
    assert link.sweep(0.9 + LINK_OWED_MS_MAX / 1000)
    reads.ask("younger", 1, deadline_s=2.0)
    assert not link.sweep(1.0 + LINK_OWED_MS_MAX / 1000)


def test_a_fence_is_urgent() -> None:
    link = Data(may_fence=True)
    reads = Reads(link)
    reads.ask("fence", 0, fence=True)
    reads.ask("plain", 1)
    for key in (KEY, None):
        link.batch_read(7, 2, count_max=1, deadline_s=BIG, on_reply=print, fence_key=key)
    urgent, plain = Flag.FENCE | Flag.HIGH_PRIORITY, Flag.NONE
    assert [frame[7] for frame in link.sent] == [urgent, plain, urgent, plain]


def test_only_a_recovery_link_fences() -> None:
    with pytest.raises(Broken):
        Reads(Data()).ask("fence", 0, fence=True)


def test_waiting_has_a_bound() -> None:
    link = Data()
    reads = Reads(link)
    for count in range(connection.LINK_REQUESTS_MAX):
        assert link.refusal() is None
        reads.ask(str(count), count // 2)  # half of them wait behind the other half
    assert link.refusal() is Answer.BUSY
    link.receive(read_reply(7, 0, None))
    assert link.refusal() is None
    reads.ask("behind", 1, deadline_s=1.0)
    assert link.refusal() is Answer.BUSY
    link.sweep(1.0)
    assert link.refusal() is None


# --- Batch reads


def _batch(link: Data, replies: list[BatchReadReply], first: int = 0, count: int = 2) -> None:
    link.batch_read(7, first, count_max=count, deadline_s=1.0, on_reply=replies.append)


def test_batch_reads_are_told_apart_by_number() -> None:
    link = Data()
    one: list[BatchReadReply] = []
    two: list[BatchReadReply] = []
    _batch(link, one)
    _batch(link, two)
    link.receive(batch_reply(7, 0, 2, [entry_of(b"two")]))
    link.receive(batch_reply(7, 0, 1, [entry_of(b"one")]))
    assert one[0].entries == [entry_of(b"one")]
    assert two[0].entries == [entry_of(b"two")]


def test_a_batch_that_is_late_or_double_is_dropped() -> None:
    link = Data()
    replies: list[BatchReadReply] = []
    _batch(link, replies)
    link.sweep(1.0)
    assert [reply.answer for reply in replies] == [Answer.TIMED_OUT]
    link.receive(batch_reply(7, 0, 1, [entry_of(b"")]))
    _batch(link, replies)
    link.receive(batch_reply(7, 0, 2, [entry_of(b"")]) * 2)
    assert [reply.answer for reply in replies] == [Answer.TIMED_OUT, Answer.OK]
    assert link.strays == {"batch read": 2}


@pytest.mark.parametrize(
    "reply",
    [
        batch_reply(8, 0, 1, [entry_of(b"")]),
        batch_reply(7, 1, 1, [entry_of(b"")]),
        batch_reply(7, 0, 1, [entry_of(b"")] * 3),
    ],
    ids=["ledger", "first entry", "count"],
)
def test_a_batch_that_was_not_asked_for_is_not_believed(reply: bytes) -> None:
    link = Data()
    replies: list[BatchReadReply] = []
    _batch(link, replies)
    with pytest.raises(Corrupt):
        link.receive(reply)
    link.down(Answer.DISCONNECTED)
    assert [reply.answer for reply in replies] == [Answer.DISCONNECTED]


# --- The protobuf protocol


def _write_lac(txn_id: int) -> bytes:
    return pack_write_lac(txn_id, 7, 3, bytes(20), master_key=KEY)


def test_responses_are_told_apart_by_number() -> None:
    link = Control()
    answers: dict[str, list[Response]] = {"one": [], "two": []}
    for each in answers.values():
        link.ask(_write_lac, deadline_s=9.0, on_answer=each.append)
    link.receive(lac_response(2) + lac_response(1, status=504) + lac_response(1))
    assert [answer.answer for answer in answers["one"]] == [Answer.FENCED]
    assert [answer.answer for answer in answers["two"]] == [Answer.OK]
    assert link.strays == {"response": 1}
    assert link.notes == [Answer.FENCED]


def test_a_response_in_time_or_none() -> None:
    link = Control()
    answers: list[Response] = []
    link.ask(partial(pack_force, ledger_id=7), deadline_s=1.0, on_answer=answers.append)
    link.sweep(0.9)
    assert not answers
    link.sweep(1.0)
    assert [(a.operation, a.answer, a.body) for a in answers] == [
        (Operation.FORCE, Answer.TIMED_OUT, None)
    ]
    link.receive(lac_response(1, operation=Operation.FORCE))
    assert len(answers) == 1
    assert link.strays == {"response": 1}


def test_a_response_to_something_else_is_not_believed() -> None:
    link = Control()
    answers: list[Response] = []
    link.ask(_write_lac, deadline_s=1.0, on_answer=answers.append)
    with pytest.raises(Corrupt):
        link.receive(lac_response(1, operation=Operation.FORCE))
    assert not answers


def test_a_control_link_sends_nothing_but_the_protobuf_protocol() -> None:
    link = Control()
    with pytest.raises(Broken):
        link.ask(lambda _: add_frame(), deadline_s=1.0, on_answer=lambda _: None)
    assert not link.sent
    assert link.is_idle()


# --- The end


def test_the_end_answers_everything_once() -> None:
    link, sink = Data(), Sink()
    link.attach(1, sink)
    link.send_adds(1, add_frame(), entries=1, bytes=5)
    reads = Reads(link)
    reads.ask("timed out", 0, deadline_s=0.5)
    link.sweep(0.5)
    reads.ask("in flight", 1)
    reads.ask("behind", 1)
    batches: list[BatchReadReply] = []
    _batch(link, batches)
    link.down(Answer.CLIENT_CLOSED)
    link.down(Answer.DISCONNECTED)
    assert sink.ends == [Answer.CLIENT_CLOSED]
    assert reads.answers("timed out") == [Answer.TIMED_OUT]
    assert reads.answers("in flight") == reads.answers("behind") == [Answer.CLIENT_CLOSED]
    assert [batch.answer for batch in batches] == [Answer.CLIENT_CLOSED]
    assert link.refusal() is Answer.CLIENT_CLOSED
    assert not link.has_room
    link.send_adds(1, add_frame(), entries=1, bytes=5)  # nothing happens
    link.settle(1, entries=1, bytes=5)
    link.detach(1)
    assert len(link.sent) == 4
    assert link.is_idle()


def test_one_who_fails_at_the_end_keeps_it_from_nobody() -> None:
    link, sink = Data(), Sink()

    class Failing(Sink):
        def on_down(self, link: Data, answer: Answer) -> None:
            raise KeyError("a bug")

    link.attach(1, Failing())
    link.attach(2, sink)
    with pytest.raises(KeyError):
        link.down(Answer.DISCONNECTED)
    assert sink.ends == [Answer.DISCONNECTED]


def test_nothing_is_told_after_the_end_however_it_came() -> None:
    """A sink may end the link in the middle of what was received."""
    link, other = Data(), Sink()

    class Ending(Sink):
        def on_adds(self, link: Data, answer: Answer, entry_ids: list[int]) -> None:
            link.down(Answer.CLIENT_CLOSED)

    link.attach(1, Ending())
    link.attach(2, other)
    link.receive(add_reply(1, 0) + add_reply(2, 0) + read_reply(1, 0, None) + add_reply(2, 1))
    assert other.told == []
    assert not link.strays


@pytest.mark.parametrize(
    "raw",
    [b"\xff" * 8, framed(b"\x02\x09\0\0" + bytes(20)), add_reply(1, 0, 55), framed(b"HTTP/1.1")],
    ids=["length", "opcode", "code", "text"],
)
def test_what_is_no_answer_ends_a_data_link(raw: bytes) -> None:
    with pytest.raises((FormatError, Corrupt)):
        Data().receive(raw)


def test_what_is_no_answer_ends_a_control_link() -> None:
    with pytest.raises((FormatError, Corrupt)):
        Control().receive(framed(b"\x02\x01\0\0" + bytes(20)))
