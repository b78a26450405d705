"""The list of a stream's shards, as a reader asks for it again."""

from __future__ import annotations

import itertools

import pytest

from dlog import aio, backends
from dlog.errors import Handle, NotFound
from dlog.streams.listing import ShardList
from dlog.streams.reshard import Site

_worlds = itertools.count()


async def test_a_list_is_of_the_stream_that_was_read_first() -> None:
    """Whoever reads a stream does not go on in another one that was given its name."""
    name = f"listing-{next(_worlds)}"
    try:
        async with aio.connect(f"memory:{name}") as client:
            stream = await client.create_stream("orders", shards=1)
            stores = await client._stores(True)
            listing = ShardList(stores, Site.at(stores.layout, "orders", stores.chance))
            await listing.newest()
            await stream.remove()
            await client.create_stream("orders", shards=1)
            with pytest.raises(NotFound, match="the one that has its name now is another") as told:
                await listing.newest()
            assert told.value.handle is Handle.DEAD
    finally:
        backends._memory_worlds.pop(name, None)
