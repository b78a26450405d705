"""A stream on real ZooKeeper and bookies: changed under load, while bookies die."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import dlog
from dlog import aio
from dlog.testing.cluster import Cluster
from integration.bookkeeper.fault_tools import serves_again
from integration.conftest import OwnCluster
from tests.api.streaming import KEYS, Load, P, by_key, loaded, read_stream
from tests.tiers import in_full

pytestmark = pytest.mark.timeout(240)


async def test_each_key_is_in_order_over_changes_on_a_cluster(cluster: Cluster) -> None:
    url = cluster.url.replace("/dlog?", "/streams?")
    async with aio.connect(url) as client, aio.connect(url) as other:
        stream = await client.create_stream("orders", shards=3)
        async with stream.open_writer() as writer:
            async with loaded(writer, numbered=True) as load:
                changing = other.stream("orders")
                first, second = await changing.split(0)
                await load.goes_on()
                merged = await changing.merge(second.number, 1)
                await load.goes_on()
                await changing.pin(KEYS[0], merged.number)
                await load.goes_on()
            for key, values in load.sent.items():
                with pytest.raises(dlog.AlreadyExists):
                    await writer.append(b"again", key=key, producer=(P, int(values[-1])))
            assert first.number in writer.shards
        for order in ("arrival", "time"):
            assert by_key(await read_stream(other.stream("orders"), order=order)) == load.sent
        await stream.remove()
        assert await other.streams() == []


@pytest.mark.chaos
@pytest.mark.parametrize("deaths", in_full([2, 4], but=[2], seconds=25))
async def test_nothing_is_lost_while_bookies_die_under_a_split(
    own_cluster: OwnCluster, deaths: int
) -> None:
    """One is killed before each change, and is back before the next one is killed; a reader follows
    through all of it."""
    cluster = own_cluster(bookies=4)
    url = cluster.url.replace("/dlog?", f"/streams-and-{deaths}-bookies?")
    async with aio.connect(url) as client, aio.connect(url) as other:
        stream = await client.create_stream("orders", shards=2)
        found: list[dlog.FromShard] = []

        async def follow(load: Load) -> None:
            start: dlog.StreamPosition | str = "earliest"
            while not (load.ended and len(found) >= load.count):
                try:
                    async with other.stream("orders").open_reader(
                        start=start, follow=True
                    ) as reader:
                        while not (load.ended and len(found) >= load.count):
                            found.extend(await reader.read(1000, timeout=0.2))
                            start = reader.position
                except dlog.Unavailable:  # too few bookies of a ledger for now: read on from there
                    await asyncio.sleep(0.05)

        async with stream.open_writer() as writer:
            load = Load(writer)
            following = asyncio.create_task(follow(load))
            for victim in cluster.bookies[:deaths]:
                await load.goes_on()
                victim.kill()
                shards = sorted(
                    (shard for shard in await other.stream("orders").shards() if shard.is_open),
                    key=lambda shard: shard.range,
                )
                if len(shards) < 3:
                    await other.stream("orders").split(shards[0].number)
                else:
                    await other.stream("orders").merge(shards[0].number, shards[1].number)
                await load.goes_on()
                victim.start()
                await serves_again(victim)
            ids = await load.stop()
            assert len(set(ids)) == load.count
            async with asyncio.timeout(60):
                await following
        told = differences(load.sent, found)
        assert not told, told
        told = differences(load.sent, await read_stream(other.stream("orders")))
        assert not told, told


def differences(sent: dict[bytes, list[bytes]], found: list[dlog.FromShard]) -> list[str]:
    """Of each key: how many are missing, doubled or out of place, with the first of them and the
    shards that it was read from."""
    told: list[str] = []
    for key, values in by_key(found).items():
        if values == sent[key]:
            continue
        counts = Counter(values)
        missing = [value for value in sent[key] if value not in counts]
        doubled = [value for value, count in counts.items() if count > 1]
        where = [s for s, m in found if m.key == key and m.value in (*missing[:1], *doubled[:1])]
        told.append(f"{key!r}: {len(missing)} missing, {len(doubled)} doubled, {where}")
    return told
