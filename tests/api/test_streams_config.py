"""Streams and workers go by the document that their client follows, as logs do: their writers,
their readers, and what their logs keep, also those of shards that come later or have ended."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import dlog
from tests.api.adapter import Api, OnThread
from tests.api.grouping import GROUP, STREAM, Seen, send
from tests.api.waiting import eventually, until

pytestmark = pytest.mark.crosswise(seconds=1)

AGE_S = 86_400


def inner_of(handle: Any) -> Any:
    """What stands behind it, of the async API."""
    handle = handle.inner if isinstance(handle, OnThread) else handle
    return getattr(handle, "_inner", handle)


async def change(client: Any, part: str, **values: Any) -> None:
    """By another program, and in force here once this returns."""
    async with dlog.aio.connect(inner_of(client).url) as other:
        found = await other.config("prod").set(part, values)
    followed = inner_of(client).followed_config
    await eventually(lambda: followed.version >= found.version)


async def kept_for(client: Any, stream: Any) -> dict[str, int | None]:
    """By log, as it is stored; "": of the stream."""
    found = {"": (await stream.describe()).options.retention_age_s}
    for shard in await stream.shards():
        described = await client.admin.describe(shard.log)
        found[shard.log] = described.options["retention_age_s"]
    return found


async def all_keep(client: Any, stream: Any, age_s: int, shards: int) -> None:
    async def is_stored() -> bool:
        found = await kept_for(client, stream)
        return len(found) == shards + 1 and set(found.values()) == {age_s}

    await until(is_stored)


async def following(client: Any) -> None:
    await client.follow_config("prod", poll_ms=3_600_000)


@pytest.mark.parametrize("pattern", [None, STREAM, f"{STREAM}/*", "ord*"])
async def test_retention_reaches_every_shard_those_that_ended_and_those_to_come(
    api: Api, pattern: str | None
) -> None:
    values: dict[str, Any] = {"retention_age_s": AGE_S}
    if pattern is not None:
        values = {"logs": [{"pattern": pattern, "retention_age_s": AGE_S}]}
    async with api.connect() as client:
        stream = await client.create_stream(STREAM, shards=2)
        async with stream.open_writer() as writer:
            await send(writer, 20)
            await stream.split(0)
            await send(writer, 20, first=20)
        await following(client)
        async with stream.open_writer() as writer:
            await change(client, "log", **values)
            await all_keep(client, stream, AGE_S, 4)
            await stream.split(1)
            await send(writer, 20, first=40)
            await all_keep(client, stream, AGE_S, 6)
        other = await client.create_stream("clicks", shards=1)
        async with other.open_writer() as writer:
            await writer.append(b"x")
            kept = AGE_S if pattern is None else None
            await until(lambda: _is(kept_for(client, other), {"": kept, "clicks/0": kept}))


async def _is(asked: Any, wanted: Any) -> bool:
    return await asked == wanted


async def test_what_stands_in_the_document_before_a_stream_is_opened_is_stored(api: Api) -> None:
    async with api.connect() as client:
        stream = await client.create_stream(STREAM, shards=2)
        await following(client)
        await change(client, "log", retention_age_s=AGE_S)
        async with stream.open_writer() as writer:
            await send(writer, 20)
            await all_keep(client, stream, AGE_S, 2)


def lanes_of(writer: Any) -> list[Any]:
    return [lane.writer.options for _, lane in sorted(inner_of(writer)._following.lanes.items())]


async def test_the_writer_of_a_stream_goes_by_the_document(api: Api) -> None:
    """Every shard, those to come included; and what the program gave itself stays."""
    async with api.connect() as client:
        stream = await client.create_stream(STREAM, shards=2)
        await following(client)
        async with stream.open_writer(linger_ms=3) as writer:
            await change(client, "writer", codec="lz4", linger_ms=1, window_bytes=64 << 20)
            found = lanes_of(writer)
            assert [(each.codec, each.linger_ms) for each in found] == [("lz4", 3)] * 2
            assert {each.window_bytes for each in found} == {32 << 20}, "the shards share it"
            await send(writer, 20)
            await stream.split(0)
            await send(writer, 20, first=20)
            assert [each.codec for each in lanes_of(writer)] == ["lz4"] * 3
            assert [each.linger_ms for each in lanes_of(writer)] == [3] * 3
            await change(client, "writer", force=["linger_ms"])
            assert [each.linger_ms for each in lanes_of(writer)] == [1] * 3
            await send(writer, 20, first=40)


async def test_the_reader_of_a_stream_goes_by_the_document(api: Api) -> None:
    async with api.connect() as client:
        stream = await client.create_stream(STREAM, shards=2)
        await following(client)
        async with stream.open_writer() as writer:
            await send(writer, 20)
            async with stream.open_reader(follow=True, read_run_bytes=1 << 17) as reader:
                await reader.read(20)
                await change(client, "reader", read_ahead_bytes=1 << 20, read_run_bytes=1 << 16)
                await stream.split(0)
                await send(writer, 20, first=20)
                assert len(await reader.read(20)) > 0
                options = [s.reader.options for s in inner_of(reader)._sources.values() if s.reader]
                assert options
                assert {each.read_ahead_bytes for each in options} == {1 << 20}
                assert {each.read_run_bytes for each in options} == {1 << 17}


async def test_the_readers_of_a_worker_go_by_the_document(api: Api) -> None:
    seen = Seen()
    async with api.connect() as client:
        stream = await client.create_stream(STREAM, shards=1)
        await following(client)
        await change(client, "reader", read_ahead_bytes=1 << 20)
        async with stream.open_writer() as writer:
            await send(writer, 5)
            async with client.open_worker(GROUP, STREAM, seen.process) as worker:
                await eventually(lambda: seen.count == 5)
                (run,) = inner_of(worker)._crew.runs.values()
                assert run._reader.options.read_ahead_bytes == 1 << 20
                await change(client, "reader", read_ahead_bytes=1 << 21, stall_after_ms=5)
                assert run._reader.options.read_ahead_bytes == 1 << 21
                assert run._reader.options.stall_after_ms == 0, "the worker looks for that itself"


async def test_a_part_that_nobody_follows_is_told(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dlog.config")
    async with api.connect() as client:
        await client.create_stream(STREAM)
        await following(client)
        routing = {"servers": {"a": 1}}
        await change(client, "routing", **routing)
        await change(client, "routing", pins={})
        told = [each for each in caplog.messages if "config.unfollowed" in each]
        assert len(told) == 1
        assert "'routing'" in told[0]
        followed = inner_of(client).followed_config
        assert followed.status().unfollowed == ("routing",)
        with pytest.raises(dlog.ConfigError, match="part 'routing' is not followed here"):
            followed.current["routing"]
