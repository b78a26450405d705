"""The async writer: what `await client.open_writer(...)` gives. A thin face of the engine.

All methods may be called from any task; `append`, `submit` and `append_many` also from other
threads' event loops.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Protocol, TypeVar

from dlog.drive import Closeable
from dlog.errors import (
    BufferFull,
    ConfigError,
    DlogError,
    Handle,
    Outcome,
    Retry,
    Timeout,
    WriterClosed,
)
from dlog.ids import MessageId, Token
from dlog.options import LogOptions, WriterOptions
from dlog.reader.resolve import Resolved
from dlog.reason import Reason
from dlog.writer.arguments import EventTime, HeadersArg, Producer, as_producer, as_tail
from dlog.writer.batcher import window_full, window_timeout
from dlog.writer.core import WriterState
from dlog.writer.engine import Engine
from dlog.writer.rotation import Ending
from dlog.writer.run import Run
from dlog.writer.tickets import IdRun, Ticket, until_resolved
from dlog.writer.times import TakeoverTimes

_Answer = TypeVar("_Answer")
Offer = Callable[..., Ticket | None]
_log = logging.getLogger("dlog.writer")


class Looks(Protocol):
    """What a writer asks of its log that only a reader can tell."""

    async def last_id(self) -> MessageId | None: ...
    async def resolve(self, token: Token) -> Resolved: ...


class Writer:
    """The one effective writer of a log, until another one opens it."""

    def __init__(self, engine: Engine, looks: Looks) -> None:
        self._engine = engine
        self._looks = looks
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
    def options(self) -> WriterOptions:
        """Those in force: as it was opened with, and as a document that its client follows says."""
        return self._engine.options

    @property
    def log_options(self) -> LogOptions:
        """Of the log, as they hold for this writer."""
        return self._engine.core.log_options

    @property
    def takeover_times(self) -> TakeoverTimes:
        """How long it took to become the writer, step by step."""
        return self._engine.takeover_times

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
        if_tail: MessageId | str | None = None,
        producer: Producer | None = None,
        timeout: float | None = None,
    ) -> MessageId:
        """Durable, and readable by anyone, once this returns. A `timeout` abandons the wait, not
        the message. `if_tail` and `producer` as of `submit`."""
        deadline = self._deadline(timeout)
        ticket = await self.submit(
            value,
            key=key,
            headers=headers,
            event_time=event_time,
            if_tail=if_tail,
            producer=producer,
            timeout=timeout,
        )
        try:
            return await within(deadline, ticket, timeout)
        except Timeout as late:
            raise ticket.named(late) from late.__cause__

    async def submit(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersArg | None = None,
        event_time: EventTime | None = None,
        if_tail: MessageId | str | None = None,
        producer: Producer | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """On its way, in order; `await` the ticket for the id. Waits, at most `timeout` s, while
        the window is full.

        `if_tail` is the id of the last message that the caller knows, or "empty": `Conflict` unless
        it still is the last one. `producer` is an id and a number that grows with each message of
        that producer: a number that the log has is refused (`AlreadyExists`, with `error.id` if
        known), one that is on its way gives the same ticket. So a retry needs no guess."""
        batcher = self._engine.batcher
        deadline = None
        offer: Offer = batcher.offer
        if if_tail is not None or producer is not None:
            deadline = self._deadline(timeout)
            offer = await self.marked(if_tail, producer, timeout)
        ticket = offer(value, key, headers, event_time)
        if ticket is not None:
            return ticket
        deadline = deadline or self._deadline(timeout)
        while True:
            await self._room(deadline)
            ticket = offer(value, key, headers, event_time)
            if ticket is not None:
                batcher.passed_on()
                return ticket

    async def marked(
        self, if_tail: MessageId | str | None, producer: Producer | None, timeout: float | None
    ) -> Offer:
        """How a message is offered that is taken on a condition only: what that needs to be known
        is looked up first."""
        batcher = self._engine.batcher
        marks: dict[str, Any] = {}
        if if_tail is not None:
            marks["if_tail"] = as_tail(if_tail)
        if producer is not None:
            marks["producer"] = as_producer(producer)
        deadline = self._deadline(timeout)
        try:
            if producer is not None:
                await self.allow_numbers(timeout)
            if if_tail is not None and not batcher.knows_tail:
                self._check()
                last_id = self._looks.last_id()
                batcher.tail_was(await within(deadline, last_id, timeout, is_sent=False))
        except DlogError as error:
            raise error.again(outcome=Outcome.NOT_HAPPENED) from error.__cause__
        return functools.partial(batcher.offer_marked, **marks)

    async def allow_numbers(self, timeout: float | None) -> None:
        self._check()
        engine = self._engine
        if not engine.core.seen.meta.producers:
            asking = engine.allow_numbers()
            deadline, in_the_way = self._deadline(timeout), engine.watch.in_the_way
            await within(deadline, asking, timeout, in_the_way, is_sent=False)
            self._check()

    async def append_many(
        self,
        values: Iterable[bytes | None],
        *,
        keys: Iterable[bytes | None] | None = None,
        headers: Iterable[HeadersArg | None] | None = None,
        producer: Producer | None = None,
        atomic: bool = False,
        timeout: float | None = None,
    ) -> IdRun:
        """All of them, in order, acknowledged; their ids as a lazy run. A crash may cut the run, in
        order.

        `atomic` puts all into one entry, so that either all are there or none, or refuses
        (`TooLarge`). `producer` is an id and the number of the first message: what the log has of
        the run is left out (`ids.skipped`), and `AlreadyExists` says that it has all."""
        deadline = self._deadline(timeout)
        if producer is not None:
            await self.allow_numbers(timeout)
        run = Run(
            self._engine.batcher,
            values,
            keys,
            headers,
            producer=as_producer(producer),
            atomic=atomic,
        )
        while not run.step():
            try:
                await self._room(deadline)
            except (BufferFull, Timeout) as full:
                raise run.cut_short(full) from None
        for batch in run.batches():
            if not batch.done:
                await within(deadline, until_resolved(batch), timeout)
        return run.ids()

    async def resolve(self, token: Token) -> Resolved:
        """What became of a message of this log, whoever sent it: see `Client.resolve`."""
        return await self._looks.resolve(token)

    async def flush(self, *, timeout: float | None = None) -> None:
        """Everything submitted by now is acknowledged once this returns."""
        self._check()
        await within(self._deadline(timeout), self._engine.flush(), timeout)

    # --- life

    async def rotate(self, *, timeout: float | None = None) -> None:
        """Begin a new segment now, whatever the limits say; appends go on meanwhile."""
        self._check()
        engine = self._engine
        await within(self._deadline(timeout), engine.rotate(), timeout, engine.watch.in_the_way)

    def why(self) -> Reason | None:
        """What the writer waits for now, and since when: acknowledgements of bookies, a rotation
        that cannot go on while ZooKeeper is away. None when it waits for nothing. A wait that
        lasts longer than `stall_after_ms` is logged as well."""
        return self._engine.watch.why()

    async def hand_over(self, to: str | None = None, *, timeout: float | None = None) -> None:
        """Flush, close, and leave the log sealed for the next writer: it opens without fencing or
        recovery.

        `to` names who is expected, for `describe`; others may still open. The handle is closed
        afterwards. `Timeout` where the log cannot be sealed for 30 s: all is acknowledged, and the
        next writer recovers its end."""
        self._check()
        failure = await self._end(Ending.HAND_OVER, timeout, hand_over_to=to)
        if failure is not None:
            raise as_end(failure)

    async def terminate(self, *, timeout: float | None = None) -> None:
        """Flush, close, and end the log for good: it takes no more messages from anybody, and
        readers that follow come to their end. The handle is closed afterwards. `Timeout` where the
        log cannot be sealed for 30 s: end it with `admin.terminate`."""
        self._check()
        failure = await self._end(Ending.TERMINATE, timeout)
        if failure is not None:
            raise as_end(failure)

    async def close(self, *, timeout: float | None = None) -> None:
        """Flush, close, seal. Raises what ended the writer if messages were lost that nobody was
        told about. Messages are waited for until they are acknowledged, or for `timeout` seconds
        (see `why`); a seal for 30 s, and then the next writer recovers the end of the log.
        Cancelling abandons the wait only; `close` again waits again."""
        if os.getpid() != self._pid:
            return  # it lives on in the parent, whose it is to close
        if self._ending is not None and self._ending.done():
            return
        if self._closed and self._ending is None:
            return  # dropped
        await self._end(Ending.CLOSE, timeout)
        for batch in self._engine.failed_batches:
            if not batch.error_seen and batch.error is not None:
                raise batch.error.again()

    async def _end(
        self, ending: Ending, timeout: float | None, *, hand_over_to: str | None = None
    ) -> DlogError | None:
        """One task ends the handle and what it owns, however many wait for it or give up."""
        self._closed = True
        if self._ending is None:
            self._ending = self._loop.create_task(self._shut_down(ending, hand_over_to))
        task = self._ending
        try:
            return await within(self._deadline(timeout), asyncio.shield(task), timeout)
        except Timeout as late:
            self._engine.abandon(WriterClosed("closed before all was acknowledged", log=self.log))
            task.cancel()  # it lets go by itself: the caller's time is over
            raise as_end(late) from late.__cause__
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if task.cancelled() and (caller is None or not caller.cancelling()):
                # Not us: somebody else who waited for the end had a time-out.
                return WriterClosed("closed before all was acknowledged", log=self.log)
            raise

    async def _shut_down(self, ending: Ending, hand_over_to: str | None) -> DlogError | None:
        try:
            return await self._engine.close(ending, hand_over_to=hand_over_to)
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
        await self.wait_room(deadline)

    async def wait_room(self, deadline: float | None) -> None:
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


def as_end(failure: DlogError) -> DlogError:
    """What kept a handle from ending as it was asked to: the handle is closed all the same."""
    twin = failure.again(handle=Handle.DEAD)
    if twin.retry is Retry.NOW:
        twin.retry = Retry.AFTER_REOPEN
    return twin


async def within(
    deadline: float | None,
    wait: Awaitable[_Answer],
    timeout: float | None,
    in_the_way: Callable[[], DlogError | None] = lambda: None,
    *,
    is_sent: bool = True,
) -> _Answer:
    """Our own `Timeout` when the deadline passes first; what was asked goes on. It carries what is
    known to be in the way. `is_sent` False: the message of the caller waits for this."""
    if deadline is None:
        return await wait
    try:
        async with asyncio.timeout_at(deadline):
            return await wait
    except TimeoutError as error:
        if isinstance(error, Timeout):
            raise
        cause = in_the_way()
        about = {} if cause is None else cause.about
        because = "" if cause is None else f": {cause}"
        became = "it may still happen" if is_sent else "nothing was sent"
        raise Timeout(
            f"not done within {timeout} s; {became}{because}",
            outcome=Outcome.UNKNOWN if is_sent else Outcome.NOT_HAPPENED,
            **about,
        ) from cause


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
