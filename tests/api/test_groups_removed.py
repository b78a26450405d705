"""What becomes of a worker whose group, stream or name is somebody else's by now."""

from __future__ import annotations

import threading
from typing import Any

from dlog.groups.places import GroupPlaces
from tests.api.adapter import AioApi, Api
from tests.api.grouping import GROUP, STREAM, Seen, a_group, seen_all, send, work
from tests.api.planting import remove_node, stores_of
from tests.api.waiting import eventually


async def test_a_worker_leaves_a_group_that_was_removed(url: str) -> None:
    """One that slept through it would go on by an agreement that nobody else knows of: a second
    worker could keep the leases elsewhere, and both would have the shard."""
    api = AioApi(url)
    async with a_group(api, shards=1) as (client, _, _writer), stores_of(api) as stores:
        places = GroupPlaces(stores.layout, GROUP, STREAM)
        async with work(client, Seen().process) as worker:
            await eventually(lambda: worker.shards)
            await remove_node(stores, places.charter)
            # Something happens that everybody plans for.
            async with work(client, Seen().process, leases="logs") as other:
                assert "made anew" in str(await worker.wait(20))
                await eventually(lambda: worker.shards == ())
                assert other.options.leases == "logs"


async def test_a_worker_leaves_a_stream_that_was_removed(api: Api) -> None:
    """A shard of a stream of the same name may be at its end in the old one's lease."""
    seen = Seen()
    async with a_group(api, shards=1) as (client, stream, writer):
        async with work(client, seen.process) as worker:
            await seen_all(seen, 200)
            await writer.close()
            await stream.remove()
            again = await client.create_stream(STREAM, shards=1)
            why = await worker.wait(20)
            assert "another stream of this name" in str(why) or "was removed" in str(why)
            assert again is not None


async def test_who_wakes_up_and_finds_its_name_taken_leaves(url: str) -> None:
    """LH flaw 10: the one that came later is the one that counts; it is not told to go by a zombie
    that comes again."""
    api = AioApi(url)
    seen = Seen()
    async with a_group(api, shards=1) as (client, _, writer), stores_of(api) as stores:
        places = GroupPlaces(stores.layout, GROUP, STREAM)
        async with work(client, Seen().process, name="w1") as zombie:
            await eventually(lambda: zombie.shards)
            heart, wakes = zombie._heart, threading.Event()
            heart.home.call(wakes.wait)  # asleep
            try:
                await remove_node(stores, places.worker(heart._core.me))
                younger: Any = await work(client, seen.process, name="w1")
                await eventually(lambda: younger.id is not None)
            finally:
                wakes.set()
            assert await zombie.wait(20) == "another process goes by the same name"
            await seen_all(seen, 200)
            await send(writer, 50, first=200)
            await seen_all(seen, 250)
            assert await younger.wait(0) is None
            await younger.close()
