"""The async writer: what `await client.open_writer(...)` gives. A thin face of the engine.

All methods may be called from any task; `append`, `submit` and `append_many` also from other
threads' event loops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import warnings
from collections.abc import Awaitable, Iterable
from types import TracebackType
from typing import TypeVar

from dlog.drive import Closeable
from dlog.errors import BufferFull, ConfigError, DlogError, Outcome, Timeout, WriterClosed
from dlog.ids import MessageId
from dlog.writer.arguments import EventTime, HeadersArg
from dlog.writer.batcher import window_full, window_timeout
from dlog.writer.core import WriterState
from dlog.writer.engine import Engine
from dlog.writer.run import Run
from dlog.writer.tickets import IdRun, Ticket, until_resolved

_Answer = TypeVar("_Answer")
_log = logging.getLogger("dlog.writer")


class Writer:
    """The one effective writer of a log, until another one opens it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._client: Closeable | None = None  # when it is ours alone
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._closed = False
        self._ending: asyncio.Task[DlogError | None] | None = None

    def own(self, client: Closeable) -> None:
        """Close this client with us."""
        self._client = client

    # --- what it is

    @property
    def log(self) -> str:
        return self._engine.name

    @property
    def epoch(self) -> int:
        """The fencing token: it grows with every takeover. Pass it to whatever else must refuse a
        zombie."""
        return self._engine.core.epoch

    @property
    def last_id(self) -> MessageId | None:
        """The last message that this writer had acknowledged."""
        return self._engine.last_id

    @property
    def closed(self) -> bool:
        return self._closed or self._engine.core.state in (WriterState.CLOSED, WriterState.DEAD)

    # --- messages

    async def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersArg | None = None,
        event_time: EventTime | None = None,
        timeout: float | None = None,
    ) -> MessageId:
        """Durable, and readable by anyone, once this returns. A `timeout` abandons the wait, not
        the message."""
        deadline = self._deadline(timeout)
        ticket = await self.submit(
            value, key=key, headers=headers, event_time=event_time, timeout=timeout
        )
        return await within(deadline, ticket, timeout)

    async def submit(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersArg | None = None,
        event_time: EventTime | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """On its way, in order; `await` the ticket for the id. Waits, at most `timeout` s, while
        the window is full."""
        batcher = self._engine.batcher
        ticket = batcher.offer(value, key, headers, event_time)
        if ticket is not None:
            return ticket
        deadline = self._deadline(timeout)
        while True:
            await self._room(deadline)
            ticket = batcher.offer(value, key, headers, event_time)
            if ticket is not None:
                batcher.passed_on()
                return ticket

    async def append_many(
        self,
        values: Iterable[bytes | None],
        *,
        keys: Iterable[bytes | None] | None = None,
        headers: Iterable[HeadersArg | None] | None = None,
        atomic: bool = False,
        timeout: float | None = None,
    ) -> IdRun:
        """All of them, in order, acknowledged; their ids as a lazy run. A crash may cut the run, in
        order.

        `atomic` puts all into one entry, so that either all are there or none, or refuses
        (`TooLarge`)."""
        deadline = self._deadline(timeout)
        run = Run(self._engine.batcher, values, keys, headers, atomic=atomic)
        while not run.step():
            try:
                await self._room(deadline)
            except (BufferFull, Timeout) as full:
                raise run.cut_short(full) from None
        for batch in run.batches():
            if not batch.done:
                await within(deadline, until_resolved(batch), timeout)
        return run.ids()

    async def flush(self, *, timeout: float | None = None) -> None:
        """Everything submitted by now is acknowledged once this returns."""
        self._check()
        await within(self._deadline(timeout), self._engine.flush(), timeout)

    # --- life

    async def rotate(self, *, timeout: float | None = None) -> None:
        """Begin a new segment now, whatever the limits say; appends go on meanwhile."""
        self._check()
        await within(self._deadline(timeout), self._engine.rotate(), timeout)

    async def hand_over(self, to: str | None = None, *, timeout: float | None = None) -> None:
        """Flush, close, and leave the log sealed for the next writer: it opens without fencing or
        recovery.

        `to` names who is expected, for `describe`; others may still open. The handle is closed
        afterwards."""
        self._check()
        failure = await self._end(timeout, hand_over_to=to, hand_over=True)
        if failure is not None:
            raise failure.again()

    async def close(self, *, timeout: float | None = None) -> None:
        """Flush, close, seal. Raises what ended the writer if messages were lost that nobody was
        told about. Cancelling abandons the wait only; `close` again waits again."""
        if os.getpid() != self._pid:
            return  # it lives on in the parent, whose it is to close
        if self._ending is not None and self._ending.done():
            return
        if self._closed and self._ending is None:
            return  # dropped
        await self._end(timeout, hand_over_to=None, hand_over=False)
        for batch in self._engine.failed_batches:
            if not batch.error_seen and batch.error is not None:
                raise batch.error.again()

    async def _end(
        self, timeout: float | None, *, hand_over_to: str | None, hand_over: bool
    ) -> DlogError | None:
        """One task ends the handle and what it owns, however many wait for it or give up."""
        self._closed = True
        if self._ending is None:
            self._ending = self._loop.create_task(self._shut_down(hand_over_to, hand_over))
        ending = self._ending
        try:
            return await within(self._deadline(timeout), asyncio.shield(ending), timeout)
        except Timeout:
            self._engine.abandon(WriterClosed("closed before all was acknowledged", log=self.log))
            ending.cancel()  # it lets go by itself: the caller's time is over
            raise

    async def _shut_down(self, hand_over_to: str | None, hand_over: bool) -> DlogError | None:
        try:
            return await self._engine.close(hand_over_to=hand_over_to, hand_over=hand_over)
        finally:
            if self._client is not None:
                await self._client.close()

    async def __aenter__(self) -> Writer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close()
        except DlogError as second:
            error.add_note(f"closing the writer failed, too: {second}")

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or os.getpid() != self._pid:
            return
        drop(self._engine, self._loop)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Writer of {self.log!r}, epoch {self.epoch}, {state}>"

    def __reduce__(self) -> str:
        raise ConfigError("a writer cannot be pickled: open one where it is needed")

    # --- inside

    def _check(self) -> None:
        refusal = self._engine.batcher.refusal
        if refusal is not None:
            raise refusal.again()

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else asyncio.get_running_loop().time() + timeout

    async def _room(self, deadline: float | None) -> None:
        if self._engine.options.on_full == "raise":
            raise window_full()
        batcher = self._engine.batcher
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()

        def arrive() -> None:
            if not arrived.done():
                arrived.set_result(None)

        def room() -> None:
            if threading.get_ident() == thread:
                arrive()
            else:
                loop.call_soon_threadsafe(arrive)

        thread = threading.get_ident()
        batcher.call_when_room(room)
        try:
            async with asyncio.timeout_at(deadline):
                await arrived
        except TimeoutError:
            batcher.forget_waiter(room)
            raise window_timeout() from None
        except BaseException:
            batcher.forget_waiter(room)  # also if it was just woken: the next one gets its place
            raise


async def within(
    deadline: float | None, wait: Awaitable[_Answer], timeout: float | None
) -> _Answer:
    """Our own `Timeout` when the deadline passes first; what was asked goes on."""
    if deadline is None:
        return await wait
    try:
        async with asyncio.timeout_at(deadline):
            return await wait
    except TimeoutError as error:
        if isinstance(error, Timeout):
            raise
        raise Timeout(
            f"not done within {timeout} s; it may still happen", outcome=Outcome.UNKNOWN
        ) from None


def drop(engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
    """Nobody holds the handle any more and it was not closed: say so, with what it costs."""
    error = WriterClosed(f"the writer of log {engine.name!r} was dropped", log=engine.name)
    count = engine.unacknowledged
    try:
        loop.call_soon_threadsafe(engine.abandon, error)
    except RuntimeError:
        pass  # the loop is gone, and everything with it
    tell_dropped(engine, count)


def tell_dropped(engine: Engine, count: int) -> None:
    what = (
        f"a writer of log {engine.name!r} was dropped without close(): "
        f"{count} messages were not acknowledged"
    )
    if count > 0:  # Python shows a ResourceWarning to developers only; a loss concerns everybody
        _log.warning(what)
    warnings.warn(what, ResourceWarning, stacklevel=4)  # last: it may be made an error
