"""One shard of a stream that is read: when it is at its tail, when it may be passed over, and what
becomes of a log that is not there."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from dlog import aio
from dlog.errors import NotFound
from dlog.ids import Position
from dlog.options import ReaderOptions
from dlog.streams.listing import ShardList
from dlog.streams.reshard import Site
from dlog.streams.sources import Reading, Source
from dlog.streams.starts import End
from tests.api.waiting import eventually

_worlds = itertools.count()


class Scene:
    def __init__(self, stream: Any, stores: Any, shard: Any) -> None:
        self.stream, self.stores, self.shard = stream, stores, shard

    def source(self, ends: dict[int, End] | None = None, stores: Any = None) -> Source:
        order: Any = SimpleNamespace(
            since_us=None, begin=lambda number, at: None, head_of=lambda number: None
        )
        options, stores = ReaderOptions(follow=ends is None), stores or self.stores
        listing = ShardList(stores, Site.at(stores.layout, "orders", stores.chance))
        reading = Reading("orders", stores, options, order, ends, asyncio.Event(), listing)
        return Source(self.shard, reading)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """A shard whose log is not made yet."""
    async with aio.connect(f"memory:sources-{next(_worlds)}") as client:
        stream = await client.create_stream("orders", shards=1)
        (shard,) = await stream.shards()
        yield Scene(stream, await client._stores(True), shard)


def log(*, at_tail: bool, has_ended: bool = False) -> Any:
    return SimpleNamespace(at_tail=at_tail, _feed=SimpleNamespace(has_ended=has_ended))


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize("is_bounded", [False, True])
@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("log_at_tail", [False, True])
@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_shard_is_at_its_tail_when_it_was_looked_for_and_all_was_handed_out(
    scene: Scene,
    is_begun: bool,
    log_at_tail: bool,
    is_waiting: bool,
    is_bounded: bool,
    has_ended: bool,
) -> None:
    """And is idle then, if more may come: not on the way to an end, and not at one."""
    source = scene.source({} if is_bounded else None)
    assert not source.at_tail
    assert not source.is_idle
    source.reader = log(at_tail=log_at_tail, has_ended=has_ended)
    source._is_begun = is_begun
    if is_waiting:
        source.ready.append(object())  # type: ignore[arg-type]
    assert source.at_tail == (is_begun and log_at_tail and not is_waiting)
    gives_way = is_bounded or has_ended
    assert source.is_idle == (is_begun and log_at_tail and not is_waiting and not gives_way)


async def ended(source: Source) -> BaseException | None:
    await eventually(lambda: source.is_over)
    return source.error


async def test_a_log_that_is_gone_ends_a_reading_that_counted_on_it(scene: Scene) -> None:
    """Up to an end, or behind a place in it: waiting until somebody makes it would take for
    ever."""
    bounded = scene.source({0: End(3, is_final=False)})
    bounded.start(None)
    assert isinstance(await ended(bounded), NotFound)
    placed = scene.source()
    placed.start(Position("gone", 3, None))
    assert isinstance(await ended(placed), NotFound)


async def test_a_log_that_is_not_made_yet_is_waited_for_by_a_watch(scene: Scene) -> None:
    """Not by asking all the time."""
    meta = Counting(scene.stores.meta)
    source = scene.source(stores=dataclasses.replace(scene.stores, meta=meta))
    source.start(None)
    await eventually(lambda: source.at_tail)
    for _ in range(50):
        await asyncio.sleep(0)
    assert source.is_idle
    assert meta.watches == 1
    async with scene.stream.open_writer() as writer:
        await writer.append(b"x")
        await eventually(lambda: source.ready)
    assert source.ready[0].to_pylist()[0].value == b"x"
    assert not source.at_tail
    assert source.log_uid == scene.shard.log_uid
    source.drop()
    assert source.task is not None
    await asyncio.gather(source.task, return_exceptions=True)


class Counting:
    """A store that counts its watches."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.watches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def watch(self, path: str) -> Any:
        self.watches += 1
        return self._inner.watch(path)


async def test_nothing_is_asked_of_a_shard_whose_place_is_at_the_end_of_the_reading(
    scene: Scene,
) -> None:
    for next_seq in (3, 4):
        source = scene.source({0: End(3, is_final=True)})
        source.start(Position("u", next_seq, None))
        assert await ended(source) is None
        assert source.reader is None
        assert not source.ready


async def test_a_shard_that_is_dropped_says_nothing_of_its_own(scene: Scene) -> None:
    """The reader of the stream does; and there may be nothing yet to let go."""
    scene.source().drop()
    async with scene.stream.open_writer() as writer:
        await writer.append(b"x")
    source = scene.source()
    source.start(None)
    await eventually(lambda: source.ready)
    source.drop()
    assert source.task is not None
    assert source.reader is not None
    assert source.reader.closed
    await asyncio.gather(source.task, return_exceptions=True)
