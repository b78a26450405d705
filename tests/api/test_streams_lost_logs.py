"""A stream removes no log of a shard that it lists. Where such a log was removed all the same, by
whoever knows of no streams, readers and `fsck` say so: nobody takes it for one that is not made
yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

import dlog
from dlog import aio
from dlog.streams import reshard
from dlog.streams.driver import StreamDriver
from dlog.streams.reshard import Site
from dlog.streams.tails import tails_of
from tests.api.adapter import rest_of
from tests.api.streaming import KEYS, read_stream, truncate_all

NAME = "orders"


@asynccontextmanager
async def a_client(request: pytest.FixtureRequest) -> AsyncIterator[aio.Client]:
    async with aio.connect(f"memory:{request.node.name}") as client:
        yield client


async def remove_log(client: aio.Client, number: int) -> None:
    """As the version before streams did."""
    stores = await client._stores(True)
    driver = StreamDriver(stores)
    site = Site.at(stores.layout, NAME, stores.chance)
    meta = (await driver.run(reshard.read_stream(site))).meta
    await driver.remove(meta.log_of(meta.shard(number), NAME))


async def written(stream: aio.Stream, value: bytes = b"acknowledged") -> None:
    async with stream.open_writer() as writer:
        for key in KEYS:
            await writer.append(value, key=key)


async def missing(client: aio.Client) -> list[str | None]:
    report = await client.admin.fsck()
    return [each.where.log for each in report.damage if each.kind.value == "log_missing"]


async def read_on(stream: aio.Stream, **reading: Any) -> None:
    async with stream.open_reader(**reading) as reader:
        while await reader.read():
            pass


READINGS: list[dict[str, Any]] = [
    {},
    {"follow": True},
    {"start": "latest"},
    {"start": "latest", "follow": True},
    {"start": datetime.fromtimestamp(0, UTC), "follow": True},
    {"order": "time", "follow": True},
    {"on_truncated": "jump"},
]


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("is_split", [False, True])
async def test_the_log_of_a_listed_shard_that_was_removed_is_told(
    request: pytest.FixtureRequest, is_plain: bool, is_split: bool
) -> None:
    async with a_client(request) as client:
        if is_plain:
            async with client.open_writer(NAME) as writer:
                await writer.append(b"plain", key=KEYS[0])
            stream = client.stream(NAME)
            await stream.pin(KEYS[0], 0)
        else:
            stream = await client.create_stream(NAME, shards=1)
            await written(stream)
        async with stream.open_reader(follow=True) as reader:
            await reader.read(1)
            places = [reader.position]
        if is_split:
            await stream.split(0)
            await written(stream)
        assert await missing(client) == []
        await remove_log(client, 0)
        log = NAME if is_plain else f"{NAME}/0"
        assert await missing(client) == [log]
        readings = READINGS if not is_split else READINGS[:2]
        for reading in [*readings, {"start": places[0]}, {"start": places[0], "follow": True}]:
            with pytest.raises(dlog.Corrupt, match=f"'{NAME}' lists shard 0.*'{log}'.*removed"):
                await read_on(stream, **reading)
        for ask in (stream.tails, stream.describe):
            with pytest.raises(dlog.Corrupt, match="lists shard 0"):
                await ask()


async def test_a_reader_whose_log_is_removed_under_the_stream_is_told(
    request: pytest.FixtureRequest,
) -> None:
    async with a_client(request) as client:
        stream = await client.create_stream(NAME, shards=2)
        await written(stream)
        async with stream.open_reader(follow=True) as reader:
            await reader.read(1)
            await remove_log(client, 0)
            await remove_log(client, 1)
            with pytest.raises(dlog.Corrupt, match="was removed"):
                await rest_of(reader)
        assert await missing(client) == [f"{NAME}/0", f"{NAME}/1"]


async def test_logs_that_are_not_made_or_were_removed_before_are_not_lost(
    request: pytest.FixtureRequest,
) -> None:
    """Of a new stream, of one that has the name of one that was removed, and behind a trim."""
    async with a_client(request) as client:
        for _ in range(2):
            stream = await client.create_stream(NAME, shards=2)
            assert await read_stream(stream) == []
            assert await stream.tails() == ()
            assert await missing(client) == []
            await written(stream)
            await stream.split(0)
            await truncate_all(client, stream, 0)
            assert await stream.trim() == (0,)
            assert await missing(client) == []
            async with stream.open_reader(start=datetime.now(UTC)) as reader:
                assert await rest_of(reader) == []
            await stream.describe()
            await stream.remove()
            assert await missing(client) == []


async def test_a_list_that_is_older_than_a_trim_tells_of_no_loss(
    request: pytest.FixtureRequest,
) -> None:
    """Whoever slept behind the list finds that the log was removed, and asks the list again."""
    async with a_client(request) as client:
        stream = await client.create_stream(NAME, shards=1)
        await written(stream)
        stores = await client._stores(True)
        site = Site.at(stores.layout, NAME, stores.chance)
        old = (await StreamDriver(stores).run(reshard.read_stream(site))).meta
        await stream.split(0)
        await truncate_all(client, stream, 0)
        assert await stream.trim() == (0,)
        for _ in range(2):
            with pytest.raises(dlog.NotFound, match="'orders/0' was removed"):
                await tails_of(stores, old)
            if await client.streams():
                await stream.remove()


@contextmanager
def behind_the_list(patch: pytest.MonkeyPatch, stores: Any, meanwhile: Any) -> Iterator[None]:
    """Call `meanwhile` behind the first read of the stream's list: who reads has an old one."""
    path, genuine, calls = stores.layout.stream(NAME), stores.meta.get, []

    async def slow(asked: str, *given: Any, **more: Any) -> Any:
        node = await genuine(asked, *given, **more)
        if asked == path and not calls:
            calls.append(asked)
            await meanwhile()
        return node

    with patch.context() as patched:
        patched.setattr(stores.meta, "get", slow)
        yield
    assert calls


async def read_whole(client: aio.Client) -> None:
    await read_on(client.stream(NAME))


async def read_the_tail(client: aio.Client) -> None:
    await read_on(client.stream(NAME), start="latest")


async def read_on_from_a_time(client: aio.Client) -> None:
    await read_on(client.stream(NAME), start=datetime.fromtimestamp(0, UTC), follow=True)


async def ask_for_tails(client: aio.Client) -> None:
    await client.stream(NAME).tails()


async def describe(client: aio.Client) -> None:
    await client.stream(NAME).describe()


async def do_a_job(client: aio.Client) -> None:
    async def process(batch: Any) -> None:
        pass

    async with client.open_worker("g", NAME, process, heart="loop", stop_at_end=True) as worker:
        assert await worker.wait(20) != "all shards are done"
    raise dlog.NotFound("as it should be")


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize(
    "ask",
    [read_whole, read_the_tail, read_on_from_a_time, ask_for_tails, describe, do_a_job],
)
async def test_a_stream_that_is_removed_behind_a_look_at_its_list_is_not_an_empty_one(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[aio.Client], Awaitable[None]],
    is_made_again: bool,
) -> None:
    async with a_client(request) as client:
        await written(await client.create_stream(NAME, shards=2))

        async def remove() -> None:
            await client.stream(NAME).remove()
            if is_made_again:
                await written(await client.create_stream(NAME, shards=2))

        with (
            behind_the_list(monkeypatch, await client._stores(False), remove),
            pytest.raises(dlog.NotFound),
        ):
            await asyncio.wait_for(ask(client), 30)


async def test_tails_are_those_of_the_shards_that_came_behind_a_look_at_the_list(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_client(request) as client:
        stream = await client.create_stream(NAME, shards=1)
        await written(stream)

        async def replace() -> None:
            await stream.split(0)
            await written(stream)
            await client.admin.truncate(f"{NAME}/0", "latest")
            assert await stream.trim() == (0,)

        with behind_the_list(monkeypatch, await client._stores(False), replace):
            tails = await stream.tails()
        assert sum(each.next_seq for each in tails) == len(KEYS)
        with behind_the_list(monkeypatch, await client._stores(False), stream.shards):
            described = await stream.describe()
        assert [each.number for each in described.shards] == [1, 2]
