"""The async reader of a stream: what `await stream.open_reader()` gives.

One reader of a log for each shard that may be read now, and one place for all. Which shards those
are is decided in `dlog.streams.places`, whose messages come next in `dlog.streams.merge`; here they
are fetched and handed out. A shard that was read to its end gives way to those that follow it.

What a call decides, it decides in one turn. All that asks the stores (shards are opened, the list
is read again, readers are closed) runs in tasks that outlive the call, whatever its time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable
from types import TracebackType
from typing import Literal, NamedTuple

from dlog import limits
from dlog.drive import Closeable, Stores
from dlog.errors import (
    ConfigError,
    DlogError,
    ForkedHandle,
    NotFound,
    ReaderClosed,
    Retry,
    Timeout,
)
from dlog.ids import Position
from dlog.options import ReaderOptions
from dlog.reader.feed import look
from dlog.reader.lag import Lag, lag_of
from dlog.reader.message import Message, MessageBatch
from dlog.reader.reader import Reader
from dlog.reader.segments import SegmentView
from dlog.reason import Reason
from dlog.streams.document import Shard, StreamMeta
from dlog.streams.listing import NewList, ShardList
from dlog.streams.merge import Arrival, ByTime, Choice, Order, Ready
from dlog.streams.places import ReadOrder, StreamPosition
from dlog.streams.reshard import Site
from dlog.streams.sources import TRY_AGAIN_MAX_S, Reading, Source
from dlog.streams.starts import End, Starts, check_start
from dlog.streams.starts import StreamStart as StreamStart
from dlog.streams.tails import missed_nothing_in, remains_of
from dlog.together import together

ReadingOrder = Literal["arrival", "time"]
LIST_AWAITED = -1  # no shard: those that follow one that was read to its end, and are not known yet


class FromShard(NamedTuple):
    """A message and the shard that it is in."""

    shard: int
    message: Message


class ShardBatch(NamedTuple):
    """Messages of one shard, as they lie in an entry."""

    shard: int
    batch: MessageBatch


class StreamReader:
    """Messages of the shards of one stream, each key's in order. One task reads it at a time."""

    def __init__(
        self,
        stores: Stores,
        site: Site,
        options: ReaderOptions,
        *,
        order: ReadingOrder = "arrival",
        patience_ms: int = limits.STREAM_PATIENCE_MS_DEFAULT,
        shards: Iterable[int] | None = None,
    ) -> None:
        if order not in ("arrival", "time"):
            raise ConfigError(f"order is 'arrival' or 'time', not {order!r}")
        if type(patience_ms) is not int or not 0 <= patience_ms <= 3_600_000:
            raise ConfigError(f"patience_ms is a whole number up to an hour, not {patience_ms!r}")
        self._stores = stores
        self._site = site
        self._options = options
        self._only = None if shards is None else tuple(shards)
        self._merge: Order = Arrival() if order == "arrival" else ByTime(patience_ms * 1000)
        self._order: ReadOrder | None = None
        self._sources: dict[int, Source] = {}
        self._ends: dict[int, End] | None = None
        self._finished: set[int] = set()  # read up to where this reading ends
        self._spent: set[asyncio.Task[None]] = set()  # readers of ended shards, being closed
        self._listing = ShardList(stores, site)
        self._ended: set[int] = set()  # shards behind whose end the list is to be read
        self._asked: set[int] = set()  # those of them that the reading under way is for
        self._answer: asyncio.Task[NewList] | None = None  # of that reading
        self._failure: DlogError | None = None  # of it; the next call raises it
        self._defects: list[Exception] = []  # of closing readers
        self._rest: deque[FromShard] = deque()
        self._news = asyncio.Event()
        self._client: Closeable | None = None
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._closed = False
        self._closing: asyncio.Task[None] | None = None

    def own(self, client: Closeable) -> None:
        """Close this client with us."""
        self._client = client

    @property
    def stream(self) -> str:
        return self._site.name

    @property
    def closed(self) -> bool:
        return self._closed

    # --- places

    async def open(self, start: StreamStart) -> None:
        check_start(start)
        meta = await self._listing.newest()
        while True:
            try:
                order, ends = await self._find(start, meta)
                break
            except NotFound:
                before, meta = meta, await self._listing.newest()
                if {s.number for s in before.shards} == {s.number for s in meta.shards}:
                    raise
        self._order, self._ends = order, ends
        for number in tuple(order.reading):
            if meta.has(number):
                self._start(meta.shard(number), order.reading[number])
        self._begin_ready()

    async def _find(
        self, start: StreamStart, meta: StreamMeta
    ) -> tuple[ReadOrder, dict[int, End] | None]:
        """`NotFound` where a log is not there that the list says is."""
        known = (*start.shards, *start.done) if isinstance(start, StreamPosition) else ()
        for number in self._only or ():
            if number not in known:
                meta.shard(number)
        starts = Starts(self._stores, self.stream, meta, self._options, self._only)
        at = await starts.place(start)
        order = ReadOrder(meta, at, only=self._only)
        for number, place in tuple(order.reading.items()):
            if not meta.has(number) and await self._was_read(number, place):
                order.end(number)
        missed = order.missed()
        for number in await missed_nothing_in(self._stores, self.stream, missed, order.since_us):
            order.end(number)
        if self._may_jump:
            order.skip_forgotten()
        else:
            order.refuse_forgotten()
        return order, None if self._options.follow else await starts.ends(order.done)

    async def _was_read(self, number: int, at: Position) -> bool:
        """Of a shard that was trimmed."""
        left = await remains_of(self._stores, self.stream, number)
        return left is not None and not left.had_more(at)

    @property
    def _may_jump(self) -> bool:
        return self._options.on_truncated == "jump"

    @property
    def position(self) -> StreamPosition:
        """After the last message handed out: `start=reader.position` resumes behind it."""
        if self._order is None:
            raise ConfigError("this reader was not opened")
        return self._order.position

    @property
    def shards(self) -> tuple[int, ...]:
        """That are being read now."""
        return tuple(sorted(self._sources))

    @property
    def version(self) -> int:
        """Of the stream, as this reader knows it."""
        return 0 if self._order is None else self._order.meta.version

    @property
    def late(self) -> int:
        """Messages that were handed out behind younger ones, reading by time."""
        return self._merge.late

    @property
    def at_tail(self) -> bool:
        """All that could be read has been handed out. Not before it is known which shards follow
        those that were read to their end."""
        if self._rest:
            return False
        if self._may_go_on:
            self._go_on()
        if self._ended or self._failure is not None:
            return False
        return all(self._is_at_tail(number, each) for number, each in self._sources.items())

    @property
    def _may_go_on(self) -> bool:
        """Somebody may ask when the loop is gone, or before a reader is open."""
        if self._order is None or self._closed or os.getpid() != self._pid:
            return False
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _is_at_tail(self, number: int, source: Source) -> bool:
        if not source.is_drained:
            return source.at_tail
        if self._ends is None or self._order is None:
            return False
        end = self._ends.get(number)
        is_final = end is None or end.is_final
        return not (is_final and self._order.meta.children(number))

    async def lag(self) -> dict[int, Lag]:
        """How far behind the tail each shard is that is being read. Asks the stores."""
        self._check()
        begun = {} if self._order is None else self._order.reading
        readers = {
            number: source.reader
            for number, source in self._sources.items()
            if source.reader is not None and number in begun
        }
        told: dict[int, Awaitable[Lag | None]] = {
            number: reader.lag_behind(begun[number].next_seq) for number, reader in readers.items()
        }
        for number, source in self._sources.items():
            if number not in told:  # not begun yet: all that is there
                told[number] = self._lag_of(source)
        lags = await together(*told.values())
        return {number: lag for number, lag in zip(told, lags, strict=True) if lag is not None}

    async def _lag_of(self, source: Source) -> Lag | None:
        """None for a shard whose log is not made yet."""
        shard, tail = source.shard, self._options.tail
        view = SegmentView(shard.log, self._stores.layout, shard.log_uid or None, tail=tail)
        now_us = self._stores.clock.wall_us()
        try:
            return await look(self._stores, view, lag_of(view, 0, now_us))
        except NotFound:
            return None

    def why(self) -> dict[int, Reason]:
        """What shards wait for now, of those that wait. A shard that was read to its end waits for
        the list of shards, which says what follows it."""
        reasons = {number: self._listing.why(number) for number in self._ended}
        for number, source in self._sources.items():
            reason = source.why()
            if reason is not None:
                reasons[number] = reason
        return reasons

    # --- messages

    async def __aiter__(self) -> AsyncIterator[FromShard]:
        while True:
            while self._rest:
                yield self.hand_out()
            if not await self.fill():
                return

    async def batches(self) -> AsyncIterator[ShardBatch]:
        """Messages as they lie in entries, fast. A batch counts as handed out when it is
        yielded."""
        while (chosen := await self.next_batch()) is not None:
            yield chosen

    async def read(self, max_messages: int = 1000, timeout: float | None = None) -> list[FromShard]:
        """At least one message and up to `max_messages`, as soon as there are any. [] when none
        came within `timeout` seconds (None: waits), or at the end: see `at_tail`."""
        if type(max_messages) is not int or max_messages < 1:
            raise ConfigError(f"max_messages is a number from 1, not {max_messages!r}")
        if not self._rest:
            try:
                async with asyncio.timeout(timeout):
                    await self.fill()
            except TimeoutError as error:
                if isinstance(error, Timeout):
                    raise
                return []
        taken: list[FromShard] = []
        while self._rest and len(taken) < max_messages:
            taken.append(self.hand_out())
        return taken

    @property
    def has_rest(self) -> bool:
        """Messages wait to be handed out one by one."""
        return bool(self._rest)

    def hand_out(self) -> FromShard:
        self._check()
        each = self._rest.popleft()
        message = each.message
        self._delivered(each.shard, message.seq + 1, message)
        return each

    def _delivered(self, number: int, next_seq: int, last: Message | MessageBatch) -> None:
        assert self._order is not None
        after = last.id if isinstance(last, Message) else last.last_id
        source = self._sources.get(number)
        uid = source.log_uid if source is not None else self._order.reading[number].log_uid
        self._order.delivered(number, Position(uid, next_seq, after))

    async def fill(self) -> bool:
        """Messages of one batch wait to be handed out; False at the end."""
        while not self._rest:
            chosen = await self._choose()
            if chosen is None:
                return False
            number, batch = chosen
            self._rest.extend(FromShard(number, message) for message in batch.to_pylist())
        return True

    async def next_batch(self) -> ShardBatch | None:
        """None at the end."""
        if self._rest:
            raise ConfigError("messages of a batch are left: hand them out one by one first")
        chosen = await self._choose()
        if chosen is not None:
            self._delivered(chosen.shard, chosen.batch.last_seq + 1, chosen.batch)
        return chosen

    async def _choose(self) -> ShardBatch | None:
        """The next batch, or part of one; None at the end."""
        self._check()
        while True:
            self._news.clear()
            self._check()
            self._go_on()
            self._raise_failure()
            shards = {
                number: Ready(source.ready[0] if source.ready else None, source.is_idle)
                for number, source in self._sources.items()
                if source.ready or not source.is_over
            }
            if self._ended:  # what follows may be older than all that is ready
                shards[LIST_AWAITED] = Ready(None, is_idle=False)
            if not shards:
                return None
            now_us = self._stores.clock.wall_us()
            choice = self._merge.choose(shards, now_us)
            if isinstance(choice, Choice):
                return ShardBatch(choice.number, self._take(choice))
            wait_s = None if choice is None else max(0.0, (choice - now_us) / 1e6)
            if choice is None and any(ready.head is not None for ready in shards.values()):
                wait_s = 0.05  # by time: a shard may come to its tail without a word
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._news.wait()

    def _raise_failure(self) -> None:
        """Of the list, or of a shard that has nothing more to hand out. What may be over in a while
        is tried again meanwhile, from where the shard stands."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._defects:
            raise self._defects.pop()
        for number, source in self._sources.items():
            if source.error is None or source.ready:
                continue
            error = source.error
            if source.may_be_tried_again:
                self._close_soon(source)
                assert self._order is not None
                self._start(source.shard, self._order.reading.get(number))
            raise error.again() if isinstance(error, DlogError) else error

    def _take(self, choice: Choice) -> MessageBatch:
        source = self._sources[choice.number]
        batch = source.ready.popleft()
        if choice.messages < len(batch):
            source.ready.appendleft(batch.cut(choice.messages, len(batch)))
            batch = batch.cut(0, choice.messages)
        source.room.set()
        return batch

    # --- shards

    def _go_on(self) -> None:
        """Shards that were read to their end give way to those that follow. Only while no message
        waits to be handed out."""
        self._give_way()
        if self._failure is None:
            try:
                self._look_at_list()
            except DlogError as error:
                if self._options.follow and error.retry is Retry.NOW:
                    self._ask_for_list(TRY_AGAIN_MAX_S)
                else:  # the next call raises it, and the one behind asks again
                    self._failure = error

    def _give_way(self) -> None:
        order = self._order
        assert order is not None
        for number, source in tuple(self._sources.items()):
            if not source.is_over or source.ready or source.error is not None:
                continue
            del self._sources[number]
            self._close_soon(source)
            end = None if self._ends is None else self._ends.get(number)
            if end is not None and not end.is_final:
                self._finished.add(number)
                continue
            order.end(number)
            if self._ends is None:
                self._ended.add(number)
            else:
                self._begin_ready()

    def _look_at_list(self) -> None:
        """Ask for the list behind each end, and begin what follows once it is there."""
        order = self._order
        assert order is not None
        if self._answer is not None and self._answer.done():
            answer, self._answer = self._answer, None
            try:
                meta, nothing_in = answer.result()
            except DlogError as error:  # others may wait for the same answer
                raise error.again() from None
            order.saw(meta)
            for number in nothing_in:
                order.end(number)
            if self._may_jump:
                order.skip_missed()
            else:
                order.refuse_missed()
            self._ended -= self._asked
            self._begin_ready()
        if self._ended and self._answer is None:
            self._ask_for_list()

    def _ask_for_list(self, after_s: float = 0.0) -> None:
        assert self._order is not None
        self._asked = set(self._ended)
        self._answer = self._listing.ask_for(self._order, after_s=after_s)
        news = self._news
        self._answer.add_done_callback(lambda _: news.set())

    def _close_soon(self, source: Source) -> None:
        if source.reader is not None:
            closing = self._loop.create_task(_close(source.reader, self._defects))
            self._spent.add(closing)
            closing.add_done_callback(self._spent.discard)

    def _begin_ready(self) -> None:
        order = self._order
        assert order is not None
        progress = True
        while progress:
            progress = False
            for shard in order.ready():
                number = shard.number
                if number in self._sources or number in self._finished:
                    continue
                if self._ends is not None:
                    end = self._ends.get(number, End(0, is_final=False))
                    if end.seq == 0:
                        if end.is_final:
                            order.end(number)
                            progress = True
                        else:
                            self._finished.add(number)
                        continue
                self._start(shard, None)

    def _start(self, shard: Shard, at: Position | None) -> None:
        order = self._order
        assert order is not None
        reading = Reading(
            self.stream,
            self._stores,
            self._options,
            order,
            self._ends,
            self._news,
            self._listing,
        )
        source = self._sources[shard.number] = Source(shard, reading)
        source.start(at)

    async def skip(self, shard: int) -> None:
        """Go on behind the entry of this shard that could not be decoded and just raised."""
        self._check()
        source = self._sources.get(shard)
        if source is None:
            raise ConfigError(f"shard {shard} of stream {self.stream!r} is not being read")
        await source.skip()

    # --- life

    async def close(self) -> None:
        """Idempotent. Cancelling abandons the wait only."""
        self._closed = True
        if os.getpid() != self._pid or (self._closing is not None and self._closing.done()):
            return
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._shut_down())
        await asyncio.shield(self._closing)

    async def _shut_down(self) -> None:
        self._news.set()
        try:
            tasks = [s.task for s in self._sources.values() if s.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._listing.close()
            left = [s.reader for s in self._sources.values() if s.reader is not None]
            for reader in left:
                await reader.close()
            await asyncio.gather(*self._spent)
            if self._defects:
                raise self._defects.pop()
        finally:
            if self._client is not None:
                await self._client.close()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle("this reader was made before a fork; open one in this process")
        if self._closed:
            raise ReaderClosed(f"this reader of stream {self.stream!r} is closed")

    def drop(self) -> None:
        """Stop without waiting: for a reader that nobody holds any more."""
        self._closed = True
        self._listing.stop()
        for source in self._sources.values():
            source.drop()

    async def __aenter__(self) -> StreamReader:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or os.getpid() != self._pid or self._loop.is_closed():
            return
        self.drop()
        warnings.warn(self.dropped, ResourceWarning, stacklevel=2)

    @property
    def dropped(self) -> str:
        return f"a reader of stream {self.stream!r} was dropped without close()"

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"shards {list(self.shards)}"
        return f"<StreamReader of {self.stream!r}, {state}>"

    def __reduce__(self) -> str:
        raise ConfigError("a reader cannot be pickled: pass its position and open one there")


async def _close(reader: Reader, defects: list[Exception]) -> None:
    try:
        await reader.close()
    except Exception as defect:  # noqa: BLE001
        defects.append(defect)
