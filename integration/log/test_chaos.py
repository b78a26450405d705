"""Whole logs on a real cluster, everything at once, at random: writers in many processes take over
from one another, rotate, die and freeze at any step; readers follow, strictly and not; bookies are
killed, frozen, restarted and read-only, networks are bad, ZooKeeper stands still, and strangers
recover ledgers of living writers. At the end all is healed, and the histories of everybody are
judged by the checkers of the embedded backend's chaos tests.

DLOG_CHAOS_SECONDS=600 python -m pytest integration/log/test_chaos.py -s      longer
DLOG_CHAOS_SEED=abc …        the same draws again (servers take their own time, though)
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from dlog.chance import SYSTEM_CHANCE
from dlog.testing.checkers import Story
from dlog.testing.children import Child, Children
from dlog.testing.cluster import Cluster
from dlog.testing.faulty_proxy import FaultyProxy
from integration.bookkeeper.fault_tools import all_well, lead_through, stores_of
from integration.bookkeeper.test_chaos import Nemesis
from integration.conftest import OwnCluster
from tests.chaos.actors import Stage
from tests.chaos.arena import Arena
from tests.chaos.program import wild
from tests.chaos.test_random import Mayhem
from tests.tidy.source import ROOT

SECONDS = float(os.environ.get("DLOG_CHAOS_SECONDS", "5"))
SEED = os.environ.get("DLOG_CHAOS_SEED") or SYSTEM_CHANCE.token()[:8]
BOOKIES = 5
WALKERS = 2  # in this process, through networks that are bad
STEP_S = 1.2
STEPS = 10_000  # more than there is time for
END_S = 120.0

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(SECONDS * 2 + 400)]


class Writers(Mayhem):
    """Processes on random walks, for as long as they are let."""

    async def run(self) -> None:
        self._start()
        while True:
            await asyncio.sleep(2 * STEP_S * self._chance.random())
            match self._chance.randrange(8):
                case 0 | 1 | 2:
                    self._start()
                case 3:
                    self._freeze()
                case 4 | 5:
                    self._thaw()
                case 6:
                    self._kill()
                case 7:
                    await self._recover_as_a_stranger()


@asynccontextmanager
async def walkers(arena: Arena, cluster: Cluster) -> AsyncIterator[list[FaultyProxy]]:
    """Writers that reach one of the bookies each through a proxy, and run until this ends."""
    proxies: list[FaultyProxy] = []
    tasks: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as ending:
        for number in range(WALKERS):
            proxy = await ending.enter_async_context(FaultyProxy(cluster.bookies[number].port))
            proxies.append(proxy)
            stage = await ending.enter_async_context(arena.stage(f"walker{number}"))
            stores = await stage.client._stores(True)
            lead_through(stores.ledgers, cluster.bookies[number], proxy)  # type: ignore[arg-type]
            tasks.append(asyncio.create_task(_walk(stage, f"{SEED}/walker{number}")))
        try:
            yield proxies
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for proxy in proxies:
                proxy.heal()


async def _walk(stage: Stage, seed: str) -> None:
    await wild(stage, seed, str(STEPS))


async def chaos(arena: Arena, cluster: Cluster, followers: list[Child]) -> Nemesis:
    chance = random.Random(SEED)
    writers = Writers(arena, SEED)
    async with walkers(arena, cluster) as proxies:
        nemesis = Nemesis(cluster, proxies, chance, can_fill=False)
        at_work = [asyncio.create_task(nemesis.run()), asyncio.create_task(writers.run())]
        try:
            done, _ = await asyncio.wait(
                at_work, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()  # only a failure ends one of them
        finally:
            for task in at_work:
                task.cancel()
            await asyncio.gather(*at_work, return_exceptions=True)
            await nemesis.heal()
    async with asyncio.timeout(END_S):
        await asyncio.to_thread(writers.end)
    for follower in followers:
        assert follower.is_running, follower.told_errors()
    print(writers.counts)
    return nemesis


def judge(story: Story) -> None:
    """Each chaser delivered the whole log, over all its readings together."""
    names = [event.name for event in story.log]
    for process in ("chase1", "chase2"):
        delivered = [
            event.name
            for handle, reader in story.readers.items()
            if handle.startswith(f"{process}.")
            for event in reader.delivered
        ]
        assert delivered == names, f"{process} read {len(delivered)} of {len(names)}"


async def test_everything_at_once_under_logs(own_cluster: OwnCluster, tmp_path: Path) -> None:
    print(f"to repeat: DLOG_CHAOS_SEED={SEED}")
    cluster = own_cluster(bookies=BOOKIES)
    try:
        with Children(tmp_path, python_path=ROOT) as children:
            url = f"{cluster.url}&session_timeout_ms=4000"
            arena = Arena(tmp_path, children, data=url)
            async with arena.stage("starter") as stage:
                await (await stage.open_writer()).append()
            followers = [arena.start("chase", tail) for tail in ("normal", "strict")]
            for follower in followers:
                await asyncio.to_thread(follower.wait_line, "chasing")
            nemesis = await chaos(arena, cluster, followers)
            async with stores_of(cluster) as stores:
                await all_well(stores)
            healed_s = time.monotonic()
            story = await arena.survey(followers[0])
            await asyncio.to_thread(followers[1].wait_success)
            judge(story)
            print(f"{time.monotonic() - healed_s:.1f} s until all had read and was judged")
    except BaseException as error:
        error.add_note(f"to repeat: DLOG_CHAOS_SEED={SEED}")
        raise
    acked = sum(append.is_acked for append in story.appends.values())
    print(dict(sorted(nemesis.told.items())))
    print(f"{len(story.log)} messages, {acked} acknowledged, epoch {story.log[-1].epoch}")
    assert nemesis.told.total() > SECONDS / 10, "no harm was done: that proves nothing"
    assert story.log[-1].epoch > SECONDS / 10, "nobody took over: that proves nothing"
