"""A connection to a bookie on asyncio: the socket, the timer and the unsent bytes of a link.

What belongs to what is decided in `core.connection` and its two kinds; here bytes are moved. A link
is made by `pool`, connected once and never again. What is handed over in one turn of the loop
leaves in one write, for whichever ledger it is: the system call costs more than everything else.
Deadlines are swept, per link and only while something is in flight: no request has a timer of its
own.

No bookie says hello, and one without authentication wants none: the first bytes are a request. What
there is to settle first (TLS, credentials) is the business of `entrance`; the link gets the
connection when that is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from dlog.clock import Clock
from dlog.errors import Corrupt, DlogError, ForkedHandle, FormatError
from dlog.ledger.bookkeeper.core.connection import SWEEP_S
from dlog.ledger.bookkeeper.core.control_connection import ControlConnection
from dlog.ledger.bookkeeper.core.data_connection import DataConnection
from dlog.ledger.bookkeeper.links import AddSink
from dlog.ledger.store import Buffer
from dlog.limits import KIB, LINK_OWED_MS_MAX, LINK_UNSENT_BYTES_MAX
from dlog.patience import AwakeClock
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import BatchReadReply, ReadReply
from dlog.wire.bookie_v3_replies import Response

T = TypeVar("T")

_log = logging.getLogger("dlog.ledger")

# One system call takes about as much; what it does not take asyncio copies, so never more than it.
WRITE_BYTES_MAX = 512 * KIB
_LATE_S = 5 * SWEEP_S  # of a sweep that comes later, the rest is our own stall
# A connection that is silent for longer is asked by the kernel whether there is still a peer. While
# bytes of ours are under way it does not ask: a host that vanished would be waited for for a
# quarter of an hour, unless told otherwise.
_KEEPALIVE = (
    ("TCP_KEEPIDLE", 30),
    ("TCP_KEEPINTVL", 10),
    ("TCP_KEEPCNT", 3),
    ("TCP_USER_TIMEOUT", LINK_OWED_MS_MAX),
)


class LinkOwner(Protocol):
    """Who made the link, and hears how it goes with it."""

    def on_link_made(self, link: Link) -> None:
        """It has a socket, until `on_link_gone`."""
        ...

    def on_first_answer(self, link: Link) -> None: ...

    def on_link_down(self, link: Link, error: DlogError | None) -> None:
        """Once, before those who wait for answers hear of it; with what was wrong with its bytes,
        if that was it."""
        ...

    def on_link_gone(self, link: Link) -> None: ...

    def on_trouble(self, link: Link, answer: Answer) -> None:
        """An answer that is not OK, or none in time."""
        ...

    def on_hung(self, link: Link) -> None:
        """It has adds to answer and is silent altogether."""
        ...


class Link(asyncio.Protocol):
    """What both kinds share: everything but what is asked."""

    _core: DataConnection | ControlConnection

    def __init__(self, bookie_id: str, where: str, owner: LinkOwner, clock: Clock) -> None:
        self.bookie_id = bookie_id
        self.where = where
        self._owner = owner
        self._clock = AwakeClock(clock, _LATE_S)
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._transport: asyncio.Transport | None = None
        self._gone = asyncio.Event()
        self._sweeper: asyncio.TimerHandle | None = None
        self._flusher: asyncio.Handle | None = None
        self._queue: deque[Buffer] = deque()  # not yet given to asyncio
        self._queue_bytes = 0
        self._writable = True
        self._clogged = False

    @property
    def is_up(self) -> bool:
        return self._core.is_up

    @property
    def has_answered(self) -> bool:
        return self._core.has_answered

    @property
    def strays(self) -> Counter[str]:
        """Answers nobody waited for, by kind."""
        return self._core.strays

    @property
    def peer_certificate(self) -> bytes | None:
        """As DER; None without TLS, and once it is down."""
        secure = self._transport and self._transport.get_extra_info("ssl_object")
        found: bytes | None = secure.getpeercert(binary_form=True) if secure else None
        return found

    @property
    def unsent_bytes(self) -> int:
        return self._queue_bytes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.where}, {'up' if self.is_up else 'down'}>"

    def take_down(self, answer: Answer, error: DlogError | None = None) -> None:
        """At once; nothing that is unsent will be. Idempotent."""
        for handle in (self._sweeper, self._flusher):
            if handle is not None:
                handle.cancel()
        self._sweeper = self._flusher = None
        self._queue.clear()
        self._queue_bytes = 0
        if self._transport is not None:
            self._transport.abort()
        if self._core.is_up:
            self._owner.on_link_down(self, error)
            self._core.down(answer)

    async def wait_gone(self) -> None:
        """Until its socket is closed. Only after it was connected and taken down."""
        await self._gone.wait()

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._owner.on_link_made(self)
        # Told at the first byte that does not fit, so that what waits stays here, uncopied.
        # (asyncio's TLS pauses at its limit, not above it: at 0 it would with nothing to write.)
        is_tls = transport.get_extra_info("sslcontext") is not None
        transport.set_write_buffer_limits(high=1 if is_tls else 0)
        _set_options(transport.get_extra_info("socket"))
        if not self._core.is_up:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        core = self._core
        if not core.is_up:
            return
        had_answered = core.has_answered
        try:
            core.receive(data)
        except (FormatError, Corrupt) as error:
            self.take_down(Answer.DISCONNECTED, error)
        if not had_answered and core.has_answered and core.is_up:
            self._owner.on_first_answer(self)

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            self.take_down(Answer.DISCONNECTED)
        finally:
            self._transport = None
            self._gone.set()
            self._owner.on_link_gone(self)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._flush()

    # --- Sending

    def _send(self, buffer: Buffer) -> None:
        """The first of a turn at once, what follows in the same turn together."""
        self._queue.append(buffer)
        self._queue_bytes += len(buffer)
        if self._flusher is None:
            self._flusher = self._loop.call_soon(self._flush_later)
            self._flush()
        elif self._queue_bytes >= LINK_UNSENT_BYTES_MAX:
            self._flush()
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _flush_later(self) -> None:
        self._flusher = None
        self._flush()

    def _flush(self) -> None:
        transport, queue = self._transport, self._queue
        while queue and self._writable and transport is not None:
            transport.write(self._next_piece())
        clogged = self._queue_bytes >= LINK_UNSENT_BYTES_MAX // (2 if self._clogged else 1)
        if clogged is not self._clogged:
            self._clogged = clogged
            self._on_clogged(clogged)

    def _next_piece(self) -> Buffer:
        """Small buffers joined, a large one in slices: about `WRITE_BYTES_MAX`."""
        queue = self._queue
        piece = queue.popleft()
        if len(piece) > WRITE_BYTES_MAX:
            view = memoryview(piece)
            queue.appendleft(view[WRITE_BYTES_MAX:])
            piece = view[:WRITE_BYTES_MAX]
        elif queue:
            pieces, together = [piece], len(piece)
            while queue and together + len(queue[0]) <= WRITE_BYTES_MAX:
                together += len(queue[0])
                pieces.append(queue.popleft())
            if len(pieces) > 1:
                piece = b"".join(pieces)
        self._queue_bytes -= len(piece)
        return piece

    def _on_clogged(self, clogged: bool) -> None:
        """The unsent bytes reached their limit, or are well below it again."""

    def _sweep(self) -> None:
        self._sweeper = None
        if not self._core.is_up:
            return
        is_worn_out = False
        try:
            is_worn_out = not self._core.sweep(self._clock.monotonic_s())
        finally:  # one who fails on hearing of silence must not silence the others
            if self._core.is_up and not self._core.is_idle() and self._sweeper is None:
                self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)
        if is_worn_out:
            _log.warning("%s owes answers for too long; the connection is given up", self.where)
            self.take_down(Answer.DISCONNECTED)

    def _deadline_s(self, timeout_ms: float) -> float:
        if os.getpid() != self._pid:
            raise ForkedHandle("this connection was opened in another process, before a fork")
        return self._clock.monotonic_s() + timeout_ms / 1000

    def _note(self, answer: Answer) -> None:
        self._owner.on_trouble(self, answer)


class BookieDataLink(Link):
    """The binary protocol; a recovery link if `recovery`."""

    def __init__(
        self,
        bookie_id: str,
        where: str,
        owner: LinkOwner,
        clock: Clock,
        *,
        recovery: bool = False,
    ) -> None:
        super().__init__(bookie_id, where, owner, clock)
        core = DataConnection(
            self,
            where,
            send=self._send,
            note=self._note,
            on_hung=self._on_hung,
            on_room=self._on_room,
            may_fence=recovery,
        )
        # As they are: one call less for each run of adds.
        self.send_adds = core.send_adds
        self.settle = core.settle
        self.detach = core.detach
        self._core = self._data = core

    @property
    def has_room(self) -> bool:
        return self._data.has_room

    def attach(self, ledger_id: int, sink: AddSink) -> None:
        if self._data.is_up:
            self._data.attach(ledger_id, sink)
        else:
            self._loop.call_soon(sink.on_down, self, self._data.end)

    async def read(
        self, ledger_id: int, entry_id: int, *, timeout_ms: float, fence_key: bytes | None = None
    ) -> ReadReply:
        deadline_s = self._deadline_s(timeout_ms)
        refusal = self._data.refusal()
        if refusal is not None:
            return ReadReply(refusal, ledger_id, entry_id, None)
        replied: asyncio.Future[ReadReply] = self._loop.create_future()
        self._data.read(
            ledger_id,
            entry_id,
            deadline_s=deadline_s,
            fence_key=fence_key,
            on_reply=partial(_settle, replied),
        )
        return await replied

    async def batch_read(
        self,
        ledger_id: int,
        first_entry: int,
        *,
        count_max: int,
        frame_bytes_max: int,
        timeout_ms: float,
        fence_key: bytes | None = None,
    ) -> BatchReadReply:
        deadline_s = self._deadline_s(timeout_ms)
        refusal = self._data.refusal()
        if refusal is not None:
            return BatchReadReply(refusal, ledger_id, first_entry, 0, [])
        replied: asyncio.Future[BatchReadReply] = self._loop.create_future()
        self._data.batch_read(
            ledger_id,
            first_entry,
            count_max=count_max,
            frame_bytes_max=frame_bytes_max,
            deadline_s=deadline_s,
            fence_key=fence_key,
            on_reply=partial(_settle, replied),
        )
        return await replied

    def _on_clogged(self, clogged: bool) -> None:
        self._data.clogged(clogged)

    def _on_hung(self) -> None:
        self._owner.on_hung(self)

    def _on_room(self) -> None:
        self._loop.call_soon(self._data.tell_room)


class BookieControlLink(Link):
    """The protobuf protocol."""

    def __init__(self, bookie_id: str, where: str, owner: LinkOwner, clock: Clock) -> None:
        super().__init__(bookie_id, where, owner, clock)
        self._control = self._core = ControlConnection(where, send=self._send, note=self._note)

    def ask_soon(
        self,
        pack: Callable[[int], bytes],
        on_answer: Callable[[Response], None],
        *,
        timeout_ms: float,
    ) -> None:
        deadline_s = self._deadline_s(timeout_ms)
        refusal = self._control.refusal()
        if refusal is not None:
            self._loop.call_soon(on_answer, self._control.refused(pack, refusal))
        else:
            self._control.ask(pack, deadline_s=deadline_s, on_answer=on_answer)

    async def ask(self, pack: Callable[[int], bytes], *, timeout_ms: float) -> Response:
        answered: asyncio.Future[Response] = self._loop.create_future()
        self.ask_soon(pack, partial(_settle, answered), timeout_ms=timeout_ms)
        return await answered


def _settle(future: asyncio.Future[T], value: T) -> None:
    if not future.done():  # whoever waited was cancelled
        future.set_result(value)


def _set_options(end: socket.socket) -> None:
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):  # a platform that has the name only
                end.setsockopt(socket.IPPROTO_TCP, option, value)
