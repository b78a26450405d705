"""The async writer of a stream: what `await stream.open_writer()` gives.

Each message goes to the lane of its key, which is the writer of one shard's log, with everything
that such a writer promises. What happens when shards are split or merged under it is decided in
`dlog.streams.lanes`; here it is done. Whoever submits meanwhile waits until the new lanes are
there, so a change is a pause for the keys that it concerns, and for no others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

from dlog.drive import Closeable, Stores
from dlog.errors import (
    AlreadyExists,
    Broken,
    ConfigError,
    DlogError,
    ForkedHandle,
    Handle,
    NotFound,
    Outcome,
    Timeout,
    Unsupported,
    WriterClosed,
)
from dlog.ids import MessageId, Token
from dlog.options import LogOptions, WriterOptions
from dlog.reader.looks import Looks
from dlog.reader.resolve import Never, Resolved, TooLate
from dlog.reason import Reason
from dlog.streams.following import Following, Lane, Table
from dlog.streams.lanes import producer_key
from dlog.streams.reshard import Site
from dlog.streams.tails import find_log, has_ended
from dlog.writer.arguments import EventTime, HeadersArg, Producer, as_producer
from dlog.writer.pipe import check_codec
from dlog.writer.tickets import Ticket, until_resolved
from dlog.writer.writer import as_end, within

_log = logging.getLogger("dlog.streams")


class StreamWriter:
    """The one effective writer of some shards, or all, of a stream."""

    def __init__(
        self,
        stores: Stores,
        site: Site,
        options: WriterOptions,
        log_options: LogOptions,
        shards: frozenset[int] | None,
    ) -> None:
        check_codec(options.codec)
        self._stores = stores
        self._site = site
        self._options = options
        self._following = Following(stores, site, options, log_options, shards)
        self._client: Closeable | None = None
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._closed = False
        self._ending: asyncio.Task[DlogError | None] | None = None

    def own(self, client: Closeable) -> None:
        """Close this client with us."""
        self._client = client

    async def open(self) -> None:
        """All lanes, or none."""
        following = self._following
        try:
            async with asyncio.timeout(self._options.open_timeout_ms / 1000):
                await following.begin()
            wanted, meta = following.core.wanted, following.core.meta
            assert meta is not None
            if wanted is not None and not wanted <= {s.number for s in meta.shards}:
                missing = sorted(wanted - {s.number for s in meta.shards})
                raise NotFound(f"stream {self.stream!r} has no shards {missing}")
            if not following.lanes:
                raise Unsupported(f"no shard of stream {self.stream!r} is open for this writer")
        except BaseException as error:
            self._closed = True
            await following.abandon()
            if isinstance(error, TimeoutError) and not isinstance(error, Timeout):
                raise Timeout(
                    f"stream {self.stream!r} could not be opened for writing within "
                    f"{self._options.open_timeout_ms} ms",
                    elapsed_ms=self._options.open_timeout_ms,
                ) from following.driver.in_the_way
            raise

    # --- what it is

    @property
    def stream(self) -> str:
        return self._site.name

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards that it writes now."""
        return tuple(sorted(self._following.table.lanes))

    @property
    def version(self) -> int:
        """Of the stream, as this writer routes by it."""
        meta = self._following.core.meta
        return 0 if meta is None else meta.version

    @property
    def epochs(self) -> dict[int, int]:
        """The fencing token of each shard."""
        return {number: lane.writer.epoch for number, lane in self._following.table.lanes.items()}

    @property
    def moves(self) -> int:
        """How often shards ended under it, and it went on in others."""
        return self._following.moves

    @property
    def closed(self) -> bool:
        return self._closed

    def shard_of(self, key: bytes) -> int:
        """Where a message with this key would go now."""
        return self._following.table.lane_of(key).shard.number

    def why(self) -> dict[int, Reason]:
        """What shards wait for now, of those that wait."""
        following = self._following
        reasons = ((n, following.why(lane)) for n, lane in following.table.lanes.items())
        return {number: reason for number, reason in reasons if reason is not None}

    # --- messages

    async def append(
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
        deadline = self._deadline(timeout)
        ticket = await self.submit(
            value,
            key=key,
            headers=headers,
            event_time=event_time,
            producer=producer,
            timeout=timeout,
        )
        return await within(deadline, ticket, timeout)

    async def submit(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersArg | None = None,
        event_time: EventTime | None = None,
        producer: Producer | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """On its way, in order with all that have the same key; `await` the ticket for the id.
        Waits, at most `timeout` s, while the window of its shard is full or the shard is being
        split or merged. Messages without a key go to the shards in turn.

        `producer` is an id and a number that grows with each message of that producer, whichever
        shard it goes to: a number that was taken before is refused (`AlreadyExists`), also if the
        shard was split or merged since. Who sends again after a crash sends in order, from the
        first message on that was not acknowledged."""
        if producer is None:
            table = self._following.table
            if key is not None:
                lane = table.known.get(key) or table.find(key)
            else:
                lane = self._following.next_lane(table)
            if lane is not None:
                try:
                    ticket = lane.offer(value, key, headers, event_time)
                    if ticket is not None:
                        return ticket
                except DlogError as error:
                    if not self._is_moving(lane, error):
                        raise
        return await self._submit(value, key, headers, event_time, producer, timeout)

    async def _submit(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersArg | None,
        event_time: EventTime | None,
        producer: Producer | None,
        timeout: float | None,
    ) -> Ticket:
        deadline = self._deadline(timeout)
        route = key
        numbered = None if producer is None else as_producer(producer)
        if numbered is not None and key is None:
            route = producer_key(*numbered)
        has_looked = False
        while True:
            table = self._following.table
            lane = self._following.next_lane(table) if route is None else table.find(route)
            if lane is None:
                assert route is not None
                if has_looked:
                    lane = table.lane_of(route)  # it says whose it is
                else:
                    has_looked = True
                    await self.look_again(self._left(deadline))
                    continue
            if numbered is not None and route is not None:
                self._following.refuse_taken(lane, route, numbered)
            try:
                return await lane.writer.submit(
                    value,
                    key=key,
                    headers=headers,
                    event_time=event_time,
                    producer=numbered,
                    timeout=self._left(deadline),
                )
            except DlogError as error:
                if not self._is_moving(lane, error):
                    raise
            await self._until_moved(table, deadline, timeout)

    async def append_many(
        self,
        values: Iterable[bytes | None],
        *,
        keys: Iterable[bytes | None] | None = None,
        headers: Iterable[HeadersArg | None] | None = None,
        producer: Producer | None = None,
        timeout: float | None = None,
    ) -> StreamIds:
        """All of them, each to the shard of its key, acknowledged; their ids in the order given.
        `producer` is an id and the number of the first message; those after it count on. Messages
        that were taken before are left out (`ids.skipped`), and `AlreadyExists` says that all
        were."""
        deadline = self._deadline(timeout)
        first = None if producer is None else as_producer(producer)
        tickets: list[tuple[int, Ticket]] = []
        ids = StreamIds()
        for index, (value, key, pairs) in enumerate(rows(values, keys, headers)):
            numbered = None if first is None else (first[0], first[1] + index)
            left = self._left(deadline)
            with ids.skipping(index):
                ticket = await self.submit(
                    value, key=key, headers=pairs, producer=numbered, timeout=left
                )
                tickets.append((index, ticket))
        for index, ticket in tickets:
            with ids.skipping(index):
                ids.append(await within(deadline, ticket, timeout))
        return ids.checked()

    async def flush(self, *, timeout: float | None = None) -> None:
        """Everything submitted by now is acknowledged once this returns, but for messages whose
        error was told before: by their tickets, or by a flush, which raises the first of those that
        failed and tells of all."""
        deadline, following = self._deadline(timeout), self._following
        if following.table.refusal is not None:
            raise following.table.refusal.again()
        while True:
            if following.moving is not None:
                await within(deadline, asyncio.wait([following.moving]), timeout)
                continue
            moves, lanes = following.moves, following.all_lanes
            for last in [lane.writer._engine.last_taken() for lane in lanes]:
                if last is not None and not last.done:
                    await within(deadline, until_resolved(last), timeout)
            if moves != following.moves or following.moving is not None:
                continue
            following.raise_untold()
            return

    async def resolve(self, token: Token) -> Resolved:
        """What became of a message by its token, in the shard that it was sent to first. `TooLate`
        where that shard ended without it, since it may have been sent on to the shards behind it:
        numbers of producers tell in any case."""
        meta, uid = self._following.core.meta, token.log_uid
        shards = () if meta is None else meta.shards
        listed = next((shard.log for shard in shards if shard.log_uid == uid), None)
        log = listed or self._following.had.get(uid) or await find_log(self._stores, shards, uid)
        if log is None:
            raise NotFound(
                f"no shard of stream {self.stream!r} is the log {uid} of the token: it was "
                "trimmed, or the token is of another stream",
                token=token,
            )
        became = await Looks(self._stores, log).resolve(token)
        if isinstance(became, Never) and await has_ended(self._stores, log):
            # A log of an older version does not say that it is a shard.
            return TooLate(f"the shard {log!r} has ended without it; it may be in one behind that")
        return became

    # --- life

    async def close(self, *, timeout: float | None = None) -> None:
        """Flush and close every lane. Raises the first failure, if messages were lost that nobody
        was told about. Cancelling abandons the wait only."""
        if os.getpid() != self._pid or (self._ending is not None and self._ending.done()):
            return
        if self._ending is None:
            self._ending = self._loop.create_task(self._shut_down())
        ending = self._ending
        try:
            failure = await within(self._deadline(timeout), asyncio.shield(ending), timeout)
        except Timeout as late:
            self.let_go(WriterClosed(f"{self.stream!r} was closed before all was acknowledged"))
            ending.cancel()  # it lets go by itself: the caller's time is over
            raise as_end(late) from late.__cause__
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if ending.cancelled() and (caller is None or not caller.cancelling()):
                return  # not us: somebody else who waited for the end had a time-out
            raise
        if failure is not None:
            raise failure

    def let_go(self, error: DlogError) -> None:
        self._closed = True
        self._following.let_go(error)

    async def _shut_down(self) -> DlogError | None:
        self._following.refuse_new(WriterClosed(f"this writer of {self.stream!r} is closed"))
        try:
            return await self._following.close()
        finally:
            self._closed = True
            if self._client is not None:
                await self._client.close()

    async def __aenter__(self) -> StreamWriter:
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

    def drop(self) -> str:
        """Nobody closed it: let go, and tell what that costs. From any thread."""
        self._closed = True
        count = self._following.unacknowledged
        self._following.drop(WriterClosed(f"the writer of stream {self.stream!r} was dropped"))
        return self.dropped(count)

    def dropped(self, count: int) -> str:
        what = (
            f"a writer of stream {self.stream!r} was dropped without close(): "
            f"{count} messages were not acknowledged"
        )
        if count > 0:  # a ResourceWarning is shown to developers only
            _log.warning(what)
        return what

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or os.getpid() != self._pid:
            return
        warnings.warn(self.drop(), ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"shards {list(self.shards)}"
        return f"<StreamWriter of {self.stream!r}, {state}>"

    def __reduce__(self) -> str:
        raise ConfigError("a writer cannot be pickled: open one where it is needed")

    # --- inside

    def may_have_moved(self, error: DlogError) -> bool:
        """Whether a lane that refuses so may have ended, to go on in others. From any thread."""
        return error.handle is Handle.DEAD and error.outcome is Outcome.NOT_HAPPENED

    async def until_moved(
        self, table: Table, lane: Lane, error: DlogError, timeout: float | None
    ) -> None:
        """For a caller on another thread that was refused: behind the turn in which the lane died,
        which is when all is known of it. Raises the refusal if it was for good."""
        if not self._is_moving(lane, error):
            raise error
        await self._until_moved(table, self._deadline(timeout), timeout)

    def _is_moving(self, lane: Lane, error: DlogError) -> bool:
        """Whether this refusal is that of a lane which ended, and may go on in others."""
        if os.getpid() != self._pid:
            raise ForkedHandle("this writer was made before a fork; open one in this process")
        is_dead = self.may_have_moved(error) and lane.death is not None
        return is_dead and not lane.is_lost and not self._closed

    async def _until_moved(
        self, table: Table, deadline: float | None, timeout: float | None
    ) -> None:
        if self._following.table is not table:
            return
        moving = self._following.moving
        if moving is None:
            raise Broken(f"a lane of stream {self.stream!r} died, and nobody looks after it")
        await self._wait_for(moving, deadline, timeout)

    async def look_again(self, timeout: float | None) -> None:
        """For a key that is not ours, as far as we know: one that came to us by a merge, with a
        shard that was idle, is."""
        await self._wait_for(self._following.look_again(), self._deadline(timeout), timeout)

    async def _wait_for(
        self, moving: asyncio.Task[None], deadline: float | None, timeout: float | None
    ) -> None:
        driver = self._following.driver
        waiting = asyncio.wait([moving])
        await within(deadline, waiting, timeout, lambda: driver.in_the_way, is_sent=False)

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._loop.time() + timeout

    def _left(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - self._loop.time())


class StreamIds(list[MessageId]):
    """The ids of one `append_many`. `skipped` are the indexes, in what was given, of the messages
    that were taken before: they are not among the ids."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped: list[int] = []
        self._known: AlreadyExists | None = None

    @contextlib.contextmanager
    def skipping(self, index: int) -> Iterator[None]:
        """Around what may say that this message was taken before."""
        try:
            yield
        except AlreadyExists as error:
            self.skipped.append(index)
            self._known = error

    def checked(self) -> StreamIds:
        """`AlreadyExists` if all were taken before."""
        if self._known is not None and not self:
            raise self._known
        self.skipped.sort()
        return self


def rows(
    values: Iterable[bytes | None],
    keys: Iterable[bytes | None] | None,
    headers: Iterable[HeadersArg | None] | None,
) -> Iterable[tuple[Any, Any, Any]]:
    """In step: columns of different lengths are refused at the first row that one has not."""
    if keys is None and headers is None:
        return ((value, None, None) for value in values)
    if keys is not None and headers is not None:
        return zip(values, keys, headers, strict=True)
    if keys is not None:
        return ((value, key, None) for value, key in zip(values, keys, strict=True))
    assert headers is not None
    return ((value, None, pairs) for value, pairs in zip(values, headers, strict=True))
