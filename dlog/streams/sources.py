"""One shard that a reader of a stream is reading: its log's reader, and what it has ready.

Nothing here holds the stream's reader: what runs in the background would keep it alive for ever,
and nobody would learn that it was dropped without `close`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import Any, NamedTuple

from dlog.clock import us_datetime
from dlog.drive import Stores
from dlog.errors import ConfigError, NotFound
from dlog.ids import Position
from dlog.options import ReaderOptions
from dlog.reader.message import MessageBatch
from dlog.reader.places import Start
from dlog.reader.reader import Reader
from dlog.streams.document import Shard
from dlog.streams.places import ReadOrder

BATCHES_AHEAD = 2  # of each shard, beside what its reader has read ahead
LOOK_AGAIN_MS = 1_000.0  # for a log that is not made yet; a watch tells sooner


class End(NamedTuple):
    """Where reading without `follow` ends in a shard, and whether more may come there later."""

    seq: int
    is_final: bool


class Reading(NamedTuple):
    """What all shards of one reader share."""

    stores: Stores
    options: ReaderOptions
    order: ReadOrder
    ends: Mapping[int, End] | None  # None: reading goes on and on
    news: asyncio.Event


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
        self._is_begun = False
        self._is_unmade = False  # its log is not there yet, and so there is nothing

    @property
    def at_tail(self) -> bool:
        """All that could be read has been handed out. Not before it was looked for."""
        if self._is_unmade:
            return True
        return self._is_begun and not self.ready and self.reader is not None and self.reader.at_tail

    @property
    def is_idle(self) -> bool:
        """Something may come in a while, or never. What reads up to an end is never idle before it
        is there; what is at its end gives way to those that follow, which may have old messages."""
        has_ended = self.reader is not None and self.reader._feed.has_ended
        return self._reading.ends is None and self.at_tail and not has_ended

    def start(self, at: Position | None) -> None:
        self._run(self._read_all(at))

    async def skip(self) -> None:
        """Go on behind the entry that could not be decoded and was told."""
        if self.reader is None or self.error is None:
            raise ConfigError(
                f"skip() goes past an entry that just raised; shard {self.shard.number} has none"
            )
        await self.reader.skip()
        self.error, self.is_over = None, False
        self._run(self._drain(self.reader))

    def drop(self) -> None:
        """Stop without waiting: for a reader that nobody holds any more."""
        if self.task is not None:
            self.task.cancel()
        if self.reader is not None and not self.reader.closed:
            self.reader._closed = True  # its own warning would say the same again
            self.reader._feed.abandon()

    def _run(self, reading: Coroutine[Any, Any, None]) -> None:
        self.task = asyncio.get_running_loop().create_task(self._tell(reading))

    async def _tell(self, reading: Coroutine[Any, Any, None]) -> None:
        """How it ended, whoever reads is told."""
        try:
            await reading
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001
            self.error = error
        finally:
            self.is_over = True
            self._reading.news.set()

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
        stores, options, order, ends, _ = self._reading
        number = self.shard.number
        start: Start = "earliest"
        if at is not None:
            start = at
        elif order.since_us is not None:
            start = us_datetime(order.since_us)
        end = None if ends is None else ends.get(number)
        if end is not None and at is not None and at.next_seq >= end.seq:
            return None
        reader = Reader(stores, self.shard.log, options)
        self.reader = reader
        while True:
            try:
                await reader.seek(start, end=None if end is None else end.seq)
                break
            except NotFound:
                if ends is not None or at is not None:
                    raise
                self._is_unmade = True
                path = stores.layout.log(self.shard.log)
                async with stores.meta.watch(path) as watch:
                    await watch.wait(LOOK_AGAIN_MS)
        self._is_begun, self._is_unmade = True, False
        here = reader.position
        self.log_uid = here.log_uid
        order.begin(number, here)
        return reader
