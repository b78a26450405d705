"""Reading streams: places, starts, orders, ends, and shards that end while they are read."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import dlog
from tests.api.adapter import Api, rest_of
from tests.api.streaming import (
    KEYS,
    a_stream,
    by_key,
    loaded,
    logs_of,
    read_stream,
    truncate_all,
)
from tests.api.waiting import eventually

pytestmark = pytest.mark.crosswise(seconds=1)


async def _with_history(stream: Any) -> Any:
    """Split, merged, and pinned; some messages in each generation."""
    async with stream.open_writer() as writer:
        async with loaded(writer) as load:
            first, _ = await stream.split(1)
            await load.goes_on()
            merged = await stream.merge(0, first.number)
            await load.goes_on()
            await stream.pin(KEYS[3], merged.number)
            await load.goes_on()
    return load


def _joined(*parts: list[dlog.FromShard]) -> dict[bytes, list[bytes]]:
    return by_key([each for part in parts for each in part])


async def test_a_reader_goes_on_where_another_one_stood(api: Api) -> None:
    """In the middle of parents, and of children; the position is text in between."""
    async with a_stream(api) as (_, stream):
        load = await _with_history(stream)
        many = max(97, load.count // 12)
        parts: list[list[dlog.FromShard]] = []
        start: Any = "earliest"
        while True:
            async with stream.open_reader(start=start) as reader:
                part = await reader.read(many)
                text = reader.position.to_text()
            if not part:
                break
            parts.append(part)
            start = dlog.StreamPosition.parse(text)
            assert start.to_text() == text == str(start)
        assert len(parts) > 5
        assert _joined(*parts) == load.sent


async def test_a_place_says_what_it_may_skip(api: Api) -> None:
    """Of shards that were read to their end only what the children do not tell."""
    async with a_stream(api) as (_, stream):
        await _with_history(stream)
        async with stream.open_reader() as reader:
            await rest_of(reader)
            assert reader.at_tail
            position = reader.position
        listed = await stream.shards()
        assert len(position.shards) + len(position.done) < len(listed)
        assert await read_stream(stream, start=position) == []
        for wrong in ("", "{}", "[]", '{"stream":1,"shards":{},"done":[]}'):
            with pytest.raises(dlog.FormatError):
                dlog.StreamPosition.parse(wrong)


@pytest.mark.parametrize("order", ["arrival", "time"])
async def test_a_reader_follows_splits_and_merges(api: Api, order: str) -> None:
    async with a_stream(api) as (_, stream):
        async with (
            stream.open_writer() as writer,
            stream.open_reader(follow=True, order=order, patience_ms=20) as reader,
        ):
            found: list[dlog.FromShard] = []
            async with loaded(writer) as load:
                first, _ = await stream.split(0)
                found += await reader.read(10)
                await stream.merge(first.number + 1, 1)
                await stream.pin(KEYS[0], 2)
            while len(found) < load.count:
                found += await reader.read(1000)
            assert by_key(found) == load.sent
            assert reader.version == (await stream.describe()).version
            assert set(reader.shards) == {s.number for s in await stream.shards() if s.is_open}


async def test_a_read_that_ran_out_of_time_forgets_nothing(api: Api) -> None:
    """Wherever it was cut short, also between the end of a shard and those that follow it."""
    async with a_stream(api, 2) as (_, stream):
        async with (
            stream.open_writer() as writer,
            stream.open_reader(follow=True) as reader,
        ):
            found: list[dlog.FromShard] = []
            async with loaded(writer) as load:
                for _ in range(4):
                    shards = [s.number for s in await stream.shards() if s.is_open]
                    if len(shards) > 1:
                        await stream.merge(*shards)
                    else:
                        await stream.split(shards[0])
                    for _ in range(10):
                        found += await reader.read(7, timeout=0.0)
                        found += await reader.read(7, timeout=0.0005)
            tries = 0
            while len(found) < load.count and tries < 20_000:
                tries += 1
                found += await reader.read(1000, timeout=0.0005)
            assert by_key(found) == load.sent


async def test_by_time_the_oldest_is_next(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        await _with_history(stream)
        async with stream.open_reader(order="time") as reader:
            times = [message.timestamp_us for _, message in await rest_of(reader)]
            assert times == sorted(times)
            assert reader.late == 0
        for wrong in ({"order": "x"}, {"patience_ms": -1}, {"start": "x"}, {"shards": [99]}):
            with pytest.raises((dlog.ConfigError, dlog.NotFound)):
                await stream.open_reader(**wrong)


async def test_by_time_a_shard_that_only_begins_is_no_idle_one(api: Api) -> None:
    """Without any patience: up to where a bounded reading ends nothing is late, however slow one
    shard is to begin."""
    async with a_stream(api) as (_, stream):
        await _with_history(stream)
        async with stream.open_reader(order="time", patience_ms=0) as reader:
            assert not reader.at_tail
            times = [message.timestamp_us for _, message in await rest_of(reader)]
            assert times == sorted(times)
            assert reader.late == 0
            assert reader.at_tail


async def test_by_time_an_idle_shard_is_waited_for_so_long(api: Api) -> None:
    """And no longer: one that has nothing at all keeps back nobody for ever."""
    async with a_stream(api) as (_, stream):
        async with (
            stream.open_writer() as writer,
            stream.open_reader(order="time", follow=True, patience_ms=50) as reader,
        ):
            for number in range(5):
                await writer.append(b"%d" % number, key=b"one key")
            found: list[dlog.FromShard] = []
            while len(found) < 5:
                found += await reader.read()
            assert [message.value for _, message in found] == [b"%d" % n for n in range(5)]


async def test_the_latest_is_what_comes_from_now_on(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        async with stream.open_writer() as writer:
            await writer.append_many([b"old"] * len(KEYS), keys=KEYS)
            await stream.split(0)
            async with stream.open_reader(start="latest", follow=True) as reader:
                await writer.append_many([b"new"] * len(KEYS), keys=KEYS)
                await stream.merge(1, 2)
                await writer.append_many([b"newer"] * len(KEYS), keys=KEYS)
                found: list[dlog.FromShard] = []
                while len(found) < 2 * len(KEYS):
                    found += await reader.read()
        assert by_key(found) == {key: [b"new", b"newer"] for key in KEYS}


async def test_a_time_is_a_start(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        async with stream.open_writer() as writer:
            await writer.append_many([b"old"] * len(KEYS), keys=KEYS)
            await stream.split(0)
            await writer.append_many([b"mid"] * len(KEYS), keys=KEYS)
            last = max(m.timestamp_us for _, m in await read_stream(stream))
            since = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=last + 1)
            await eventually(lambda: datetime.now(UTC) > since)
            await writer.append_many([b"new"] * len(KEYS), keys=KEYS)
            await stream.merge(1, 2)
            await writer.append_many([b"newer"] * len(KEYS), keys=KEYS)
        assert by_key(await read_stream(stream, start=since)) == {
            k: [b"new", b"newer"] for k in KEYS
        }
        async with stream.open_reader(start=since) as reader:
            part = await reader.read(10)
            position = dlog.StreamPosition.parse(reader.position.to_text())
        assert position.since_us == last + 1
        rest = await read_stream(stream, start=position)
        assert _joined(part, rest) == {key: [b"new", b"newer"] for key in KEYS}
        everything = await read_stream(stream, start=datetime.fromtimestamp(0, UTC))
        assert len(everything) == 4 * len(KEYS)
        with pytest.raises(dlog.ConfigError, match="time zone"):
            await stream.open_reader(start=datetime.now())


async def test_a_bounded_reading_is_a_cut_that_keeps_each_key_in_order(api: Api) -> None:
    """Taken while shards are split and merged under load: of each key a beginning, without gaps;
    and its place leads to exactly the rest."""
    async with a_stream(api) as (_, stream):
        async with stream.open_writer() as writer:
            cuts: list[tuple[list[dlog.FromShard], dlog.StreamPosition]] = []

            async def cut() -> None:
                async with stream.open_reader() as reader:
                    found = await rest_of(reader)
                    cuts.append((found, reader.position))  # type: ignore[arg-type]

            async with loaded(writer) as load:
                for _ in range(4):
                    shards = sorted(
                        (s for s in await stream.shards() if s.is_open), key=lambda s: s.range
                    )
                    cutting = asyncio.create_task(cut())
                    await stream.split(shards[0].number)
                    await stream.merge(shards[1].number, shards[2].number)
                    await cutting
        for found, position in cuts:
            begun = by_key(found)
            for key in KEYS:
                assert begun[key] == load.sent[key][: len(begun[key])]
            assert _joined(found, await read_stream(stream, start=position)) == load.sent


async def test_some_shards_can_be_read_alone(api: Api) -> None:
    async with a_stream(api, 4) as (_, stream):
        async with stream.open_writer() as writer:
            await writer.append_many([b"x"] * len(KEYS), keys=KEYS)
            first, _ = await stream.split(3)
            await writer.append_many([b"y"] * len(KEYS), keys=KEYS)
        both = [await read_stream(stream, shards=some) for some in ([0, 3], [1, 2])]
        assert logs_of(both[0]) == {0, 3}
        assert logs_of(both[1]) == {1, 2}
        assert logs_of(await read_stream(stream, shards=[first.number])) == {first.number}


async def test_batches_are_the_same_messages(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        load = await _with_history(stream)
        found: list[dlog.FromShard] = []
        async with stream.open_reader() as reader:
            async for shard, batch in reader.batches():
                found += [dlog.FromShard(shard, message) for message in batch.to_pylist()]
            assert await read_stream(stream, start=reader.position) == []
        assert by_key(found) == load.sent


async def test_messages_of_a_batch_are_handed_out_first(api: Api) -> None:
    async with a_stream(api, 1) as (_, stream):
        async with stream.open_writer(linger_ms=60_000) as writer:
            for _ in range(3):
                await writer.submit(b"x")
        async with stream.open_reader() as reader:
            await reader.read(1)
            with pytest.raises(dlog.ConfigError, match="one by one"):
                async for _ in reader.batches():
                    pass
            assert len(await rest_of(reader)) == 2


async def test_shards_that_were_trimmed_are_truncated(api: Api) -> None:
    async with a_stream(api) as (client, stream):
        async with stream.open_writer() as writer:
            await writer.append_many([b"old"] * len(KEYS), keys=KEYS)
            async with stream.open_reader() as reader:
                count = 0
                while count < len(KEYS) - 1:  # a read may bring less than it is asked for
                    count += len(await reader.read(len(KEYS) - 1 - count))
                in_all = reader.position
            assert 0 in in_all.shards
            await writer.append_many([b"more"] * len(KEYS), keys=KEYS)
            await stream.split(0)
            await writer.append_many([b"new"] * len(KEYS), keys=KEYS)
        await truncate_all(client, stream, 0)
        with pytest.raises(dlog.Truncated):
            await read_stream(stream, start=in_all)
        whole = await read_stream(stream)  # from where each shard begins
        assert 0 not in logs_of(whole)
        assert await stream.trim() == (0,)
        assert by_key(await read_stream(stream)) == by_key(whole)
        with pytest.raises(dlog.Truncated, match="trimmed"):
            await stream.open_reader(start=in_all)
        left = by_key(await read_stream(stream, start=in_all, on_truncated="jump"))
        assert all(values[-1] == b"new" for values in left.values())
        assert set(left) == set(KEYS)


async def test_a_reader_says_what_it_waits_for(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        async with stream.open_writer() as writer:
            await writer.append_many([b"x"] * len(KEYS), keys=KEYS)
            async with stream.open_reader(follow=True) as reader:
                await reader.read(1)
                lag = await reader.lag()
                assert sum(each.messages for each in lag.values()) == len(KEYS) - 1
                found = 1
                while found < len(KEYS):
                    found += len(await reader.read())
                assert sum(each.messages for each in (await reader.lag()).values()) == 0
                reasons = reader.why()
                if asyncio.iscoroutine(reasons) or hasattr(reasons, "__await__"):
                    reasons = await reasons
                assert set(reasons) <= set(reader.shards)
