"""One shard that a reader of a stream is reading: its log's reader, and what it has ready.

Nothing here holds the stream's reader: what runs in the background would keep it alive for ever,
and nobody would learn that it was dropped without `close`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from dlog.awaited import metadata_away
from dlog.clock import us_datetime
from dlog.drive import Stores
from dlog.errors import ConfigError, DlogError, NotFound, Retry, Truncated
from dlog.ids import Position
from dlog.options import ReaderOptions
from dlog.reader.message import MessageBatch
from dlog.reader.places import Start
from dlog.reader.reader import Reader
from dlog.reason import Reason, ReasonCode, Wait, told_of
from dlog.streams.document import Shard, ShardState
from dlog.streams.listing import ShardList
from dlog.streams.places import ReadOrder, trimmed
from dlog.streams.starts import End
from dlog.streams.tails import first_seq_of, log_is_gone, remains_of, unmade

_log = logging.getLogger("dlog.streams")

BATCHES_AHEAD = 2  # of each shard, beside what its reader has read ahead
LOOK_AGAIN_MS = 1_000.0  # for a log that is not made yet; a watch tells sooner
# Between two tries of a reader that follows: within the last one it goes on once the trouble ends.
TRY_AGAIN_MIN_S, TRY_AGAIN_MAX_S = 0.02, 1.0


class Reading(NamedTuple):
    """What all shards of one reader share."""

    stream: str
    stores: Stores
    options: ReaderOptions
    order: ReadOrder
    ends: Mapping[int, End] | None  # None: reading goes on and on
    news: asyncio.Event
    listing: ShardList


class Source:
    def __init__(self, shard: Shard, reading: Reading) -> None:
        self.shard = shard
        self.reader: Reader | None = None
        self.log_uid = ""
        self.ready: deque[MessageBatch] = deque()
        self.error: BaseException | None = None
        self.is_over = False
        self.task: asyncio.Task[None] | None = None
        self.room = asyncio.Event()
        self.room.set()
        self._reading = reading
        self._at: Position | None = None  # to begin at
        self._is_begun = False
        self._is_checked = True  # that its log is of our stream
        self._is_unmade = False  # its log is not there yet, and so there is nothing
        self._trouble: DlogError | None = None  # the last try to begin failed, and is repeated

    @property
    def at_tail(self) -> bool:
        """All that could be read has been handed out. Not before it was looked for."""
        if self.error is not None or self._trouble is not None:
            return False
        if self._is_unmade:
            return True
        return self._is_begun and not self.ready and self.reader is not None and self.reader.at_tail

    @property
    def is_drained(self) -> bool:
        """It came to its end, and everything was handed out: shards that follow it may begin."""
        if self.error is not None or self.ready:
            return False
        return self.is_over or (self.at_tail and self._has_ended)

    @property
    def _has_ended(self) -> bool:
        return self.reader is not None and self.reader._feed.has_ended

    @property
    def may_be_tried_again(self) -> bool:
        """What ended it may be over in a while."""
        return isinstance(self.error, DlogError) and self.error.retry is not Retry.NEVER

    @property
    def is_idle(self) -> bool:
        """Something may come in a while, or never. What reads up to an end is never idle before it
        is there; what is at its end gives way to those that follow, which may have old messages."""
        return self._reading.ends is None and self.at_tail and not self._has_ended

    def why(self) -> Reason | None:
        """What it waits for; None when it has messages to hand out."""
        number, log = self.shard.number, self.shard.log
        if self.ready:
            return None
        if isinstance(self.error, DlogError):
            told = f"reading shard {number} ended: {self.error}"
            return Reason(ReasonCode.LOST, told, told_of(self.error))
        if self._trouble is not None:
            return self._why_in_trouble(self._trouble)
        if not self._is_checked:
            return self._reading.listing.why(number, f"log {log!r} was opened by its name")
        if self._is_unmade:
            told = f"shard {number} has no log {log!r} yet: nobody wrote to it"
            return Reason(ReasonCode.AT_TAIL, told, {"log": log})
        if self.reader is None:
            return Reason(ReasonCode.FINDING, f"shard {number} is about to be read", {"log": log})
        return self.reader.why()

    def _why_in_trouble(self, error: DlogError) -> Reason:
        stores, number = self._reading.stores, self.shard.number
        told = f"reading shard {number} failed, and is tried again: {error}"
        wait = Wait(ReasonCode.READING, told, {"shard": number, **told_of(error)})
        wait = wait.because(metadata_away(stores.meta, stores.clock))
        return wait.told(now_s=stores.clock.monotonic_s(), now_us=stores.clock.wall_us())

    def start(self, at: Position | None) -> None:
        self._at = at
        self._run(functools.partial(self._read_all, at))

    async def skip(self) -> None:
        """Go on behind the entry that could not be decoded and was told."""
        if self.reader is None or self.error is None:
            raise ConfigError(
                f"skip() goes past an entry that just raised; shard {self.shard.number} has none"
            )
        await self.reader.skip()
        self.error, self.is_over = None, False
        self._run(functools.partial(self._drain, self.reader))

    def drop(self) -> None:
        """Stop without waiting: for a reader that nobody holds any more."""
        if self.task is not None:
            self.task.cancel()
        if self.reader is not None and not self.reader.closed:
            self.reader._closed = True  # its own warning would say the same again
            self.reader._feed.abandon()

    def _run(self, reading: Callable[[], Awaitable[None]]) -> None:
        self.task = asyncio.get_running_loop().create_task(self._tell(reading))

    async def _tell(self, reading: Callable[[], Awaitable[None]]) -> None:
        """How it ended, whoever reads is told."""
        pause_s = TRY_AGAIN_MIN_S
        try:
            while not await self._try(reading):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, TRY_AGAIN_MAX_S)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001
            self.error = error
        finally:
            self.is_over = True
            self._reading.news.set()

    async def _try(self, reading: Callable[[], Awaitable[None]]) -> bool:
        """False when it may be tried again: a reader that follows waits for what passes."""
        try:
            try:
                await reading()
            except NotFound as error:
                await self._refuse_gone(error)
        except DlogError as error:
            is_told = self._reading.ends is not None or self._is_begun
            if is_told or error.retry is not Retry.NOW:
                raise
            if self._trouble is None:
                told = "stream %s: shard %d is not read: %s"
                _log.warning(told, self._reading.stream, self.shard.number, error)
            self._trouble = error
            return False
        return True

    async def _refuse_gone(self, error: NotFound) -> None:
        """The log is not there any more. Where its shard was trimmed, and was not read to its end,
        messages were missed, which is what ends the shard; a reader that jumps goes on behind
        them."""
        reading = self._reading
        if (await reading.listing.newest()).has(self.shard.number):
            await log_is_gone(reading.stores, self.shard)
            raise error
        at = self.reader.position if self._is_begun and self.reader is not None else self._at
        left = await remains_of(reading.stores, reading.stream, self.shard.number)
        if left is not None and (left.is_empty if at is None else not left.had_more(at)):
            return
        if reading.options.on_truncated != "jump":
            raise trimmed((self.shard.number,)) from error

    async def _read_all(self, at: Position | None) -> None:
        reader = await self._open(at)
        if reader is not None:
            await self._drain(reader)

    async def _drain(self, reader: Reader) -> None:
        async for batch in reader.batches():
            self.ready.append(batch)
            self._reading.news.set()
            if len(self.ready) >= BATCHES_AHEAD:
                self.room.clear()
                await self.room.wait()

    async def _open(self, at: Position | None) -> Reader | None:
        """None where reading ends before it begins."""
        reading, number = self._reading, self.shard.number
        end = None if reading.ends is None else reading.ends.get(number)
        if end is not None and at is not None and at.next_seq >= end.seq:
            return None
        uid = self.shard.log_uid or None
        if self.reader is not None:  # of a try before
            await self.reader.close()
        reader = self.reader = Reader(reading.stores, self.shard.log, reading.options, uid)
        if at is not None:
            await reader.seek(at, end=None if end is None else end.seq)
        else:
            await self._begin(reader, end)
        here = reader.position
        self.log_uid = here.log_uid
        reading.order.begin(number, here)
        self._is_begun, self._trouble = True, None
        reading.news.set()
        return reader

    async def _begin(self, reader: Reader, end: End | None) -> None:
        """At the first message that is to be read, which must be there."""
        reading = self._reading
        since_us = reading.order.since_us
        start: Start = "earliest" if since_us is None else us_datetime(since_us)
        await self._find_log(reader, start, end)
        # The log has a name only. If the list is of our stream still, the log was of it, too.
        self._is_checked = False
        await reading.listing.newest()
        self._is_checked = True
        here, head = reader.position, reading.order.head_of(self.shard.number)
        if head is not None and head.log_uid != here.log_uid:
            raise NotFound(f"the log {self.shard.log!r} was removed", log=self.shard.log)
        if since_us is None and reading.options.on_truncated != "jump":
            meta = reader._feed.core.view.meta
            first_seq = first_seq_of(meta) if head is None else head.next_seq
            if here.next_seq > first_seq:
                raise self._truncated(first_seq, here.next_seq)

    def _truncated(self, first_seq: int, head_seq: int) -> Truncated:
        return Truncated(
            f"messages {first_seq} to {head_seq - 1} of shard {self.shard.number} (log "
            f"{self.shard.log!r}) were truncated before they were read: its head is at seq "
            f"{head_seq}",
            log=self.shard.log,
            new_head=head_seq,
        )

    async def _find_log(self, reader: Reader, start: Start, end: End | None) -> None:
        """Waits for a log that is not made yet."""
        reading, shard = self._reading, self.shard
        while True:
            try:
                await reader.seek(start, end=None if end is None else end.seq)
                self._is_unmade = False
                return
            except NotFound as error:
                if end is not None:
                    raise
                await unmade(reading.stores, shard, error)
                listed = await reading.listing.newest()
                if not listed.has(shard.number):
                    raise
            shard = listed.shard(shard.number)
            if shard.state is ShardState.ENDED:
                continue  # its log was made meanwhile
            self._is_unmade, self._trouble = True, None
            reading.news.set()
            path = reading.stores.layout.log(shard.log)
            async with reading.stores.meta.watch(path) as watch:
                await watch.wait(LOOK_AGAIN_MS)
