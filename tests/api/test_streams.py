"""Streams of shards: what they are, who may write them, and how they end."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

import dlog
from dlog.streams.routing.hashing import key_hash
from tests.api.adapter import Api, rest_of
from tests.api.streaming import (
    KEYS,
    P,
    a_stream,
    by_key,
    loaded,
    logs_of,
    read_stream,
    truncate_all,
)
from tests.api.test_drop import said_when_dropped
from tests.api.waiting import eventually, held_at

pytestmark = pytest.mark.crosswise(seconds=1)


async def test_a_stream_says_what_it_is(api: Api) -> None:
    async with a_stream(api, 4) as (client, stream):
        assert stream.name == "orders"
        async with stream.open_writer() as writer:
            assert writer.shards == (0, 1, 2, 3)
            assert sorted(writer.epochs) == [0, 1, 2, 3]
            ids = [await writer.append(b"x", key=key) for key in KEYS]
            assert len(set(ids)) == len(
                {(id, writer.shard_of(k)) for id, k in zip(ids, KEYS, strict=True)}
            )
        told = await stream.describe()
        assert (told.state, told.routing, told.is_one_log) == ("open", "ranges", False)
        assert sum(shard.share for shard in told.shards) == 1
        assert sum(shard.next_seq for shard in told.shards) == len(KEYS)
        assert [shard.log for shard in told.shards] == [f"orders/{n}" for n in range(4)]
        first, second = await stream.split(1)
        told = await stream.describe()
        assert told.shards[1].state == "ended"
        assert told.shards[1].children == (first.number, second.number)
        assert told.shards[first.number].parents == (1,)
        assert told.shards[first.number].next_seq is None
        assert await client.streams() == ["orders"]
        assert await client.streams("x") == []


async def test_a_name_is_taken_once(api: Api) -> None:
    async with a_stream(api) as (client, _):
        with pytest.raises(dlog.AlreadyExists):
            await client.create_stream("orders")
        await client.admin.create("plain")
        with pytest.raises(dlog.AlreadyExists, match="split it"):
            await client.create_stream("plain")
        await client.admin.create("mine/1")
        with pytest.raises(dlog.AlreadyExists, match="mine/1"):
            await client.create_stream("mine", shards=2)
        with pytest.raises(dlog.NotFound):
            await client.stream("nobody").describe()
        with pytest.raises(dlog.NotFound):
            async with client.stream("nobody").open_reader():
                pass
        for wrong in ({"shards": 0}, {"routing": "x"}, {"weights": [1]}, {"pins": {b"k": 9}}):
            with pytest.raises(dlog.ConfigError):
                await client.create_stream("other", **wrong)


async def _split(stream: Any) -> None:
    await stream.split(0)


async def _split_in_many(stream: Any) -> None:
    await stream.split(1, parts=5)


async def _split_at(stream: Any) -> None:
    shard = (await stream.shards())[2]
    await stream.split(2, at=[shard.range.first_hash + 77, shard.range.last_hash])


async def _merge(stream: Any) -> None:
    await stream.merge(1, 0, 2)


async def _split_and_merge(stream: Any) -> None:
    first, second = await stream.split(1)
    both = await stream.merge(0, first.number)
    await stream.merge(both.number, second.number)


async def _pin_and_unpin(stream: Any) -> None:
    for key in KEYS[:2]:
        for shard in reversed(await stream.shards()):
            if shard.is_open:
                await stream.pin(key, shard.number)
                break
    await stream.unpin(KEYS[0])


CHANGES = [_split, _split_in_many, _split_at, _merge, _split_and_merge, _pin_and_unpin]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
async def test_each_key_keeps_its_order_whatever_changes(api: Api, change: Any) -> None:
    """And nothing is lost, nor there twice."""
    async with a_stream(api) as (_, stream):
        async with stream.open_writer() as writer:
            async with loaded(writer) as load:
                await change(stream)
            assert writer.moves > 0
        found = await read_stream(stream)
    assert by_key(found) == load.sent
    assert len(logs_of(found)) > 3


async def test_a_move_waits_for_room_whatever_users_do(api: Api) -> None:
    """`on_full="raise"` is for what is offered, not for what was taken before: four shards with an
    entry each that waits for company go on in one, whose window takes two."""
    options = {"on_full": "raise", "window_bytes": 4096, "entry_bytes": 4096, "linger_ms": 60_000}
    async with a_stream(api, 4) as (_, stream):
        async with stream.open_writer(**options) as writer:
            tickets, filled = [], dict.fromkeys(range(4), 0)
            for key in (b"k%d" % number for number in range(1000)):
                shard = writer.shard_of(key)
                if filled[shard] < 3:
                    filled[shard] += 1
                    tickets.append(await writer.submit(b"x" * 1000, key=key))
            assert len(tickets) == 12
            await stream.merge(0, 1, 2, 3)
            await writer.flush()
            for ticket in tickets:
                await ticket
        assert len(await read_stream(stream)) == len(tickets)


async def test_without_a_key_shards_take_turns(api: Api) -> None:
    async with a_stream(api, 4) as (_, stream):
        async with stream.open_writer() as writer:
            for number in range(40):
                await writer.submit(b"%d" % number)
            await writer.flush()
            assert len(await writer.append_many([b"x"] * 8)) == 8
            with pytest.raises(ValueError, match="shorter"):  # at the row that one has not
                await writer.append_many([b"x"] * 5, keys=[None] * 4)
        told = await stream.describe()
        assert [shard.next_seq for shard in told.shards] == [13, 13, 13, 13]


async def test_a_plain_log_is_a_stream_of_one_shard(api: Api) -> None:
    async with api.connect() as client:
        async with client.open_writer("plain") as log:
            for number, key in enumerate(KEYS):
                await log.append(b"%d" % number, key=key, producer=(P, number))
        stream = client.stream("plain")
        assert (await stream.describe()).is_one_log
        async with stream.open_writer() as writer:
            await writer.append(b"more", key=KEYS[0])
        assert await client.streams() == []
        made = await stream.split(0)
        assert [shard.log for shard in made] == ["plain/1", "plain/2"]
        assert await client.streams() == ["plain"]
        async with stream.open_writer() as writer:
            with pytest.raises(dlog.AlreadyExists):
                await writer.append(b"again", key=KEYS[3], producer=(P, 3))
            await writer.append(b"last", key=KEYS[0])
        found = by_key(await read_stream(stream))
        assert found[KEYS[0]] == [b"0", b"more", b"last"]
        assert len(found) == len(KEYS)
        with pytest.raises(dlog.Unsupported):  # the log that it was has ended
            await client.open_writer("plain")


async def test_a_ketama_stream_keeps_its_shards(api: Api) -> None:
    pins = {b"pinned": 2}
    options = {"routing": "ketama", "pins": pins, "weights": [1, 1, 8]}
    async with a_stream(api, 3, **options) as (_, stream):
        async with stream.open_writer() as writer:
            owners = [writer.shard_of(b"k%d" % number) for number in range(1000)]
            assert writer.shard_of(b"pinned") == 2
            await writer.append(b"x", key=b"pinned")
        assert set(owners) == {0, 1, 2}
        assert owners.count(2) > 600
        assert (await stream.describe()).routing == "ketama"
        for refused in (stream.split(0), stream.merge(0, 1)):
            with pytest.raises(dlog.Unsupported, match="keeps its shards"):
                await refused
        assert logs_of(await read_stream(stream)) == {2}


async def test_the_last_writer_of_all_shards_has_them(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        first = await stream.open_writer()
        await first.append(b"1", key=b"k")
        second = await stream.open_writer()
        with pytest.raises(dlog.Fenced):
            await first.append(b"2", key=b"k")
        with pytest.raises(dlog.Fenced):  # again, and at once
            await first.append(b"3", key=b"k")
        await second.append(b"4", key=b"k")
        await stream.merge(0, 1)  # what somebody took stays theirs, with its children
        await second.append(b"5", key=b"k")
        await first.close()
        await second.close()
        assert [m.value for _, m in await read_stream(stream)] == [b"1", b"4", b"5"]


async def test_two_writers_share_a_stream(api: Api) -> None:
    """A child belongs to whoever has its first parent."""
    async with a_stream(api, 4) as (_, stream):
        low = await stream.open_writer(shards=[0, 1])
        high = await stream.open_writer(shards=[2, 3])
        in_high = next(k for k in KEYS if key_hash(k) >> 31)
        with pytest.raises(dlog.Conflict, match="does not have"):
            await low.append(b"x", key=in_high)
        await high.append(b"1", key=in_high)
        first, second = await stream.split(3)
        merged = await stream.merge(1, 2)
        await low.append(b"x", key=next(k for k in KEYS if not key_hash(k) >> 31))
        middle = next(k for k in KEYS if key_hash(k) >> 30 in (1, 2))
        await low.append(b"mid", key=middle)
        top = next(k for k in KEYS if key_hash(k) >> 30 == 3)
        await high.append(b"top", key=top)
        # Shard 3 takes appends until its writer hears of the split.
        await eventually(lambda: set(high.shards) == {first.number, second.number})
        await eventually(lambda: set(low.shards) == {0, merged.number})
        with pytest.raises(dlog.Conflict):
            await high.append(b"x", key=middle)
        await low.close()
        await high.close()
        with pytest.raises(dlog.NotFound):
            await stream.open_writer(shards=[99])
        async with stream.open_writer(shards=[3]) as heir:  # ended by now: what follows it
            assert set(heir.shards) == {first.number, second.number}
        with pytest.raises(dlog.ConfigError):
            await stream.open_writer(shards=[])


async def test_a_stream_ends_for_good(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        writer = await stream.open_writer()
        async with loaded(writer) as load:
            pass
        async with stream.open_reader(follow=True) as reader:
            await stream.terminate()
            assert by_key(await rest_of(reader)) == load.sent
        with pytest.raises((dlog.Conflict, dlog.Fenced)) as caught:
            await writer.append(b"late", key=b"k")
        assert caught.value.outcome is dlog.Outcome.NOT_HAPPENED
        await writer.close()
        with pytest.raises(dlog.Unsupported):
            await stream.open_writer()
        with pytest.raises(dlog.Conflict, match="terminated"):
            await stream.split(0)
        await stream.terminate()
        assert (await stream.describe()).state == "terminated"


async def test_what_was_truncated_is_trimmed(api: Api) -> None:
    async with a_stream(api) as (client, stream):
        async with stream.open_writer() as writer:
            await writer.append_many([b"%d" % n for n in range(len(KEYS))], keys=KEYS)
            first, _ = await stream.split(0)
            merged = await stream.merge(first.number + 1, 1)
            await writer.append(b"last", key=KEYS[0])
        assert await stream.trim() == ()  # all is there
        await truncate_all(client, stream, 1, first.number + 1)
        assert await stream.trim() == (1,)  # the other follows one that is not empty
        await truncate_all(client, stream, 0)
        assert await stream.trim(dry_run=True) == (0, first.number + 1)
        assert await stream.trim() == (0, first.number + 1)
        left = [shard.number for shard in await stream.shards()]
        assert left == [2, first.number, merged.number]
        logs = {log.name for log in await client.admin.list()}
        assert "orders/1" not in logs
        assert logs <= {f"orders/{number}" for number in left}
        async with stream.open_writer() as writer:
            await writer.append(b"more", key=KEYS[0])
        assert by_key(await read_stream(stream))[KEYS[0]][-1] == b"more"


async def test_a_stream_is_removed_and_made_again(api: Api) -> None:
    async with a_stream(api) as (client, stream):
        async with stream.open_writer() as writer:
            await writer.append(b"old", key=b"k", producer=(P, 5))
            await stream.split(0)
            await stream.merge(1, 2)
            await writer.append(b"older", key=b"k", producer=(P, 6))
        async with stream.open_reader() as reader:
            await rest_of(reader)
            position = reader.position
        await stream.remove()
        assert await client.streams() == []
        assert not await client.admin.list()
        with pytest.raises(dlog.NotFound):
            await stream.describe()
        await client.create_stream("orders", shards=2)
        assert await read_stream(stream) == []
        async with stream.open_writer() as writer:
            await writer.append(b"new", key=b"k", producer=(P, 5))
        assert [m.value for _, m in await read_stream(stream)] == [b"new"]
        with pytest.raises(dlog.ConfigError, match="made anew"):
            await stream.open_reader(start=position)


async def test_closing_while_a_shard_is_split_loses_nothing(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        for shard in range(3):
            writer = await stream.open_writer()
            tickets = [await writer.submit(b"%d" % n, key=KEYS[n % 40]) for n in range(500)]
            await asyncio.gather(
                _awaited(stream.split(shard)), _awaited(writer.close()), _awaited(writer.close())
            )
            for ticket in tickets:
                await ticket
            with pytest.raises(dlog.WriterClosed):
                await writer.submit(b"x", key=b"k")
            with pytest.raises(dlog.WriterClosed):
                await writer.flush()
        assert len(await read_stream(stream)) == 1500


async def _awaited(call: Any) -> Any:
    return await call


async def test_closing_gives_up_after_its_timeout(file_api: Api) -> None:
    """And everybody who waits is told; what hung does not hang the client's end."""
    async with a_stream(file_api) as (_, stream):
        writer = await stream.open_writer()
        await writer.append(b"kept", key=b"k")
        with held_at("ledger.synced") as disk:
            ticket = await writer.submit(b"hangs", key=b"k")
            await eventually(disk.reached.is_set)
            with pytest.raises(dlog.Timeout):
                await writer.close(timeout=0.05)
            with pytest.raises(dlog.WriterClosed) as caught:
                await ticket
            assert caught.value.outcome is dlog.Outcome.UNKNOWN
            disk.open()
        await writer.close()


async def test_handles_of_streams_are_neither_pickled_nor_used_closed(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        writer, reader = await stream.open_writer(), await stream.open_reader()
        for handle in (writer, reader):
            with pytest.raises(dlog.ConfigError, match="pickled"):
                pickle.dumps(getattr(handle, "inner", handle))
            assert "orders" in repr(handle)
            await handle.close()
            await handle.close()
            assert handle.closed
            assert "closed" in repr(handle)
        with pytest.raises(dlog.WriterClosed):
            await writer.append(b"x")
        with pytest.raises(dlog.ReaderClosed):
            await reader.read()


async def test_the_client_closes_what_it_opened(api: Api) -> None:
    client = api.connect()
    stream = await client.create_stream("orders", shards=2)
    writer, reader = await stream.open_writer(), await stream.open_reader(follow=True)
    await writer.submit(b"x", key=b"k")
    await client.close()
    assert writer.closed
    assert reader.closed
    assert len(await api.values("orders/0")) + len(await api.values("orders/1")) == 1


async def test_a_dropped_writer_of_a_stream_says_so_once(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        writer = await stream.open_writer()
        await writer.append(b"kept", key=b"k")
        await stream.split(0)
        held = [writer]
        del writer
        assert said_when_dropped(held) == [
            "a writer of stream 'orders' was dropped without close(): "
            "0 messages were not acknowledged"
        ]
        async with stream.open_writer() as after:
            await after.append(b"more", key=b"k")


async def test_a_dropped_reader_of_a_stream_stops_reading(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        async with stream.open_writer() as writer:
            await writer.append(b"kept", key=b"k")
        reader = await stream.open_reader(follow=True)
        await reader.read()
        held = [reader]
        del reader
        assert said_when_dropped(held) == [
            "a reader of stream 'orders' was dropped without close()"
        ]
