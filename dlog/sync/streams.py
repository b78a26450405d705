"""Sync streams: `submit` finds the lane of a key and fills it on the caller's thread. What has to
wait for a shard that is being split or merged goes over to the loop's thread."""

from __future__ import annotations

import atexit
import functools
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from dlog.clock import SYSTEM_CLOCK
from dlog.errors import ConfigError, DlogError, ReaderClosed
from dlog.ids import MessageId, Token
from dlog.limits import STREAM_PATIENCE_MS_DEFAULT
from dlog.reader.lag import Lag
from dlog.reader.resolve import Resolved
from dlog.reason import Reason
from dlog.streams import reader as aio_reader
from dlog.streams import stream as aio_stream
from dlog.streams import writer as aio_writer
from dlog.streams.document import Shard
from dlog.streams.following import Lane, Table
from dlog.streams.holding import StreamHoldSummary
from dlog.streams.lanes import producer_key
from dlog.streams.places import StreamPosition
from dlog.streams.reader import FromShard, ReadingOrder, ShardBatch, StreamStart
from dlog.streams.stream import StreamDescription
from dlog.streams.tails import ShardTail
from dlog.sync.portal import Answer, Portal
from dlog.sync.writer import INTERRUPTED_S
from dlog.writer.arguments import EventTime, HeadersArg, Producer, as_producer
from dlog.writer.batcher import window_full
from dlog.writer.tickets import Ticket


class Stream:
    """A named set of shards, each of them one log. A plain log is a stream of one shard."""

    def __init__(self, inner: aio_stream.Stream, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    @property
    def name(self) -> str:
        return self._inner.name

    def open_writer(self, *, shards: Iterable[int] | None = None, **options: Any) -> StreamWriter:
        """Become the one writer of all shards, those to come included, or of these, and what
        follows them; older writers of theirs are fenced. Options are a writer's; the window is
        shared by the shards."""
        opening = _opened(self._inner.open_writer, shards=shards, **options)
        return StreamWriter(self._portal.run(opening), self._portal)

    def open_reader(
        self,
        *,
        start: StreamStart = "earliest",
        order: ReadingOrder = "arrival",
        patience_ms: int = STREAM_PATIENCE_MS_DEFAULT,
        shards: Iterable[int] | None = None,
        **options: Any,
    ) -> StreamReader:
        """Read all shards, or these, each key in order, from `start`: "earliest", "latest", a
        StreamPosition or an aware datetime. `order="time"` hands out the oldest message first, by
        the times that writers stamped; while a shard is idle, what others have waits until it is
        `patience_ms` old. Other options are a reader's."""
        opening = _opened(
            self._inner.open_reader,
            start=start,
            order=order,
            patience_ms=patience_ms,
            shards=shards,
            **options,
        )
        return StreamReader(self._portal.run(opening), self._portal)

    def shards(self) -> tuple[Shard, ...]:
        """All that are listed, oldest first, those that ended included."""
        return self._portal.run(self._inner.shards())

    def tails(self) -> tuple[ShardTail, ...]:
        """Where each shard ends now, oldest first: a cut that is right in every key. Shards whose
        logs are not made yet are left out."""
        return self._portal.run(self._inner.tails())

    def describe(self) -> StreamDescription:
        """Asks each shard's log where it stands."""
        return self._portal.run(self._inner.describe())

    def split(
        self, shard: int, *, at: int | Sequence[int] | None = None, parts: int = 2
    ) -> tuple[Shard, ...]:
        """A shard's keys go on in several: in equal parts of its hash range, or cut before the
        hashes `at`. The new shards. Writers go on by themselves; a key stays in order."""
        return self._portal.run(self._inner.split(shard, at=at, parts=parts))

    def merge(self, *shards: int) -> Shard:
        """The keys of neighbours go on in one new shard."""
        return self._portal.run(self._inner.merge(*shards))

    def pin(self, key: bytes, shard: int) -> tuple[Shard, ...]:
        """From now on this key goes to that shard, whatever its hash says. The shard that has the
        key, and the one that gets it, both go on in new ones, which are the answer; none if nothing
        had to move."""
        return self._portal.run(self._inner.pin(key, shard))

    def unpin(self, key: bytes) -> tuple[Shard, ...]:
        """The key goes back to the shard that has its hash."""
        return self._portal.run(self._inner.unpin(key))

    def terminate(self) -> None:
        """No more messages, for good: writers are fenced, readers come to an end."""
        self._portal.run(self._inner.terminate())

    def trim(self, *, dry_run: bool = False) -> tuple[int, ...]:
        """Forget the shards that ended and were truncated to their end, and remove their logs:
        their numbers. Nobody can read anything there any more."""
        return self._portal.run(self._inner.trim(dry_run=dry_run))

    def hold(self, hold: str, *, who: str | None = None) -> None:
        """Keep the stream from being truncated by any policy, what is there and what comes, also in
        shards to come. `admin.hold` of the same name moves it on in a shard's log; where it is not
        moved, all of the shard is kept. Again, it changes nothing."""
        self._portal.run(self._inner.hold(hold, who=who))

    def holds(self) -> tuple[StreamHoldSummary, ...]:
        """On the whole stream, by name; those of consumer groups included."""
        return self._portal.run(self._inner.holds())

    def drop_hold(self, hold: str) -> None:
        """On the stream, and of the same name on its shards. `NotFound` when there is none."""
        self._portal.run(self._inner.drop_hold(hold))

    def remove(self) -> None:
        """Delete the stream with all its logs, under its readers and its writers."""
        self._portal.run(self._inner.remove())

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> str:
        raise ConfigError("a stream cannot be pickled: pass its name, and connect there")


class StreamWriter:
    """The one effective writer of some shards, or all, of a stream. Thread-safe."""

    def __init__(self, inner: aio_writer.StreamWriter, portal: Portal) -> None:
        self._inner = inner
        self._following = inner._following
        self._portal = portal
        self._raise_when_full = inner._options.on_full == "raise"
        self._closed = False
        _open_writers.add(self)

    # --- what it is

    @property
    def stream(self) -> str:
        return self._inner.stream

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards that it writes now."""
        return self._inner.shards

    @property
    def version(self) -> int:
        """Of the stream, as this writer routes by it."""
        return self._inner.version

    @property
    def epochs(self) -> dict[int, int]:
        """The fencing token of each shard."""
        return self._inner.epochs

    @property
    def moves(self) -> int:
        """How often shards ended under it, and it went on in others."""
        return self._inner.moves

    @property
    def closed(self) -> bool:
        return self._closed or self._inner.closed

    def shard_of(self, key: bytes) -> int:
        """Where a message with this key would go now."""
        return self._inner.shard_of(key)

    def why(self) -> dict[int, Reason]:
        """What shards wait for now, of those that wait."""
        return self._portal.ask(self._inner.why)

    # --- messages

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersArg | None = None,
        event_time: EventTime | None = None,
        producer: Producer | None = None,
        timeout: float | None = None,
    ) -> MessageId:
        """Durable, and readable by anyone, once this returns. A `timeout` abandons the wait, not
        the message."""
        deadline = _deadline(timeout)
        ticket = self.submit(
            value,
            key=key,
            headers=headers,
            event_time=event_time,
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
        producer: Producer | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """On its way, in order with all that have the same key; `ticket.result()` gives the id.
        Waits, at most `timeout` s, while the window of its shard is full or the shard is being
        split or merged. Messages without a key go to the shards in turn.

        `producer` is an id and a number that grows with each message of that producer, whichever
        shard it goes to: a number that was taken before is refused (`AlreadyExists`), also if the
        shard was split or merged since. Who sends again after a crash sends in order, from the
        first message on that was not acknowledged."""
        following = self._following
        table = following.table
        if producer is None:
            if key is not None:
                lane = table.known.get(key) or table.find(key)
            else:
                lane = following.next_lane(table)
            if lane is not None:
                try:
                    ticket = lane.offer(value, key, headers, event_time)
                    if ticket is not None:
                        return ticket
                except DlogError as error:
                    self._until_moved(table, lane, error, timeout)
        return self._submit(value, key, headers, event_time, producer, timeout)

    def _submit(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersArg | None,
        event_time: EventTime | None,
        producer: Producer | None,
        timeout: float | None,
    ) -> Ticket:
        deadline, following = _deadline(timeout), self._following
        numbered = as_producer(producer)
        route = key
        if numbered is not None and key is None:
            route = producer_key(*numbered)
        has_looked = False
        while True:
            table = following.table
            lane = following.next_lane(table) if route is None else table.find(route)
            if lane is None:
                assert route is not None
                if has_looked:
                    lane = table.lane_of(route)  # it says whose it is
                else:
                    has_looked = True
                    self._portal.run(self._inner.look_again(_left(deadline)))
                    continue
            if numbered is not None and route is not None:
                following.refuse_taken(lane, route, numbered)
            try:
                offer = lane.offer if numbered is None else self._numbered(lane, numbered, deadline)
                while True:
                    ticket = offer(value, key, headers, event_time)
                    if ticket is not None:
                        lane.writer._engine.batcher.passed_on()
                        return ticket
                    if self._raise_when_full:
                        raise window_full()
                    lane.writer._engine.batcher.wait_room(deadline)
            except DlogError as error:
                self._until_moved(table, lane, error, _left(deadline))

    def _numbered(
        self, lane: Lane, numbered: Producer, deadline: float | None
    ) -> Callable[..., Ticket | None]:
        """Crosses to the loop's thread only for the first number of a log."""
        if not lane.writer._engine.core.seen.meta.producers:
            self._portal.run(lane.writer.marked(None, numbered, _left(deadline)))
        return functools.partial(lane.offer_marked, producer=numbered)

    def _until_moved(
        self, table: Table, lane: Lane, error: DlogError, timeout: float | None
    ) -> None:
        """A lane refused: wait for those that follow it, or raise what it said. The loop's thread
        decides, behind the turn in which the lane died."""
        if not self._portal.usable or not self._inner.may_have_moved(error):
            raise error
        self._portal.run(self._inner.until_moved(table, lane, error, timeout))

    def append_many(
        self,
        values: Iterable[bytes | None],
        *,
        keys: Iterable[bytes | None] | None = None,
        headers: Iterable[HeadersArg | None] | None = None,
        producer: Producer | None = None,
        timeout: float | None = None,
    ) -> aio_writer.StreamIds:
        """All of them, each to the shard of its key, acknowledged; their ids in the order given.
        `producer` is an id and the number of the first message; those after it count on. Messages
        that were taken before are left out (`ids.skipped`), and `AlreadyExists` says that all
        were."""
        deadline = _deadline(timeout)
        first = as_producer(producer)
        tickets: list[tuple[int, Ticket]] = []
        ids = aio_writer.StreamIds()
        for index, (value, key, pairs) in enumerate(aio_writer.rows(values, keys, headers)):
            numbered = None if first is None else (first[0], first[1] + index)
            left = _left(deadline)
            with ids.skipping(index):
                ticket = self.submit(value, key=key, headers=pairs, producer=numbered, timeout=left)
                tickets.append((index, ticket))
        for index, ticket in tickets:
            with ids.skipping(index):
                ids.append(ticket.result(_left(deadline)))
        return ids.checked()

    def flush(self, *, timeout: float | None = None) -> None:
        """Everything submitted by now is acknowledged once this returns, but for messages whose
        error was told before: by their tickets, or by a flush, which raises the first of those that
        failed and tells of all."""
        self._portal.run(self._inner.flush(timeout=timeout))

    def resolve(self, token: Token) -> Resolved:
        """What became of a message by its token, in the shard that it was sent to: see
        `dlog.aio`."""
        return self._portal.run(self._inner.resolve(token))

    # --- life

    def close(self, *, timeout: float | None = None) -> None:
        """Flush and close every lane. Raises the first failure, if messages were lost that nobody
        was told about."""
        if self._closed:
            return
        self._closed = True
        if self._portal.usable:
            self._portal.run(self._inner.close(timeout=timeout))

    def __enter__(self) -> StreamWriter:
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

    def forget(self) -> None:
        """At the end of the program: say what it costs that nobody closed it, and leave it be."""
        if not self.closed and self._portal.usable:
            self._closed = self._inner._closed = True
            for lane in self._following.all_lanes:
                lane.writer._closed = True
            told = self._inner.dropped(self._following.unacknowledged)
            warnings.warn(told, ResourceWarning, stacklevel=3)

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._inner.closed or not self._portal.usable:
            return
        self._closed = True
        warnings.warn(self._inner.drop(), ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> str:
        raise ConfigError("a writer cannot be pickled: open one where it is needed")


class StreamReader:
    """Messages of the shards of one stream, each key's in order. One thread reads it at a time."""

    def __init__(self, inner: aio_reader.StreamReader, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal
        self._closed = False

    @property
    def stream(self) -> str:
        return self._inner.stream

    @property
    def closed(self) -> bool:
        return self._closed or self._inner.closed

    @property
    def position(self) -> StreamPosition:
        """After the last message handed out: `start=reader.position` resumes behind it."""
        return self._inner.position

    @property
    def shards(self) -> tuple[int, ...]:
        """That are being read now."""
        return self._portal.ask(lambda: self._inner.shards)

    @property
    def version(self) -> int:
        """Of the stream, as this reader knows it."""
        return self._inner.version

    @property
    def late(self) -> int:
        """Messages that were handed out behind younger ones, reading by time."""
        return self._inner.late

    @property
    def at_tail(self) -> bool:
        """All that could be read has been handed out."""
        return self._portal.ask(lambda: self._inner.at_tail)

    def lag(self) -> dict[int, Lag]:
        """How far behind the tail each shard is that is being read. Asks the stores."""
        return self._run(self._inner.lag)

    def why(self) -> dict[int, Reason]:
        """What shards wait for now, of those that wait."""
        return self._portal.ask(self._inner.why)

    def __iter__(self) -> Iterator[FromShard]:
        while self._fill():
            while self._inner.has_rest:
                yield self._inner.hand_out()

    def batches(self) -> Iterator[ShardBatch]:
        """Messages as they lie in entries, fast. A batch counts as handed out when it is
        yielded."""
        while (chosen := self._run(self._inner.next_batch)) is not None:
            yield chosen

    def read(self, max_messages: int = 1000, timeout: float | None = None) -> list[FromShard]:
        """At least one message and up to `max_messages`, as soon as there are any. [] when none
        came within `timeout` seconds (None: waits), or at the end: see `at_tail`."""
        return self._run(self._inner.read, max_messages, timeout)

    def skip(self, shard: int) -> None:
        """Go on behind the entry of this shard that could not be decoded and just raised."""
        self._run(self._inner.skip, shard)

    def _fill(self) -> bool:
        """Something is to be handed out; False at the end. Hops only when there is nothing."""
        if self._inner.has_rest and not self.closed and self._portal.usable:
            return True
        return self._run(self._inner.fill)

    def _run(
        self, verb: Callable[..., Coroutine[Any, Any, Answer]], *args: Any, **kw: Any
    ) -> Answer:
        if self.closed:
            raise ReaderClosed(f"this reader of stream {self.stream!r} is closed")
        return self._portal.run(verb(*args, **kw))

    # --- life

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._portal.usable:
            self._portal.run(self._inner.close())

    def __enter__(self) -> StreamReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._inner.closed or not self._portal.usable:
            return
        self._closed = self._inner._closed = True
        self._portal.loop.call_soon_threadsafe(self._inner.drop)
        warnings.warn(self._inner.dropped, ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> str:
        raise ConfigError("a reader cannot be pickled: pass its position and open one there")


_open_writers: weakref.WeakSet[StreamWriter] = weakref.WeakSet()


@atexit.register
def _tell_all() -> None:
    """The program ends: see `dlog.sync.writer`."""
    for writer in list(_open_writers):
        writer.forget()


async def _opened(verb: Callable[..., Any], **options: Any) -> Any:
    return await verb(**options)


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else SYSTEM_CLOCK.monotonic_s() + timeout


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - SYSTEM_CLOCK.monotonic_s())
