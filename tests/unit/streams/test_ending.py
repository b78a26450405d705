"""Ending the log of a shard, by many at once."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from dlog import aio
from dlog.meta.shards import ShardLog
from dlog.options import LogOptions
from dlog.streams.driver import StreamDriver

_worlds = itertools.count()
SHARD = ShardLog("log", "", "log", "")  # of a stream of an older version


@pytest.mark.parametrize("was", ["open", "closed", "never made"])
async def test_who_wrote_it_last_is_known_however_many_end_it(was: str) -> None:
    """So its writer may go on in what follows, and nobody else."""
    async with aio.connect(f"memory:endings-{next(_worlds)}") as client:
        stores = await client._stores(True)
        epoch, opened = 0, []
        if was != "never made":
            for _ in range(2):
                writer = await client.open_writer("log")
                epoch = writer.epoch
                await writer.append(b"x")
                opened.append(writer)
                if was == "closed":
                    await writer.close()
        ending = (StreamDriver(stores)._end(SHARD, LogOptions()) for _ in range(6))
        await asyncio.gather(*ending)
        assert await StreamDriver(stores).last_writer(SHARD) == (epoch, 0)
        assert (await client.admin.describe("log")).state == "terminated"
        for writer in opened:
            await writer.close()
