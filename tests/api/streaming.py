"""A writer of a stream that is kept busy, and what must be read of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import dlog
from dlog.streams import reshard
from dlog.streams.driver import StreamDriver
from dlog.streams.reshard import Site, change_stream
from tests.api.adapter import Api, rest_of
from tests.api.planting import stores_of
from tests.api.waiting import eventually

P = 7
KEYS = [b"key %d" % number for number in range(40)]
ByKey = dict[bytes, list[bytes]]


AHEAD_MAX = 500  # of what a test waits for: then one at a time, or all take long to check


class Load:
    """Sends on and on, each key's messages numbered, until told to stop."""

    def __init__(
        self, writer: Any, *, numbered: bool = False, keys: Iterable[bytes] = KEYS
    ) -> None:
        self.sent: ByKey = defaultdict(list)
        self.count = 0
        self._writer = writer
        self._numbered = numbered
        self._keys = list(keys)
        self._wanted = 0
        self._tickets: list[Any] = []
        self.stopped = False
        self.ended = False  # `count` is final
        self._task = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while not self.stopped:
            for key in self._keys:
                value = b"%d" % self.count
                producer = (P, self.count) if self._numbered else None
                self.count += 1
                self._tickets.append(await self._writer.submit(value, key=key, producer=producer))
                self.sent[key].append(value)
                if self.count > self._wanted + AHEAD_MAX and not self.stopped:
                    await self._tickets[-1]
            await asyncio.sleep(0)

    async def goes_on(self, more: int = 80) -> None:
        """So many more messages were taken."""
        wanted = self._wanted = self.count + more
        await eventually(lambda: self.count >= wanted or self._task.done())
        if self._task.done():
            await self._task

    async def stop(self) -> list[dlog.MessageId]:
        self.stopped = True
        await self._task
        self.ended = True
        return [await ticket for ticket in self._tickets]


@asynccontextmanager
async def loaded(writer: Any, **options: Any) -> AsyncIterator[Load]:
    """Under load; all that was sent is acknowledged behind it."""
    load = Load(writer, **options)
    try:
        await load.goes_on()
        yield load
        await load.goes_on()
    finally:
        await load.stop()


def by_key(found: Iterable[dlog.FromShard]) -> ByKey:
    values: ByKey = defaultdict(list)
    for _, message in found:
        assert message.key is not None
        assert message.value is not None
        values[message.key].append(message.value)
    return values


def logs_of(found: Iterable[dlog.FromShard]) -> set[int]:
    return {shard for shard, _ in found}


async def read_stream(stream: Any, **options: Any) -> list[dlog.FromShard]:
    async with stream.open_reader(**options) as reader:
        return await rest_of(reader)  # type: ignore[return-value]


async def truncate_all(client: Any, stream: Any, *numbers: int) -> None:
    for shard in await stream.shards():
        if shard.number in numbers:
            await client.admin.truncate(shard.log, "latest")


@asynccontextmanager
async def a_stream(api: Api, shards: int = 3, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
    async with api.connect() as client:
        yield client, await client.create_stream("orders", shards=shards, **options)


async def end_log(api: Api, stream: Any, number: int) -> None:
    """Of a shard that is sealed, as whoever carries the change out does first."""
    (shard,) = [each for each in await stream.shards() if each.number == number]
    async with stores_of(api) as stores:
        site = Site(stream.name, stores.layout.stream(stream.name), stores.chance)
        driver = StreamDriver(stores)
        meta = (await driver.run(reshard.read_stream(site))).meta
        await driver._end(meta.log_of(shard, stream.name), meta.options)


async def decide_split(api: Api, stream: Any, number: int) -> None:
    """Only that: the log of the shard takes messages until somebody carries the split out."""
    (shard,) = [each for each in await stream.shards() if each.number == number]
    middle = shard.range.first_hash + len(shard.range) // 2
    async with stores_of(api) as stores:
        site = Site(stream.name, stores.layout.stream(stream.name), stores.chance)
        change = change_stream(
            site,
            lambda meta: meta.split(stream.name, number, (middle,), "decided"),
            is_done=lambda meta: bool(meta.made_in("decided")),
            point="stream.resharded",
        )
        await StreamDriver(stores).run(change)
