"""Between a split's decision and its execution the log of the old shard takes messages: where it
ends is known when it is terminated, not when the list says that it is sealed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

import dlog
from dlog.streams.document import ShardState
from tests.api.adapter import Api
from tests.api.streaming import (
    KEYS,
    a_stream,
    by_key,
    decide_split,
    end_log,
    read_stream,
    truncate_all,
)
from tests.api.waiting import eventually


@asynccontextmanager
async def _decided(api: Api) -> AsyncIterator[tuple[Any, Any]]:
    """One shard with a round of messages, whose split is decided; its writer has not heard."""
    async with a_stream(api, 1) as (_, stream), stream.open_writer() as writer:
        await writer.append_many([b"old"] * len(KEYS), keys=KEYS)
        await decide_split(api, stream, 0)
        assert [shard.state for shard in await stream.shards()] == [
            ShardState.SEALED,
            *[ShardState.OPEN] * 2,
        ]
        yield stream, writer


async def _carried_out(stream: Any, writer: Any) -> None:
    """By the writer, as soon as it opens what follows."""
    await stream.split(1)
    await writer.append_many([b"newer"] * len(KEYS), keys=KEYS)
    await eventually(lambda: writer.shards == (2, 3, 4))


async def test_the_latest_is_what_the_old_shard_still_takes(api: Api) -> None:
    async with (
        _decided(api) as (stream, writer),
        stream.open_reader(start="latest", follow=True) as reader,
    ):
        await writer.append_many([b"new"] * len(KEYS), keys=KEYS)
        await _carried_out(stream, writer)
        found: list[dlog.FromShard] = []
        while len(found) < 2 * len(KEYS):
            found += await reader.read()
        assert by_key(found) == {key: [b"new", b"newer"] for key in KEYS}
        assert 0 in {shard for shard, _ in found}


async def test_the_latest_of_a_shard_that_was_decided_and_ended_is_behind_it(api: Api) -> None:
    """Its log is terminated, and the list does not say so yet."""
    async with a_stream(api, 1) as (_, stream):
        async with stream.open_writer() as writer:
            await writer.append_many([b"old"] * len(KEYS), keys=KEYS)
        await decide_split(api, stream, 0)
        await end_log(api, stream, 0)
        async with stream.open_reader(start="latest", follow=True) as reader:
            assert 0 not in reader.shards
            async with stream.open_writer() as writer:
                await writer.append_many([b"new"] * len(KEYS), keys=KEYS)
            found: list[dlog.FromShard] = []
            while len(found) < len(KEYS):
                found += await reader.read()
            assert by_key(found) == {key: [b"new"] for key in KEYS}


@pytest.mark.parametrize("start", ["latest", "time"])
async def test_a_bounded_reading_stays_before_what_may_get_more(api: Api, start: str) -> None:
    async with _decided(api) as (stream, writer):
        at: Any = datetime.now(UTC) if start == "time" else start
        async with stream.open_reader(start=at) as reader:
            assert await reader.read() == []
            place = dlog.StreamPosition.parse(reader.position.to_text())
        await writer.append_many([b"new"] * len(KEYS), keys=KEYS)
        await _carried_out(stream, writer)
        found = await read_stream(stream, start=place)
        assert by_key(found) == {key: [b"new", b"newer"] for key in KEYS}


async def test_a_time_behind_the_decision_is_a_start_in_the_old_shard(api: Api) -> None:
    async with _decided(api) as (stream, writer):
        since = datetime.now(UTC)
        await eventually(lambda: datetime.now(UTC) > since)
        async with stream.open_reader(start=since, follow=True) as reader:
            await writer.append_many([b"new"] * len(KEYS), keys=KEYS)
            await _carried_out(stream, writer)
            found: list[dlog.FromShard] = []
            while len(found) < 2 * len(KEYS):
                found += await reader.read()
            assert by_key(found) == {key: [b"new", b"newer"] for key in KEYS}


async def test_a_time_does_not_pass_what_was_truncated(api: Api) -> None:
    """A shard that is empty because all of it was truncated did not end before that time."""
    async with a_stream(api, 1) as (client, stream):
        async with stream.open_writer() as writer:
            await writer.append_many([b"old"] * len(KEYS), keys=KEYS)
            since = datetime.now(UTC)
            await eventually(lambda: datetime.now(UTC) > since)
            await writer.append_many([b"new"] * len(KEYS), keys=KEYS)
            await stream.split(0)
        await truncate_all(client, stream, 0)
        await client.admin.collect("orders/0")
        with pytest.raises(dlog.Truncated):
            await read_stream(stream, start=since)
        assert await read_stream(stream, start=since, on_truncated="jump") == []


async def test_the_tails_say_what_may_get_more(api: Api) -> None:
    async with _decided(api) as (stream, writer):
        (first, *_) = await stream.tails()
        assert (first.number, first.next_seq, first.is_over) == (0, len(KEYS), False)
        await writer.append_many([b"new"] * len(KEYS), keys=KEYS)
        await _carried_out(stream, writer)
        (first, *_) = await stream.tails()
        assert (first.number, first.next_seq, first.is_over) == (0, 2 * len(KEYS), True)
