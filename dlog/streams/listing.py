"""The list of a stream's shards, as its reader reads it again and again.

Each reading of the list is a task of its own, which no time-out or cancellation of a caller cuts
short. Nothing here holds the stream's reader: see `dlog.streams.sources`.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from dlog.awaited import longest, metadata_away
from dlog.drive import Stores
from dlog.errors import DlogError, Handle, NotFound
from dlog.reason import Reason, ReasonCode, Wait, told_of
from dlog.streams.document import StreamMeta, StreamState
from dlog.streams.driver import StreamDriver
from dlog.streams.places import ReadOrder
from dlog.streams.reshard import Site, read_stream
from dlog.streams.tails import missed_nothing_in


class NewList(NamedTuple):
    """`nothing_in`: shards that left the list before the reader came to them, and had nothing that
    it was to read."""

    meta: StreamMeta
    nothing_in: list[int]


class ShardList:
    """Of one stream. `NotFound` once the stream is removed, also where another one has its name."""

    def __init__(self, stores: Stores, site: Site) -> None:
        self._stores = stores
        self._site = site
        self._driver = StreamDriver(stores)
        self._uid: str | None = None
        self._under_way: asyncio.Task[StreamMeta] | None = None
        self._next: asyncio.Task[StreamMeta] | None = None  # has not begun to read yet
        self._asking: set[asyncio.Task[NewList]] = set()
        self._failed: DlogError | None = None  # the last reading

    def ask(self) -> asyncio.Task[StreamMeta]:
        """The list, by a read that begins after this call. Many who ask at once share one."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(self._read())
            self._next.add_done_callback(_seen)
        return self._next

    def ask_for(self, order: ReadOrder, *, after_s: float = 0.0) -> asyncio.Task[NewList]:
        """As `ask`, for a reader that goes on by it; behind a failure, after a pause."""
        task = asyncio.get_running_loop().create_task(self._new_list(order, after_s))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        task.add_done_callback(_seen)
        return task

    async def _new_list(self, order: ReadOrder, after_s: float) -> NewList:
        if after_s > 0:
            await asyncio.sleep(after_s)
        meta = await self.newest()
        name, missed = self._site.name, order.missed(meta)
        return NewList(meta, await missed_nothing_in(self._stores, name, missed, order.since_us))

    async def newest(self) -> StreamMeta:
        """Cancelling abandons the wait only."""
        return await asyncio.shield(self.ask())

    async def _read(self) -> StreamMeta:
        if self._under_way is not None:
            await asyncio.wait([self._under_way])
        self._under_way, self._next = self._next, None
        try:
            meta = (await self._driver.run(read_stream(self._site))).meta
            self._failed = None
        except DlogError as error:
            self._failed = error
            raise
        finally:
            self._under_way = None
        name = self._site.name
        if meta.state is StreamState.DELETING:
            raise NotFound(f"the stream {name!r} is being removed", handle=Handle.DEAD)
        if self._uid is not None and meta.uid != self._uid:
            raise NotFound(
                f"the stream {name!r} was removed; the one that has its name now is another one",
                handle=Handle.DEAD,
            )
        self._uid = meta.uid
        return meta

    def why(self, shard: int, because: str = "it was read to its end") -> Reason:
        """What a shard waits for whose reader waits for the list."""
        stores, clock, failed = self._stores, self._stores.clock, self._failed
        told = f"shard {shard}: {because}, and the list of shards is being read"
        wait = Wait(ReasonCode.METADATA, told, {"shard": shard})
        if failed is None:
            wait = wait.because(longest(self._driver.awaited.values()))
        else:
            told = f"{told}; the last try failed: {failed}"
            wait = Wait(ReasonCode.METADATA, told, {"shard": shard, **told_of(failed)})
            wait = wait.because(metadata_away(stores.meta, clock))
        return wait.told(now_s=clock.monotonic_s(), now_us=clock.wall_us())

    def stop(self) -> None:
        """Without waiting."""
        for task in self._tasks():
            task.cancel()

    def _tasks(self) -> list[asyncio.Task[Any]]:
        return [t for t in (self._under_way, self._next, *self._asking) if t is not None]

    async def close(self) -> None:
        tasks = self._tasks()
        self.stop()
        await asyncio.gather(*tasks, return_exceptions=True)


def _seen(task: asyncio.Task[Any]) -> None:
    """Of a failure that nobody waits for any more, nothing is logged."""
    if not task.cancelled():
        task.exception()
