"""ZooKeeper down, paused and restarted under open writers and readers (log-protocol §7, DL-35):
appends and reads go on; a rotation waits, says why, and is made up for.

DLOG_AWAY_SECONDS=60 python -m pytest integration/log/test_metadata_away.py -s      for longer
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from dlog import ReasonCode, aio
from dlog.errors import Timeout, Unavailable
from dlog.options import TailMode
from dlog.testing.cluster import Cluster
from integration.bookkeeper.fault_tools import come_true, patience, serves_again
from integration.conftest import OwnCluster

AWAY_S = float(os.environ.get("DLOG_AWAY_SECONDS", "2"))
APPEND_MAX_S = 2.0

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180 + 3 * AWAY_S)]


class Paused:
    async def begin(self, cluster: Cluster) -> None:
        cluster.zookeeper.freeze()

    async def end(self, cluster: Cluster) -> None:
        cluster.zookeeper.thaw()


class Down:
    async def begin(self, cluster: Cluster) -> None:
        cluster.zookeeper.kill()

    async def end(self, cluster: Cluster) -> None:
        cluster.zookeeper.start()
        await asyncio.to_thread(cluster.zookeeper.wait_until_serving)


class Traffic:
    """One message after the other, and how long each took."""

    def __init__(self, writer: aio.Writer) -> None:
        self.writer = writer
        self.count = 0
        self.longest_s = 0.0
        self._is_over = False

    async def run(self) -> None:
        while not self._is_over:
            began_s = time.monotonic()
            await self.writer.append(b"%d" % self.count)
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            self.count += 1
            await asyncio.sleep(0.02)

    async def go_on_for(self, seconds: float) -> None:
        before = self.count
        await asyncio.sleep(seconds)
        assert self.count > before + 5 * seconds, "appends go on"

    def end(self) -> None:
        self._is_over = True


class Follower:
    def __init__(self) -> None:
        self.count = 0

    async def run(self, client: aio.Client, name: str, tail: TailMode) -> None:
        async with client.open_reader(name, follow=True, tail=tail) as reader:
            async for message in reader:
                assert message.value == b"%d" % self.count
                self.count += 1


@asynccontextmanager
async def at_work(*work: Awaitable[None]) -> AsyncIterator[list[asyncio.Task[None]]]:
    """What fails among them fails the test."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        yield tasks
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _only_its_appends_wait(writer: aio.Writer) -> bool:
    reason = writer.why()
    return reason is None or reason.code in (ReasonCode.UNCONFIRMED, ReasonCode.UNPUBLISHED)


async def all_registered(cluster: Cluster) -> None:
    """Bookies register anew when ZooKeeper was away for longer than their sessions."""

    async def are_there() -> bool:
        told = [asyncio.to_thread(bookie.is_registered) for bookie in cluster.bookies]
        return all(await asyncio.gather(*told))

    await come_true(are_there, "all bookies are registered")


@pytest.mark.parametrize("away", [Paused, Down])
async def test_open_handles_go_on_without_zookeeper(
    own_cluster: OwnCluster, away: Callable[[], Paused | Down]
) -> None:
    cluster, fault = own_cluster(bookies=4), away()
    url = f"{cluster.url}&meta_timeout_ms=2000"
    name = away.__name__
    await all_registered(cluster)
    async with aio.connect(url) as client, aio.connect(url) as other:
        writer = await client.open_writer(name)
        traffic, normal, strict = Traffic(writer), Follower(), Follower()
        idle = await client.open_writer(f"idle-{name}")
        await idle.append(b"alone")
        quiet: list[bytes | None] = []

        async def follow_idle() -> None:
            async with other.open_reader(f"idle-{name}", follow=True) as reader:
                async for message in reader:
                    quiet.append(message.value)  # noqa: PERF401 - each as it comes

        async with at_work(
            traffic.run(),
            normal.run(other, name, "normal"),
            strict.run(other, name, "strict"),
            follow_idle(),
        ) as tasks:

            def nothing_failed() -> bool:
                return not any(task.done() for task in tasks)

            await traffic.go_on_for(0.5)
            await come_true(lambda: min(normal.count, strict.count) > 0, "both follow")
            assert _only_its_appends_wait(writer)
            await fault.begin(cluster)
            try:
                await traffic.go_on_for(AWAY_S)
                assert nothing_failed(), tasks
                told = normal.count
                await come_true(lambda: normal.count > told, "reads go on")
                with pytest.raises(Timeout) as late:
                    await writer.rotate(timeout=3)
                assert isinstance(late.value.__cause__, (Unavailable, Timeout)), late.value
                reason = writer.why()
                assert reason is not None
                assert reason.code is ReasonCode.METADATA_AWAY, reason
                assert reason.evidence["waits"] == "rotation", reason
                assert "a rotation " in str(reason), reason
                print(f"rotate: {late.value}; why: {reason}")
                before = traffic.count
                await come_true(lambda: traffic.count > before + 20, "appends go on")
                assert quiet == [b"alone"]
                assert nothing_failed(), tasks
            finally:
                await fault.end(cluster)
            back_s = time.monotonic()
            engine = writer._engine
            await come_true(lambda: engine.rotations > 0, "the rotation is made up for")
            print(f"rotated {time.monotonic() - back_s:.1f} s after ZooKeeper came back")
            assert _only_its_appends_wait(writer)
            await idle.append(b"again")
            await come_true(lambda: quiet == [b"alone", b"again"], "the quiet tail goes on")
            seen = traffic.count
            await come_true(lambda: min(normal.count, strict.count) > seen, "both cross over")
            assert nothing_failed(), tasks
            assert traffic.longest_s < APPEND_MAX_S
            traffic.end()
            async with patience():
                await tasks[0]
        assert len((await other.admin.describe(name)).segments) >= 2
        async with other.open_reader(name) as reader:
            everything = [message.value async for message in reader]
        assert everything == [b"%d" % number for number in range(traffic.count)]
        print(f"{traffic.count} appends, the longest took {traffic.longest_s * 1000:.0f} ms")
        for bookie in cluster.bookies:  # some give up when ZooKeeper is away while they register
            await serves_again(bookie)
        new = await other.open_writer(name)
        await new.append(b"new")
