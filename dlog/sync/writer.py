"""The sync writer. `submit` fills the batcher on the caller's thread and returns; nothing crosses
threads per message."""

from __future__ import annotations

import atexit
import functools
import os
import weakref
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Protocol

from dlog.clock import SYSTEM_CLOCK
from dlog.errors import BufferFull, ConfigError, DlogError, Timeout
from dlog.ids import MessageId, Token
from dlog.options import LogOptions, WriterOptions
from dlog.reader.resolve import Resolved
from dlog.reason import Reason
from dlog.sync.portal import Portal
from dlog.writer import writer as aio
from dlog.writer.arguments import EventTime, HeadersArg, Producer, as_producer, as_tail
from dlog.writer.batcher import window_full
from dlog.writer.run import Run
from dlog.writer.tickets import IdRun, Ticket, wait_for_batch
from dlog.writer.times import TakeoverTimes

INTERRUPTED_S = 0.5  # for a last flush when Ctrl-C leaves `with`: what hangs must not hang the exit


class Closeable(Protocol):
    def close(self) -> None: ...

    def abandon(self) -> None: ...


class Writer:
    """The one effective writer of a log, until another one opens it. Thread-safe."""

    def __init__(self, inner: aio.Writer, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal
        self._batcher = inner._engine.batcher
        self._offer: aio.Offer = self._batcher.offer
        self._owned: Closeable | None = None
        self._pid = os.getpid()
        self._closed = False
        _open_writers.add(self)

    def own(self, client: Closeable) -> None:
        """Close this client with us."""
        self._owned = client

    # --- what it is

    @property
    def log(self) -> str:
        return self._inner.log

    @property
    def epoch(self) -> int:
        """The fencing token: it grows with every takeover. Pass it to whatever else must refuse a
        zombie."""
        return self._inner.epoch

    @property
    def last_id(self) -> MessageId | None:
        """The last message that this writer had acknowledged."""
        return self._inner.last_id

    @property
    def options(self) -> WriterOptions:
        """Those in force: as it was opened with, and as a document that its client follows says."""
        return self._inner.options

    @property
    def log_options(self) -> LogOptions:
        """Of the log, as they hold for this writer."""
        return self._inner.log_options

    @property
    def takeover_times(self) -> TakeoverTimes:
        """How long it took to become the writer, step by step."""
        return self._inner.takeover_times

    @property
    def closed(self) -> bool:
        return self._closed or self._inner.closed

    # --- messages

    def append(
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
        deadline = _deadline(timeout)
        ticket = self.submit(
            value,
            key=key,
            headers=headers,
            event_time=event_time,
            if_tail=if_tail,
            producer=producer,
            timeout=timeout,
        )
        return ticket.result(_left(deadline))

    def submit(
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
        """On its way, in order; `ticket.result()` gives the id. Waits, at most `timeout` s, while
        the window is full.

        `if_tail` is the id of the last message that the caller knows, or "empty": `Conflict` unless
        it still is the last one. `producer` is an id and a number that grows with each message of
        that producer: a number that the log has is refused (`AlreadyExists`, with `error.id` if
        known), one that is on its way gives the same ticket. So a retry needs no guess."""
        offer = self._offer
        if if_tail is not None or producer is not None:
            offer = self._marked(if_tail, producer, timeout)
        ticket = offer(value, key, headers, event_time)
        if ticket is not None:
            return ticket
        deadline = _deadline(timeout)
        while True:
            self._wait_room(deadline)
            ticket = offer(value, key, headers, event_time)
            if ticket is not None:
                self._batcher.passed_on()
                return ticket

    def _marked(
        self, if_tail: MessageId | str | None, producer: Producer | None, timeout: float | None
    ) -> aio.Offer:
        """Crosses to the loop's thread only until what has to be known is known."""
        self._check()
        is_known = producer is None or self._inner._engine.core.seen.meta.producers
        if is_known and (if_tail is None or self._batcher.knows_tail):
            return functools.partial(
                self._batcher.offer_marked,
                if_tail=None if if_tail is None else as_tail(if_tail),
                producer=as_producer(producer),
            )
        return self._portal.run(self._inner.marked(if_tail, producer, timeout))

    def append_many(
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
        deadline = _deadline(timeout)
        if producer is not None and not self._inner._engine.core.seen.meta.producers:
            self._portal.run(self._inner.allow_numbers(timeout))
        run = Run(
            self._batcher, values, keys, headers, producer=as_producer(producer), atomic=atomic
        )
        while not run.step():
            try:
                self._wait_room(deadline)
            except (BufferFull, Timeout) as full:
                raise run.cut_short(full) from None
        for batch in run.batches():
            if not batch.done:
                wait_for_batch(batch, _left(deadline))
        return run.ids()

    def resolve(self, token: Token) -> Resolved:
        """What became of a message of this log, whoever sent it: see `Client.resolve`."""
        return self._portal.run(self._inner.resolve(token))

    def flush(self, *, timeout: float | None = None) -> None:
        """Everything submitted by now is acknowledged once this returns."""
        self._check()
        self._portal.run(self._inner.flush(timeout=timeout))

    def _check(self) -> None:
        refusal = self._batcher.refusal
        if refusal is not None:
            raise refusal.again()

    def _wait_room(self, deadline: float | None) -> None:
        if self._inner.options.on_full == "raise":
            raise window_full()
        self._batcher.wait_room(deadline)

    # --- life

    def rotate(self, *, timeout: float | None = None) -> None:
        """Begin a new segment now, whatever the limits say; appends go on meanwhile."""
        self._check()
        self._portal.run(self._inner.rotate(timeout=timeout))

    def why(self) -> Reason | None:
        """What the writer waits for now, and since when: acknowledgements of bookies, a rotation
        that cannot go on while ZooKeeper is away. None when it waits for nothing. A wait that
        lasts longer than `stall_after_ms` is logged as well."""
        return self._portal.ask(self._inner.why)

    def hand_over(self, to: str | None = None, *, timeout: float | None = None) -> None:
        """Flush, close, and leave the log sealed for the next writer: it opens without fencing or
        recovery.

        `to` names who is expected, for `describe`; others may still open. The handle is closed
        afterwards. `Timeout` where the log cannot be sealed for 30 s: all is acknowledged, and the
        next writer recovers its end."""
        self._check()
        self._end(self._inner.hand_over(to, timeout=timeout))

    def terminate(self, *, timeout: float | None = None) -> None:
        """Flush, close, and end the log for good: it takes no more messages from anybody, and
        readers that follow come to their end. The handle is closed afterwards. `Timeout` where the
        log cannot be sealed for 30 s: end it with `admin.terminate`."""
        self._check()
        self._end(self._inner.terminate(timeout=timeout))

    def close(self, *, timeout: float | None = None) -> None:
        """Flush, close, seal. Raises what ended the writer if messages were lost that nobody was
        told about. Messages are waited for until they are acknowledged, or for `timeout` seconds
        (see `why`); a seal for 30 s, and then the next writer recovers the end of the log."""
        if self._closed:
            return
        if not self._portal.usable:
            self._closed = True
            return
        self._end(self._inner.close(timeout=timeout))

    def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        self._closed = True
        owned, self._owned = self._owned, None
        patient = True
        try:
            self._portal.run(ending)
        except BaseException as error:
            # After a timeout or Ctrl-C nobody waits a second time for what hung the first time.
            patient = isinstance(error, DlogError) and not isinstance(error, Timeout)
            raise
        finally:
            if owned is not None:
                (owned.close if patient else owned.abandon)()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close(timeout=INTERRUPTED_S if isinstance(error, KeyboardInterrupt) else None)
        except DlogError as second:
            error.add_note(f"closing the writer failed, too: {second}")

    def drop(self) -> None:
        """Nobody closed it: say so, with the number of messages that it costs."""
        if self._closed or not self._portal.usable:
            return
        self._closed = True
        self._inner._closed = True
        try:
            aio.drop(self._inner._engine, self._portal.loop)
        finally:
            if self._owned is not None:
                self._owned.abandon()

    def forget(self) -> None:
        """At the end of the program: say what it costs that nobody closed it, and leave it be."""
        if not self._closed and self._portal.usable:
            self._closed = self._inner._closed = True
            aio.tell_dropped(self._inner._engine, self._inner._engine.unacknowledged)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.drop()

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> str:
        raise ConfigError("a writer cannot be pickled: open one where it is needed")


_open_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


@atexit.register
def _tell_all() -> None:
    """The program ends. Only daemon threads are left, and they are told nothing: one that wakes to
    print its error now would hold the lock of stderr when the interpreter needs it, and abort
    it."""
    for writer in list(_open_writers):
        writer.forget()


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else SYSTEM_CLOCK.monotonic_s() + timeout


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - SYSTEM_CLOCK.monotonic_s()
