"""What the flush of a stream's writer says of shards that went to another writer."""

from __future__ import annotations

import pytest

import dlog
from tests.api.adapter import Api
from tests.api.streaming import KEYS, a_stream


async def test_a_flush_tells_of_a_lost_shard_once_and_of_others_never(api: Api) -> None:
    async with a_stream(api, 2) as (_, stream), stream.open_writer() as writer:
        await writer.append_many([b"old"] * len(KEYS), keys=KEYS)
        theirs, ours = (
            next(key for key in KEYS if writer.shard_of(key) == number) for number in (0, 1)
        )
        async with stream.open_writer(shards=[0]) as other:
            with pytest.raises(dlog.Fenced):
                await writer.append(b"refused", key=theirs)
            for number in range(3):
                await writer.submit(b"%d" % number, key=ours)
                await writer.flush()
            await other.append(b"new", key=theirs)
            await writer.flush(timeout=0)


async def test_a_flush_tells_what_no_ticket_told(api: Api) -> None:
    async with a_stream(api, 2) as (_, stream), stream.open_writer() as writer:
        theirs = next(key for key in KEYS if writer.shard_of(key) == 0)
        async with stream.open_writer(shards=[0]):
            for number in range(3):
                try:
                    await writer.submit(b"%d" % number, key=theirs)
                except dlog.Fenced:
                    break
            with pytest.raises(dlog.Fenced):
                await writer.flush()
            await writer.flush()


async def test_a_flush_of_what_is_acknowledged_waits_for_nothing(api: Api) -> None:
    async with a_stream(api, 2) as (_, stream), stream.open_writer() as writer:
        await writer.flush(timeout=0)
        await writer.append_many([b"x"] * len(KEYS), keys=KEYS)
        await writer.flush(timeout=0)
