"""Ending the log of a shard, by many at once."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from dlog import aio
from dlog.errors import WriterClosed
from dlog.options import LogOptions
from dlog.streams.driver import StreamDriver
from dlog.streams.reshard import Site, read_stream

_worlds = itertools.count()


@pytest.mark.parametrize("was", ["open", "closed", "never made"])
async def test_who_wrote_it_last_is_known_however_many_end_it(was: str) -> None:
    """So its writer may go on in what follows, and nobody else."""
    async with aio.connect(f"memory:endings-{next(_worlds)}") as client:
        stores = await client._stores(True)
        stream = await client.create_stream("orders", shards=1)
        site = Site.at(stores.layout, "orders", stores.chance)
        meta = (await StreamDriver(stores).run(read_stream(site))).meta
        shard = meta.log_of(meta.shard(0), "orders")
        epoch, opened = 0, []
        if was != "never made":
            for _ in range(2):
                writer = await stream.open_writer()
                epoch = writer.epochs[0]
                await writer.append(b"x")
                opened.append(writer)
                if was == "closed":
                    await writer.close()
        ending = (StreamDriver(stores)._end(shard, LogOptions()) for _ in range(6))
        await asyncio.gather(*ending)
        assert await StreamDriver(stores).last_writer(shard) == (epoch, 0)
        assert (await client.admin.describe("orders/0")).state == "terminated"
        for writer in opened:
            writer.let_go(WriterClosed("the test is over"))
            await writer.close()
