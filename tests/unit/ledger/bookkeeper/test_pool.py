"""The pool against bookies that the test plays on real sockets: refusing, accepting and hanging up,
silent, deaf, talking nonsense."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from dlog.errors import ForkedHandle, Unavailable, WriterClosed
from dlog.ledger.bookkeeper.links import Links
from dlog.ledger.bookkeeper.pool import BACKOFF_BASE_S, BACKOFF_S_MAX, BookieLinks
from dlog.ledger.bookkeeper.registry import RegistryListener
from dlog.limits import LINK_UNSENT_BYTES_MAX, MIB
from dlog.streams.health.bookies import BookieQuarantine
from dlog.wire.bookie_codes import Answer, ReturnCode
from dlog.wire.bookie_service_info import BOOKIE_RPC, Endpoint
from dlog.wire.bookie_v2 import Opcode
from dlog.wire.bookie_v3 import pack_write_lac
from tests.unit.ledger.bookkeeper.link_tools import (
    KEY,
    Sink,
    add_frame,
    add_reply,
    entry_of,
    lac_response,
    read_reply,
)

BOOKIE = "b1"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Bookie:
    """Answers every frame, unless `mood` says otherwise."""

    def __init__(self) -> None:
        self.mood = "serves"  # or hangs up, is silent, is deaf, babbles
        self.port = 0
        self.connections = 0
        self.heard_bytes = 0
        self.expects_bytes = 0
        self.heard_all = asyncio.Event()
        self.hears = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Its port refuses from now on."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            self.hang_up(writer)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def hang_up(self, writer: asyncio.StreamWriter) -> None:
        end = writer.get_extra_info("socket")
        if end is not None and end.fileno() >= 0:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.transport.abort()

    def reset_all(self) -> None:
        for writer in list(self._writers):
            self.hang_up(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            if self.mood != "hangs up":
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.hang_up(writer)
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            while self.mood == "is deaf":
                self.hears.clear()
                await self.hears.wait()
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            body = await reader.readexactly(length)
            self.heard_bytes += 4 + length
            if self.heard_bytes == self.expects_bytes:
                self.heard_all.set()
            if self.mood == "babbles":
                writer.write(b"\xff" * 64)
            elif self.mood == "serves":
                writer.write(_answer_to(body))


def _answer_to(body: bytes) -> bytes:
    if body[0] != 2:
        return lac_response(body[7])
    if body[1] == Opcode.ADD:
        return add_reply(1, 0)
    ledger_id, entry_id = struct.unpack_from(">qq", body, 4)
    return read_reply(ledger_id, entry_id, entry_of(b"here"))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_us(self) -> int:
        return 0


class Chance:
    """Draws what the test says."""

    def __init__(self) -> None:
        self.next = 0.5

    def fraction(self) -> float:
        return self.next

    def token(self) -> str:
        return "token"


class Addresses:
    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self.resolved = 0
        self.suspected: list[str] = []
        self.listeners: list[RegistryListener] = []

    async def resolve(self, bookie_id: str) -> Endpoint:
        self.resolved += 1
        if bookie_id not in self.endpoints:
            raise Unavailable("no such bookie", missing=(bookie_id,))
        return self.endpoints[bookie_id]

    def suspect(self, bookie_id: str) -> None:
        self.suspected.append(bookie_id)

    def listen(self, listener: RegistryListener) -> None:
        self.listeners.append(listener)

    def unlisten(self, listener: RegistryListener) -> None:
        self.listeners.remove(listener)


class World:
    def __init__(self) -> None:
        self.bookie = Bookie()
        self.clock = Clock()
        self.chance = Chance()
        self.health = BookieQuarantine(clock=self.clock, chance=self.chance)
        self.health.keep_only([BOOKIE, "another"])
        self.addresses = Addresses()
        self.links = BookieLinks(
            self.addresses,
            health=self.health,
            clock=self.clock,
            chance=self.chance,
            connect_timeout_ms=5_000,
        )

    async def start(self) -> None:
        await self.bookie.start()
        self.addresses.endpoints[BOOKIE] = Endpoint(
            "bookie", "127.0.0.1", self.bookie.port, BOOKIE_RPC
        )


@asynccontextmanager
async def _world() -> AsyncIterator[World]:
    made = World()
    await made.start()
    try:
        async with asyncio.timeout(30):
            yield made
    finally:
        await made.health.close()
        await made.links.close()
        await made.bookie.stop()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with _world() as made:
        yield made


# --- One link for each bookie and kind


async def test_the_pool_keeps_the_contract(world: World) -> None:
    links: Links = world.links
    data = await links.data(BOOKIE)
    reply = await data.read(7, 3, timeout_ms=5_000)
    assert (reply.answer, reply.entry) == (Answer.OK, entry_of(b"here"))
    control = await links.control(BOOKIE)
    lac = partial(pack_write_lac, ledger_id=7, last_confirmed=3, proof=b"", master_key=KEY)
    assert (await control.ask(lac, timeout_ms=5_000)).answer is Answer.OK
    recovery = await links.recovery(BOOKIE)
    reply = await recovery.read(7, -1, timeout_ms=5_000, fence_key=KEY)
    assert reply.answer is Answer.OK
    assert world.bookie.connections == 3
    assert data is links.data_now(BOOKIE)
    assert control is links.control_now(BOOKIE)


async def test_all_who_ask_at_once_share_one_connection(world: World) -> None:
    found = await asyncio.gather(*(world.links.data(BOOKIE) for _ in range(10)))
    found.append(await world.links.data(BOOKIE))
    assert len(set(map(id, found))) == 1
    await found[0].read(7, 0, timeout_ms=5_000)
    assert world.bookie.connections == 1


async def test_one_who_gives_up_takes_the_connection_from_nobody(world: World) -> None:
    first = asyncio.ensure_future(world.links.data(BOOKIE))
    second = asyncio.ensure_future(world.links.data(BOOKIE))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).is_up
    assert world.links.data_now(BOOKIE) is second.result()


async def test_those_who_fail_together_get_an_error_each(world: World) -> None:
    await world.bookie.stop()
    failed = await asyncio.gather(
        *(world.links.data(BOOKIE) for _ in range(3)), return_exceptions=True
    )
    assert len(set(map(id, failed))) == 3, "tracebacks of many in one object"
    assert {type(each) for each in failed} == {Unavailable}


async def test_a_lost_link_takes_no_other_kind_with_it(world: World) -> None:
    data, control = await world.links.data(BOOKIE), await world.links.control(BOOKIE)
    data.take_down(Answer.DISCONNECTED)
    assert world.links.data_now(BOOKIE) is None
    assert world.links.control_now(BOOKIE) is control
    assert control.is_up


async def test_a_bookie_without_address_is_named() -> None:
    async with _world() as world:
        with pytest.raises(Unavailable) as raised:
            await world.links.data("b9")
        assert raised.value.missing == ("b9",)
        assert not world.health.avoided(world.clock.now_s)


async def test_a_name_that_no_host_can_have_is_an_address_like_any_other(world: World) -> None:
    world.addresses.endpoints["b2"] = Endpoint("bookie", "a..b", 3181, BOOKIE_RPC)
    with pytest.raises(Unavailable, match="could not be reached") as raised:
        await world.links.control("b2")
    assert raised.value.missing == ("b2",)
    assert world.addresses.suspected == ["b2"]


# --- Lost, and reached again


async def test_a_lost_link_is_another_link_when_it_is_back(world: World) -> None:
    link = await world.links.data(BOOKIE)
    sink = Sink()
    link.attach(1, sink)
    await link.read(7, 0, timeout_ms=5_000)
    world.bookie.reset_all()
    await link.wait_gone()
    assert sink.ends == [Answer.DISCONNECTED]
    assert world.links.data_now(BOOKIE) is None
    assert world.addresses.suspected == []  # it is where it was
    again = await world.links.data(BOOKIE)  # it had served: no reason to wait
    assert again is not link
    assert (await again.read(7, 0, timeout_ms=5_000)).answer is Answer.OK


async def test_a_bookie_that_refuses_is_left_alone_for_a_growing_while(world: World) -> None:
    await world.bookie.stop()
    waits, avoided = [], []
    for _ in range(10):
        with pytest.raises(Unavailable) as raised:
            await world.links.data(BOOKIE)
        assert raised.value.missing == (BOOKIE,)
        assert world.addresses.suspected == [BOOKIE] * (len(waits) + 1)
        tried = world.addresses.resolved
        begin_s = world.clock.now_s
        while True:
            try:
                world.links._check_patience(BOOKIE)
            except Unavailable:
                with pytest.raises(Unavailable, match="left alone"):
                    await world.links.control(BOOKIE)  # of whatever kind
                world.clock.now_s += BACKOFF_BASE_S / 8
            else:
                break
        assert world.addresses.resolved == tried
        waits.append(world.clock.now_s - begin_s)
        avoided.append(world.health.avoided(begin_s))
    assert avoided[:3] == [frozenset(), frozenset(), {BOOKIE}]
    # With this chance three quarters of what it may be.
    assert waits[:4] == pytest.approx(
        [BACKOFF_BASE_S * 0.75 * 2**step for step in range(4)], abs=BACKOFF_BASE_S / 4
    )
    assert waits[-1] == pytest.approx(BACKOFF_S_MAX * 0.75, abs=BACKOFF_BASE_S / 4)


async def test_the_while_is_jittered_and_never_nothing(world: World) -> None:
    await world.bookie.stop()
    world.chance.next = 0.0
    with pytest.raises(Unavailable):
        await world.links.data(BOOKIE)
    world.clock.now_s += BACKOFF_BASE_S * 0.49
    with pytest.raises(Unavailable, match="left alone"):
        await world.links.data(BOOKIE)
    world.clock.now_s += BACKOFF_BASE_S * 0.02
    world.chance.next = 1.0
    with pytest.raises(Unavailable, match="could not be reached"):
        await world.links.data(BOOKIE)
    world.clock.now_s += 2 * BACKOFF_BASE_S * 0.99
    with pytest.raises(Unavailable, match="left alone"):
        await world.links.data(BOOKIE)


async def test_to_accept_is_not_to_serve(world: World) -> None:
    """A bookie that starts accepts connections and resets them, for seconds."""
    world.bookie.mood = "hangs up"
    for step in range(3):
        [link] = await asyncio.gather(world.links.data(BOOKIE), return_exceptions=True)
        if isinstance(link, Unavailable):  # it hung up before we looked
            assert "authentication" in link.message
        else:
            assert not isinstance(link, BaseException)
            reply = await link.read(7, 0, timeout_ms=5_000)
            assert reply.answer is Answer.DISCONNECTED
        with pytest.raises(Unavailable, match="left alone"):
            await world.links.data(BOOKIE)
        assert world.links._troubles[BOOKIE].failures == step + 1
        world.clock.now_s = world.links._troubles[BOOKIE].until_s
    assert world.health.avoided(world.clock.now_s) == {BOOKIE}
    world.bookie.mood = "serves"
    link = await world.links.data(BOOKIE)
    assert BOOKIE in world.links._troubles  # not yet
    assert (await link.read(7, 0, timeout_ms=5_000)).answer is Answer.OK
    assert BOOKIE not in world.links._troubles


async def test_a_bookie_that_hangs_up_before_we_look_gives_no_link(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def hung_up_on(factory: Any, *where: Any) -> None:
        _, link = await connect(factory, *where)
        link.take_down(Answer.DISCONNECTED)

    monkeypatch.setattr(loop, "create_connection", hung_up_on)
    with pytest.raises(Unavailable, match="authentication, TLS or"):
        await world.links.data(BOOKIE)
    assert world.links.data_now(BOOKIE) is None


async def test_a_bookie_that_registers_anew_is_tried_at_once(world: World) -> None:
    await world.bookie.stop()
    for _ in range(5):
        with pytest.raises(Unavailable):
            await world.links.data(BOOKIE)
        world.clock.now_s = world.links._troubles[BOOKIE].until_s
    with pytest.raises(Unavailable):
        await world.links.data(BOOKIE)
    await world.bookie.start()
    with pytest.raises(Unavailable, match="left alone"):
        await world.links.data(BOOKIE)
    world.links.on_bookies(frozenset({BOOKIE}), frozenset())
    assert (await world.links.data(BOOKIE)).is_up


async def test_a_connection_that_takes_too_long_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*args: object, **options: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    monkeypatch.setattr(world.links, "_connect_timeout_s", 0.01)
    with pytest.raises(Unavailable, match="no answer in time"):
        await world.links.data(BOOKIE)
    with pytest.raises(Unavailable, match="left alone"):
        await world.links.data(BOOKIE)


# --- Silence, deafness, nonsense


async def test_a_bookie_that_is_silent_times_out(world: World) -> None:
    world.bookie.mood = "is silent"
    link = await world.links.data(BOOKIE)
    asked = asyncio.ensure_future(link.read(7, 0, timeout_ms=200))
    await asyncio.sleep(0)
    world.clock.now_s += 0.2
    assert (await asked).answer is Answer.TIMED_OUT
    assert link.is_up


async def test_a_bookie_that_babbles_is_hung_up_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.bookie.mood = "babbles"
    link = await world.links.data(BOOKIE)
    with caplog.at_level(logging.WARNING, "dlog.ledger"):
        assert (await link.read(7, 0, timeout_ms=5_000)).answer is Answer.DISCONNECTED
    await link.wait_gone()
    assert any("frame" in each.message for each in caplog.records)
    with pytest.raises(Unavailable, match="left alone"):
        await world.links.data(BOOKIE)


async def test_a_bookie_that_does_not_read_fills_no_memory(world: World) -> None:
    world.bookie.mood = "is deaf"
    link = await world.links.data(BOOKIE)
    sink = Sink()
    link.attach(1, sink)
    piece = add_frame(bytes(MIB))
    sent = 0
    while link.has_room:
        link.send_adds(1, piece, entries=1, bytes=0)
        sent += len(piece)
        await asyncio.sleep(0)
        assert sent < 256 * MIB
    assert link._transport is not None
    held = link.unsent_bytes + link._transport.get_write_buffer_size()
    assert held < LINK_UNSENT_BYTES_MAX + 2 * MIB
    world.bookie.expects_bytes = sent
    world.bookie.mood = "is silent"
    world.bookie.hears.set()
    await world.bookie.heard_all.wait()
    assert sink.rooms == 1


def _forget(world: World) -> None:
    world.health.keep_only([])
    world.health.keep_only([BOOKIE, "another"])


async def test_what_links_hear_counts_for_quarantine(world: World) -> None:
    """Errors, lost connections and silence, each by itself."""
    link = await world.links.data(BOOKIE)
    world.links.on_hung(link)
    assert world.health.avoided(world.clock.now_s) == {BOOKIE}
    _forget(world)
    for _ in range(3):
        link.data_received(add_reply(1, 0, ReturnCode.EIO))
    assert world.health.avoided(world.clock.now_s) == {BOOKIE}
    _forget(world)
    for _ in range(3):
        link = await world.links.data(BOOKIE)
        await link.read(7, 0, timeout_ms=5_000)
        world.bookie.reset_all()
        await link.wait_gone()
        world.clock.now_s += 2.0
    assert world.health.avoided(world.clock.now_s) == {BOOKIE}


# --- The end


async def test_closing_answers_all_and_closes_every_socket() -> None:
    async with _world() as world:
        world.bookie.mood = "is silent"
        link = await world.links.data(BOOKIE)
        sink = Sink()
        link.attach(1, sink)
        link.send_adds(1, add_frame(), entries=1, bytes=1)
        control = await world.links.control(BOOKIE)
        asked = [
            asyncio.ensure_future(link.read(7, 0, timeout_ms=5_000)),
            asyncio.ensure_future(
                control.ask(
                    partial(
                        pack_write_lac, ledger_id=7, last_confirmed=3, proof=b"", master_key=KEY
                    ),
                    timeout_ms=5_000,
                )
            ),
        ]
        connecting = asyncio.ensure_future(world.links.recovery(BOOKIE))
        await asyncio.sleep(0)
        await world.links.close()
        assert [(await each).answer for each in asked] == [Answer.CLIENT_CLOSED] * 2
        assert sink.ends == [Answer.CLIENT_CLOSED]
        with pytest.raises(WriterClosed):
            await connecting
        with pytest.raises(WriterClosed):
            await world.links.data(BOOKIE)
        assert world.links.data_now(BOOKIE) is None
        assert not world.links._open
        assert not world.addresses.listeners
        # Our own closing is nobody's fault.
        assert not world.links._troubles
        assert not world.addresses.suspected
        await world.links.close()


async def test_a_sink_that_fails_keeps_nobody_from_closing(world: World) -> None:
    class Failing(Sink):
        def on_down(self, link: object, answer: Answer) -> None:
            raise KeyError("a bug")

    (await world.links.data(BOOKIE)).attach(1, Failing())
    recovery = await world.links.recovery(BOOKIE)
    with pytest.raises(KeyError):
        await world.links.close()
    assert not recovery.is_up
    assert not world.links._open


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    yield
    monkeypatch.undo()


async def test_a_pool_of_another_process_is_refused(world: World, elsewhere: None) -> None:
    with pytest.raises(ForkedHandle):
        await world.links.data(BOOKIE)
    assert world.bookie.connections == 0
