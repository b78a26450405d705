"""Links on a transport that the test plays: what is written when, and what the end does."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

from dlog.clock import SYSTEM_CLOCK
from dlog.errors import DlogError, ForkedHandle, FormatError
from dlog.ledger.bookkeeper.core import pending_reads
from dlog.ledger.bookkeeper.transport import (
    WRITE_BYTES_MAX,
    BookieControlLink,
    BookieDataLink,
    Link,
)
from dlog.ledger.store import Buffer
from dlog.limits import KIB, LINK_OWED_MS_MAX, LINK_UNSENT_BYTES_MAX, MIB
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v3 import Operation, pack_read_lac, pack_write_lac
from dlog.wire.bookie_v3_replies import Response
from tests.sim.virtual_loop import LoopClock, VirtualLoop, run_virtually
from tests.unit.ledger.bookkeeper.link_tools import (
    KEY,
    Sink,
    add_frame,
    add_reply,
    batch_reply,
    entry_of,
    lac_response,
    read_reply,
)


class Wire(asyncio.Transport):
    """A transport that keeps what was written; `takes` bytes fit before it asks for a pause."""

    def __init__(self, link: Link, takes: int = 1 << 40) -> None:
        self.end = socket.socket()
        super().__init__({"socket": self.end})
        self.link = link
        self.takes = takes
        self.written: list[Buffer] = []
        self.high: int | None = None
        self.aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high

    def write(self, data: Any) -> None:
        assert not self.aborted
        self.written.append(data)
        self.takes -= len(data)
        if self.takes <= 0:
            self.link.pause_writing()

    def resume(self, takes: int) -> None:
        self.takes = takes
        self.link.resume_writing()

    def abort(self) -> None:
        self.lose(None)

    def lose(self, error: Exception | None) -> None:
        if not self.aborted:
            self.aborted = True
            asyncio.get_running_loop().call_soon(self.link.connection_lost, error)

    @property
    def bytes(self) -> bytes:
        return b"".join(map(bytes, self.written))


class Owner:
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.errors: list[DlogError | None] = []

    def on_link_made(self, link: Link) -> None:
        self.heard.append("made")

    def on_first_answer(self, link: Link) -> None:
        self.heard.append("first answer")

    def on_link_down(self, link: Link, error: DlogError | None) -> None:
        self.heard.append("down")
        self.errors.append(error)

    def on_link_gone(self, link: Link) -> None:
        self.heard.append("gone")

    def on_trouble(self, link: Link, answer: Answer) -> None:
        self.heard.append(answer.value)

    def on_hung(self, link: Link) -> None:
        self.heard.append("hung")


Connect = Callable[..., tuple[BookieDataLink, Wire, Owner]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    links: list[Link] = []
    wires: list[Wire] = []

    def connected(*, takes: int = 1 << 40, recovery: bool = False) -> Any:
        owner = Owner()
        link = BookieDataLink("b1", "bookie b1", owner, SYSTEM_CLOCK, recovery=recovery)
        wire = Wire(link, takes)
        link.connection_made(wire)
        assert wire.high == 0, "nothing waits where it would be copied"
        links.append(link)
        wires.append(wire)
        return link, wire, owner

    yield connected
    for link, wire in zip(links, wires, strict=True):
        link.take_down(Answer.CLIENT_CLOSED)
        await link.wait_gone()
        wire.end.close()


async def _turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


# --- Writing


async def test_what_is_sent_in_one_turn_is_written_together(connect: Connect) -> None:
    link, wire, _ = connect()
    for ledger_id in range(3):
        link.attach(ledger_id, Sink())
    frames = [add_frame(b"%d" % each) for each in range(6)]
    for turn in (0, 3):
        for ledger_id in range(3):
            link.send_adds(ledger_id, frames[turn + ledger_id], entries=1, bytes=1)
        await _turn()
    # The first at once: alone it should not wait. The others in one piece.
    assert wire.written == [
        frames[0],
        frames[1] + frames[2],
        frames[3],
        frames[4] + frames[5],
    ]


async def test_large_buffers_are_neither_joined_nor_copied(connect: Connect) -> None:
    link, wire, _ = connect()
    link.attach(1, Sink())
    frames = add_frame(os.urandom(2 * MIB + 5))
    link.send_adds(1, frames, entries=1, bytes=1)
    assert wire.bytes == frames
    for piece in wire.written:
        assert isinstance(piece, memoryview)
        assert piece.obj is frames
        assert len(piece) <= WRITE_BYTES_MAX


async def test_order_is_kept_whatever_is_joined_and_sliced(connect: Connect) -> None:
    link, wire, _ = connect(takes=1)
    link.attach(1, Sink())
    sent = b""
    for size in (10, 700 * KIB, 1, 2, 900 * KIB, 3, 512 * KIB, 512 * KIB, 7):
        frames = add_frame(os.urandom(size))
        sent += frames
        link.send_adds(1, frames, entries=1, bytes=1)
        await _turn()
        wire.resume(1)
    while len(wire.bytes) < len(sent):
        wire.resume(1)
    assert wire.bytes == sent
    assert link.unsent_bytes == 0


async def test_small_buffers_are_joined_up_to_what_one_call_takes(connect: Connect) -> None:
    link, wire, _ = connect(takes=1)
    link.attach(1, Sink())
    for _ in range(10):
        link.send_adds(1, add_frame(bytes(200 * KIB)), entries=1, bytes=1)
    await _turn()
    while link.unsent_bytes:
        wire.resume(1)
    sizes = [len(piece) for piece in wire.written]
    assert 400 * KIB < max(sizes) <= WRITE_BYTES_MAX


async def test_nothing_is_written_while_the_transport_asks_for_a_pause(connect: Connect) -> None:
    link, wire, _ = connect(takes=1)
    link.attach(1, Sink())
    link.send_adds(1, add_frame(b"first"), entries=1, bytes=1)
    link.send_adds(1, add_frame(b"second"), entries=1, bytes=1)
    await _turn()
    assert wire.bytes == add_frame(b"first")
    wire.resume(1)
    assert wire.bytes == add_frame(b"first") + add_frame(b"second")


async def test_unsent_bytes_take_the_room_and_give_it_back(connect: Connect) -> None:
    link, wire, _ = connect(takes=1)
    sink = Sink()
    link.attach(1, sink)
    piece = add_frame(bytes(MIB))
    calls = 0
    while link.has_room:
        link.send_adds(1, piece, entries=1, bytes=1)
        calls += 1
    assert link.unsent_bytes < LINK_UNSENT_BYTES_MAX + len(piece)
    assert calls <= LINK_UNSENT_BYTES_MAX // len(piece) + 2
    await _turn()
    assert sink.rooms == 0
    while not link.has_room:
        unsent_bytes = link.unsent_bytes
        wire.resume(1)
    # It came back at half, and the write before would not have been enough.
    assert link.unsent_bytes < LINK_UNSENT_BYTES_MAX // 2 <= unsent_bytes
    assert sink.rooms == 0  # never from inside
    await _turn()
    assert sink.rooms == 1


# --- Asking


async def test_reads_and_batch_reads_come_back(connect: Connect) -> None:
    link, wire, owner = connect(recovery=True)
    read = asyncio.ensure_future(link.read(7, 0, timeout_ms=5_000, fence_key=KEY))
    batch = asyncio.ensure_future(
        link.batch_read(7, 0, count_max=2, frame_bytes_max=MIB, timeout_ms=5_000, fence_key=KEY)
    )
    await _turn()
    assert wire.bytes.count(KEY) == 2
    link.data_received(batch_reply(7, 0, 1, [entry_of(b"b")] * 2))
    link.data_received(read_reply(7, 0, entry_of(b"r")))
    assert (await read).entry == entry_of(b"r")
    assert (await batch).entries == [entry_of(b"b")] * 2
    assert owner.heard == ["made", "first answer"]


async def test_a_silent_bookie_times_out_and_the_sweeping_ends(connect: Connect) -> None:
    link, _, owner = connect()
    reply = await link.read(7, 0, timeout_ms=1)
    assert (reply.answer, reply.ledger_id, reply.entry_id) == (Answer.TIMED_OUT, 7, 0)
    assert owner.heard == ["made", "timed out"]
    link.data_received(read_reply(7, 0, None))
    assert link.strays == {"late read": 1}
    async with asyncio.timeout(10):
        while link._sweeper is not None:
            swept = asyncio.Event()
            asyncio.get_running_loop().call_at(link._sweeper.when(), swept.set)
            await swept.wait()


def test_what_came_while_we_stood_still_is_heard() -> None:
    """Behind a stop, the timers run before the bytes that wait in the sockets are read."""

    async def stand_still() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        owner = Owner()
        link = BookieDataLink("b1", "bookie b1", owner, LoopClock(loop))
        wire = Wire(link)
        link.connection_made(wire)
        read = loop.create_task(link.read(7, 0, timeout_ms=5_000))
        await _turn()
        loop.stand_still(40.0)
        await _turn()
        link.data_received(read_reply(7, 0, entry_of(b"r")))
        assert (await read).entry == entry_of(b"r")
        assert owner.heard == ["made", "first answer"]
        await _end(link, wire)

    run_virtually(stand_still())


def _control() -> tuple[BookieControlLink, Wire]:
    link = BookieControlLink("b1", "bookie b1", Owner(), SYSTEM_CLOCK)
    wire = Wire(link)
    link.connection_made(wire)
    return link, wire


async def _end(link: Link, wire: Wire) -> None:
    link.take_down(Answer.CLIENT_CLOSED)
    await link.wait_gone()
    wire.end.close()


async def test_one_who_fails_on_hearing_of_silence_does_not_silence_the_others() -> None:
    link, wire = _control()
    loop = asyncio.get_running_loop()
    failures: list[Any] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))

    def fail(_: Response) -> None:
        raise ValueError("a defect")

    link.ask_soon(partial(pack_read_lac, ledger_id=7), fail, timeout_ms=1)
    second = asyncio.ensure_future(link.ask(partial(pack_read_lac, ledger_id=7), timeout_ms=2))
    async with asyncio.timeout(10):
        assert (await second).answer is Answer.TIMED_OUT
    assert [str(each) for each in failures] == ["a defect"]
    await _end(link, wire)


async def test_who_asks_again_on_hearing_of_silence_is_swept_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link, wire = _control()
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    timers: list[asyncio.TimerHandle] = []
    call_later = loop.call_later

    def counted(delay: float, call: Any, *args: Any) -> asyncio.TimerHandle:
        timers.append(call_later(delay, call, *args))
        return timers[-1]

    def again(response: Response) -> None:
        if len(wire.written) < 5:
            link.ask_soon(partial(pack_read_lac, ledger_id=7), again, timeout_ms=1)
        else:
            over.set()

    link.ask_soon(partial(pack_read_lac, ledger_id=7), again, timeout_ms=1)
    monkeypatch.setattr(loop, "call_later", counted)
    async with asyncio.timeout(10):
        await over.wait()
    monkeypatch.undo()
    assert sum(not timer.cancelled() for timer in timers) <= 5
    await _end(link, wire)


async def test_a_host_that_vanished_is_not_waited_for_longer_than_an_answer(
    connect: Connect,
) -> None:
    _, wire, _ = connect()
    name = getattr(socket, "TCP_USER_TIMEOUT", None)
    if name is None:
        pytest.skip("the platform has no such option")
    assert wire.end.getsockopt(socket.IPPROTO_TCP, name) == LINK_OWED_MS_MAX


async def test_who_gave_up_waiting_takes_nothing_from_the_next(connect: Connect) -> None:
    link, _, _ = connect()
    first = asyncio.ensure_future(link.read(7, 0, timeout_ms=5_000))
    await _turn()
    first.cancel()
    second = asyncio.ensure_future(link.read(7, 0, timeout_ms=5_000))
    await _turn()
    link.data_received(read_reply(7, 0, entry_of(b"first")))
    await _turn()
    assert not second.done()
    link.data_received(read_reply(7, 0, entry_of(b"second")))
    assert (await second).entry == entry_of(b"second")
    assert first.cancelled()


async def test_a_link_of_another_process_is_refused(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, wire, _ = connect()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    with pytest.raises(ForkedHandle):
        await link.read(7, 0, timeout_ms=1)
    monkeypatch.undo()
    assert not wire.written


# --- The end


async def test_the_end_is_told_once_and_frees_the_socket(connect: Connect) -> None:
    link, wire, owner = connect()
    sink = Sink()
    link.attach(1, sink)
    link.send_adds(1, add_frame(), entries=1, bytes=1)
    read = asyncio.ensure_future(link.read(7, 0, timeout_ms=5_000))
    await _turn()
    wire.lose(ConnectionResetError())
    await link.wait_gone()
    link.take_down(Answer.CLIENT_CLOSED)
    assert (await read).answer is Answer.DISCONNECTED
    assert sink.ends == [Answer.DISCONNECTED]
    assert owner.heard == ["made", "down", "gone"]
    assert not link.is_up
    assert not link.has_room
    written = len(wire.written)
    link.send_adds(1, add_frame(), entries=1, bytes=1)
    assert (await link.read(7, 0, timeout_ms=5_000)).answer is Answer.DISCONNECTED
    reply = await link.batch_read(7, 0, count_max=1, frame_bytes_max=MIB, timeout_ms=5_000)
    assert reply.answer is Answer.DISCONNECTED
    assert len(wire.written) == written


async def test_the_owner_hears_of_the_end_before_those_who_would_ask_for_another_link(
    connect: Connect,
) -> None:
    link, _, owner = connect(takes=1)
    known: list[list[str]] = []

    class Asker(Sink):
        def on_down(self, link: Any, answer: Answer) -> None:
            known.append(list(owner.heard))

    link.attach(1, Asker())
    link.send_adds(1, add_frame(bytes(MIB)), entries=1, bytes=1)
    assert link.unsent_bytes > 0
    link.take_down(Answer.DISCONNECTED)
    assert known == [["made", "down"]]
    assert link.unsent_bytes == 0, "what is never sent is not kept"


async def test_a_link_that_was_taken_down_before_it_stood_is_not_left_standing() -> None:
    owner = Owner()
    link = BookieDataLink("b1", "bookie b1", owner, SYSTEM_CLOCK)
    link.take_down(Answer.CLIENT_CLOSED)
    wire = Wire(link)
    link.connection_made(wire)
    assert wire.aborted
    await _end(link, wire)
    assert owner.heard == ["down", "made", "gone"]


async def test_who_attaches_to_a_link_that_is_down_is_told_so(connect: Connect) -> None:
    link, _, _ = connect()
    link.take_down(Answer.DISCONNECTED)
    sink = Sink()
    link.attach(1, sink)
    assert sink.ends == []
    await _turn()
    assert sink.ends == [Answer.DISCONNECTED]


async def test_bytes_without_sense_end_the_link(connect: Connect) -> None:
    link, wire, owner = connect()
    sink = Sink()
    link.attach(1, sink)
    link.data_received(add_reply(1, 0) + b"HTTP/1.1 400 Bad Request\r\n")
    assert owner.heard == ["made", "down"], "to babble is not to serve"
    assert sink.told == [(Answer.OK, [0])]
    assert sink.ends == [Answer.DISCONNECTED]
    assert isinstance(owner.errors[0], FormatError)
    assert wire.aborted
    link.data_received(add_reply(1, 1))
    assert sink.told == [(Answer.OK, [0])]


async def test_a_link_that_owes_an_answer_for_too_long_is_given_up(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_reads, "LINK_OWED_MS_MAX", 1)
    link, _, _ = connect()
    sink = Sink()
    link.attach(1, sink)
    assert (await link.read(7, 0, timeout_ms=1)).answer is Answer.TIMED_OUT
    async with asyncio.timeout(10):
        await link.wait_gone()
    assert sink.ends == [Answer.DISCONNECTED]


async def test_what_comes_after_the_end_is_nobodys(connect: Connect) -> None:
    link, _, _ = connect()

    class Ending(Sink):
        def on_adds(self, link: Any, answer: Answer, entry_ids: list[int]) -> None:
            link.take_down(Answer.CLIENT_CLOSED)

    link.attach(1, Ending())
    link.data_received(add_reply(1, 0) + read_reply(1, 0, None))
    link.data_received(add_reply(1, 1))
    assert not link.strays


async def test_part_of_an_answer_is_not_the_first_answer(connect: Connect) -> None:
    link, _, owner = connect()
    reply = add_reply(1, 0)
    link.data_received(reply[:20])
    assert owner.heard == ["made"]
    link.data_received(reply[20:])
    link.data_received(reply)
    assert owner.heard == ["made", "first answer"]


# --- The protobuf protocol


async def test_questions_come_back_also_when_nothing_can_be_asked() -> None:
    owner = Owner()
    link = BookieControlLink("b1", "bookie b1", owner, SYSTEM_CLOCK)
    wire = Wire(link)
    link.connection_made(wire)
    answers: list[Response] = []
    link.ask_soon(lambda txn_id: pack_read_lac(txn_id, 7), answers.append, timeout_ms=1)
    asked = asyncio.ensure_future(link.ask(_write_lac_of_ledger_7, timeout_ms=5_000))
    await _turn()
    link.data_received(lac_response(2))
    assert (await asked).answer is Answer.OK
    link.take_down(Answer.CLIENT_CLOSED)
    assert [answer.answer for answer in answers] == [Answer.CLIENT_CLOSED]
    link.ask_soon(lambda txn_id: pack_read_lac(txn_id, 7), answers.append, timeout_ms=1)
    assert len(answers) == 1  # never from inside
    await link.wait_gone()
    await _turn()
    assert answers[1:] == [Response(0, Operation.READ_LAC, Answer.CLIENT_CLOSED, None)]
    wire.end.close()


def _write_lac_of_ledger_7(txn_id: int) -> bytes:
    return pack_write_lac(txn_id, 7, 3, bytes(20), master_key=KEY)
