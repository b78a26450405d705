"""What is done to the servers of a cluster while streams are at work on it: a bookie is killed and
started again, ZooKeeper stands still for a second or two."""

from __future__ import annotations

import asyncio
import random

from dlog.testing.children import pause
from dlog.testing.cluster import Bookie, Cluster
from tests.chaos.streams.run import HarmServers

BOOKIES = 4
SERVING_S = 60.0


def url_of(cluster: Cluster, name: str) -> str:
    """A root of its own."""
    before, _, after = cluster.url.partition("?")
    return f"{before}-{name}?{after}&session_timeout_ms=4000"


def harm_of(cluster: Cluster, one_at_a_time: asyncio.Lock | None = None) -> HarmServers:
    """Runs beside each other share the lock."""
    lock = one_at_a_time or asyncio.Lock()

    async def harm(chance: random.Random) -> None:
        while True:
            await pause(chance.uniform(2.0, 6.0))
            async with lock:
                if chance.random() < 0.4:
                    await freeze(cluster, chance.uniform(0.5, 2.0))
                else:
                    await restart(chance.choice(cluster.bookies), chance.uniform(0.5, 4.0))

    return harm


async def freeze(cluster: Cluster, seconds: float) -> None:
    cluster.zookeeper.freeze()
    try:
        await pause(seconds)
    finally:
        cluster.zookeeper.thaw()


async def restart(bookie: Bookie, seconds: float) -> None:
    """Also where it is cancelled, the bookie serves behind it."""
    bookie.kill()
    try:
        await pause(seconds)
    finally:
        bookie.start()
        await asyncio.to_thread(bookie.wait_until_serving, SERVING_S)
