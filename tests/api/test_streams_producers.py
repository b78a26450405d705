"""Numbers of producers over changes of shards: what was taken is known wherever its key went."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from tests.api.adapter import Api
from tests.api.streaming import KEYS, P, a_stream, by_key, loaded, read_stream
from tests.api.waiting import held_at

pytestmark = pytest.mark.crosswise(seconds=1)


async def _refused(writer: Any, number: int, key: bytes | None) -> None:
    with pytest.raises(dlog.AlreadyExists) as caught:
        await writer.append(b"again", key=key, producer=(P, number))
    assert caught.value.outcome is dlog.Outcome.NOT_HAPPENED
    assert caught.value.handle is dlog.Handle.USABLE


async def _split(stream: Any) -> None:
    await stream.split(0)


async def _merge(stream: Any) -> None:
    await stream.merge(0, 1, 2)


async def _split_and_merge_elsewhere(stream: Any) -> None:
    _, high = await stream.split(0)
    await stream.merge(high.number, 1)


async def _pin(stream: Any) -> None:
    for key in KEYS[:3]:
        to = next(shard for shard in await stream.shards() if shard.is_open)
        await stream.pin(key, to.number)


async def _pin_and_unpin(stream: Any) -> None:
    await _pin(stream)
    await stream.unpin(KEYS[0])
    await stream.unpin(KEYS[1])


CHANGES = [_split, _merge, _split_and_merge_elsewhere, _pin, _pin_and_unpin]
EVERY_CHANGE = pytest.mark.parametrize("change", CHANGES, ids=lambda each: each.__name__.strip("_"))


@EVERY_CHANGE
@pytest.mark.parametrize("who", ["the same writer", "the next writer"])
async def test_a_number_is_taken_once_whatever_became_of_its_shard(
    api: Api, change: Any, who: str
) -> None:
    async with a_stream(api) as (_, stream):
        writer = await stream.open_writer()
        for number, key in enumerate(KEYS):
            await writer.append(b"%d" % number, key=key, producer=(P, number))
        await change(stream)
        if who == "the next writer":
            await writer.close()
            writer = await stream.open_writer()
        for number, key in enumerate(KEYS):
            await _refused(writer, number, key)
        for number, key in enumerate(KEYS, len(KEYS)):
            await writer.append(b"%d" % number, key=key, producer=(P, number))
        await writer.close()
        found = by_key(await read_stream(stream))
        count = len(KEYS)
        assert found == {key: [b"%d" % n, b"%d" % (n + count)] for n, key in enumerate(KEYS)}


@EVERY_CHANGE
async def test_under_load_nothing_is_taken_twice(api: Api, change: Any) -> None:
    """What was on its way when its shard ended goes on with its number."""
    async with a_stream(api) as (_, stream):
        async with stream.open_writer() as writer:
            async with loaded(writer, numbered=True) as load:
                await change(stream)
            for key, values in load.sent.items():
                await _refused(writer, int(values[0]), key)
                await _refused(writer, int(values[-1]), key)
        assert by_key(await read_stream(stream)) == load.sent


async def test_a_change_again_forgets_nothing(api: Api) -> None:
    """Numbers go on through several generations, and through shards that were never opened."""
    async with a_stream(api, 1) as (_, stream):
        async with stream.open_writer() as writer:
            for number, key in enumerate(KEYS):
                await writer.append(b"%d" % number, key=key, producer=(P, number))
        low, high = await stream.split(0)
        lowest, _ = await stream.split(low.number)
        await stream.merge(low.number + 3, high.number)
        await stream.split(lowest.number)
        async with stream.open_writer() as writer:
            for number, key in enumerate(KEYS):
                await _refused(writer, number, key)
            await writer.append(b"new", key=KEYS[0], producer=(P, 100))
            await _refused(writer, 99, KEYS[0])  # passed by
        assert len(await read_stream(stream)) == len(KEYS) + 1


async def test_a_message_without_a_key_goes_to_the_same_shard_again(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        async with stream.open_writer() as writer:
            for number in range(20):
                await writer.append(b"%d" % number, producer=(P, number))
            await stream.split(1)
        async with stream.open_writer() as writer:
            for number in range(20):
                await _refused(writer, number, None)
        assert len(await read_stream(stream)) == 20


async def test_a_run_with_numbers(api: Api) -> None:
    async with a_stream(api) as (_, stream):
        async with stream.open_writer() as writer:
            values = [b"%d" % number for number in range(len(KEYS))]
            ids = await writer.append_many(values, keys=KEYS, producer=(P, 0))
            assert len(ids) == len(KEYS)
            with pytest.raises(dlog.AlreadyExists):
                await writer.append_many(values, keys=KEYS, producer=(P, 0))
            await stream.merge(0, 1)
            with pytest.raises(dlog.AlreadyExists):
                await writer.append_many(values, keys=KEYS, producer=(P, 0))
        assert len(await read_stream(stream)) == len(KEYS)


async def test_a_number_on_its_way_is_the_same_ticket(file_api: Api) -> None:
    async with a_stream(file_api) as (_, stream):
        async with stream.open_writer() as writer:
            await writer.append(b"0", key=b"k", producer=(P, 0))
            with held_at("ledger.synced") as disk:
                tickets = [await writer.submit(b"1", key=b"k", producer=(P, 1)) for _ in range(2)]
                disk.open()
            ids = {await ticket for ticket in tickets}
            assert len(ids) == 1
            (first,) = ids
            with pytest.raises(dlog.AlreadyExists) as caught:
                await writer.append(b"1", key=b"k", producer=(P, 1))
            assert caught.value.id == first
