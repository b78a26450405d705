"""What becomes of a worker whose group, stream or name is somebody else's by now."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import dlog
from dlog.groups.places import GroupPlaces
from dlog.meta.attended import AttendedMetaStore
from tests.api.adapter import AioApi, Api
from tests.api.grouping import GROUP, STREAM, Seen, a_group, seen_all, send, work
from tests.api.planting import remove_node, stores_of
from tests.api.waiting import eventually, until


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
                assert "another one was made" in str(await worker.wait(20))
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
            told = ("another stream of this name", "was removed", "no stream")
            assert any(sentence in str(why) for sentence in told)
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


async def test_nothing_is_left_of_groups_that_were_removed(url: str) -> None:
    api = AioApi(url)
    async with a_group(api, shards=1) as (client, _, _writer), stores_of(api) as stores:
        for name in ("one", "two"):
            async with client.open_worker(name, STREAM, Seen().process):
                pass
        await client.create_stream("others")
        async with client.open_worker("one", "others", Seen().process):
            pass
        await client.group("one", STREAM).remove()
        assert await client.groups() == [("one", "others"), ("two", STREAM)]
        await client.group("one", "others").remove()
        await client.group("two", STREAM).remove()
        assert await stores.meta.children(stores.layout.groups) == []


async def test_a_group_can_be_removed_when_its_stream_is_another_one_and_its_worker_dead(
    url: str,
) -> None:
    """Nobody can join it any more, to see that the worker is dead."""
    api = AioApi(url)
    async with a_group(api, shards=1) as (client, stream, writer):
        async with api.connect() as other:
            worker = await work(other, Seen().process, timeout_ms=300)
            await eventually(lambda: worker.shards)
            worker.drop()
        await writer.close()
        await stream.remove()
        await client.create_stream(STREAM, shards=1)

        async def is_removed() -> bool:
            try:
                await client.group(GROUP, STREAM).remove()
            except dlog.Conflict:
                return False
            return True

        await until(is_removed)
        assert await client.groups() == []


async def test_a_group_made_anew_begins_where_it_is_told_whatever_the_old_one_left(
    url: str,
) -> None:
    """A worker that joined while its group was removed writes its lease once more when it leaves:
    the next group of the name would go on from that checkpoint."""
    api = AioApi(url)
    seen, again = Seen(), Seen()
    async with a_group(api, shards=1) as (client, _, _writer), stores_of(api) as stores:
        places = GroupPlaces(stores.layout, GROUP, STREAM)
        async with work(client, seen.process) as worker:
            await seen_all(seen, 200)
            await eventually(lambda: worker.shards)
            await remove_node(stores, places.charter)  # a removal that slept, and goes on now
        assert await stores.meta.children(places.leases) != []
        async with work(client, again.process):
            await seen_all(again, 200)


async def test_a_removal_that_died_leaves_no_group_whose_leases_are_gone(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its epochs would begin from 1 again, and a database that keeps them would refuse its workers
    for ever."""
    api = AioApi(url)
    seen, again = Seen(), Seen()
    async with a_group(api, shards=1) as (client, _, _writer), stores_of(api) as stores:
        places = GroupPlaces(stores.layout, GROUP, STREAM)
        async with work(client, seen.process):
            await seen_all(seen, 200)

        genuine = AttendedMetaStore.delete

        async def delete(self: AttendedMetaStore, path: str, version: int) -> None:
            if path == places.leases:
                raise dlog.Unavailable("killed")
            await genuine(self, path, version)

        with monkeypatch.context() as patch:
            patch.setattr(AttendedMetaStore, "delete", delete)
            with pytest.raises(dlog.Unavailable):
                await client.group(GROUP, STREAM).remove()
        with pytest.raises(dlog.NotFound):
            await stores.meta.get(places.charter)
        async with work(client, again.process):
            await seen_all(again, 200)
        await client.group(GROUP, STREAM).remove()
        assert await stores.meta.children(stores.layout.groups) == []
