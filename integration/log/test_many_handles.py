"""Forty logs in one process, with a writer, a follower and a standby each, through twenty rounds of
deaths of servers: each handle goes on by itself, or says that it is dead."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from dlog import DlogError, Fenced, Handle, aio
from dlog.testing.cluster import Bookie, Cluster
from integration.bookkeeper.fault_tools import (
    Frozen,
    Killed,
    come_true,
    patience,
    serves_again,
)
from integration.conftest import OwnCluster
from integration.log.test_metadata_away import all_registered
from tests.tiers import in_full

BOOKIES = 5
TROUBLE_S = 4.0
SEED = "many handles"
LOGS_OF = {20: 40, 2: 6}  # so many logs through so many rounds

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1_200)]


class Round:
    """One trouble: what strikes these bookies, or ZooKeeper, or both."""

    def __init__(self, name: str, bookies: int, how: str = "", zookeeper: str = "") -> None:
        self.name = name
        self._count, self._zookeeper = bookies, zookeeper
        self._fault = Killed() if how == "killed" else Frozen()

    @asynccontextmanager
    async def strikes(self, cluster: Cluster, chance: random.Random) -> AsyncIterator[None]:
        victims = chance.sample(cluster.bookies, self._count)
        if self._zookeeper == "frozen":
            cluster.zookeeper.freeze()
        if self._zookeeper == "killed":
            cluster.zookeeper.kill()
        await asyncio.gather(*map(self._fault.strike, victims))
        try:
            yield
        finally:
            await self._heal(cluster, victims)

    async def _heal(self, cluster: Cluster, victims: list[Bookie]) -> None:
        if self._zookeeper == "frozen":
            cluster.zookeeper.thaw()
        if self._zookeeper == "killed":
            cluster.zookeeper.start()
            await asyncio.to_thread(cluster.zookeeper.wait_until_serving)
        await asyncio.gather(*map(self._fault.heal, victims))
        await asyncio.gather(*map(serves_again, cluster.bookies))
        await all_registered(cluster)


ROUNDS = (
    Round("a bookie frozen", 1, "frozen"),
    Round("ZooKeeper frozen", 0, zookeeper="frozen"),
    Round("a bookie killed", 1, "killed"),
    Round("two bookies killed", 2, "killed"),
    Round("ZooKeeper killed", 0, zookeeper="killed"),
    Round("two bookies frozen", 2, "frozen"),
    Round("all bookies killed", BOOKIES, "killed"),
    Round("a bookie killed, ZooKeeper frozen", 1, "killed", "frozen"),
)


class Log:
    """Its three handles, and what went in and came out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: list[bytes] = []
        self.seen: list[bytes | None] = []
        self.deaths = 0
        self.writer: aio.Writer
        self.standby: aio.Standby

    async def open(self, client: aio.Client) -> None:
        self.writer = await client.open_writer(self.name)
        self.standby = await client.open_standby(self.name)

    async def follow(self, client: aio.Client) -> None:
        async with client.open_reader(self.name, follow=True) as reader:
            async for message in reader:
                self.seen.append(message.value)

    async def send(self, client: aio.Client) -> None:
        """It is acknowledged, or the writer says that it is dead; then another one sends it."""
        value = b"%d" % len(self.sent)
        try:
            await self.writer.append(value)
        except DlogError as error:
            await self._succeed(client, error)
            if value not in [each async for each in self._values(client)]:
                await self.writer.append(value)
        self.sent.append(value)

    async def rotate(self, client: aio.Client) -> None:
        try:
            await self.writer.rotate()
        except DlogError as error:
            await self._succeed(client, error)

    async def _succeed(self, client: aio.Client, error: DlogError) -> None:
        assert error.handle is Handle.DEAD, f"{self.name}: it may go on, and does not: {error!r}"
        with pytest.raises(DlogError) as again:
            await self.writer.append(b"nobody writes this")
        assert again.value.handle is Handle.DEAD, again.value
        print(f"{self.name}: {type(error).__name__}: {error}")
        self.deaths += 1
        self.writer = await client.open_writer(self.name)

    async def _values(self, client: aio.Client) -> AsyncIterator[bytes | None]:
        async with client.open_reader(self.name) as reader:
            async for message in reader:
                yield message.value

    def why_not(self) -> str:
        """What keeps its handles from being as good as new, or nothing."""
        if self.seen != self.sent:
            return f"{self.name}: the follower has {len(self.seen)} of {len(self.sent)}"
        if not self.standby.ready:
            return f"{self.name}: the standby is not ready: {self.standby.why()}"
        if (reason := self.writer.why()) is not None:
            return f"{self.name}: the writer waits: {reason}"
        return ""

    async def hand_over(self, client: aio.Client) -> None:
        old = self.writer
        async with await self.standby.take_over() as won:
            await won.append(b"mine")
            with pytest.raises(Fenced):
                await old.append(b"too late")
        await self.standby.close()
        assert [each async for each in self._values(client)] == [*self.sent, b"mine"]


async def each(logs: list[Log], work: Callable[[Log], Awaitable[None]]) -> None:
    async with patience():
        await asyncio.gather(*map(work, logs))


def stuck(logs: list[Log]) -> list[str]:
    return [why for log in logs if (why := log.why_not())]


async def as_good_as_new(logs: list[Log], behind: str) -> None:
    try:
        await come_true(lambda: not stuck(logs), behind)
    except AssertionError:
        raise AssertionError(f"behind {behind}: {stuck(logs)}") from None


async def live_through(
    trouble: Round, cluster: Cluster, chance: random.Random, client: aio.Client, logs: list[Log]
) -> float:
    """Seconds from the last server that came back until each handle was as good as new."""
    sending: list[asyncio.Task[None]] = []
    async with trouble.strikes(cluster, chance):
        sending += [asyncio.create_task(log.send(client)) for log in logs]
        await asyncio.wait(sending, timeout=TROUBLE_S)
        waiting = [log.name for log, task in zip(logs, sending, strict=True) if not task.done()]
        silent = [log.name for log in logs if log.name in waiting and log.writer.why() is None]
        assert not silent, f"{trouble.name}: these wait, and give no reason: {silent}"
    began_s = time.monotonic()
    async with patience():
        await asyncio.gather(*sending)
    acked_s = time.monotonic() - began_s
    await each(logs, lambda log: log.rotate(client))
    rotated_s = time.monotonic() - began_s
    await each(logs, lambda log: log.send(client))
    await as_good_as_new(logs, trouble.name)
    took_s = time.monotonic() - began_s
    print(
        f"{trouble.name}: {len(waiting)} writers waited; all servers back, all was acknowledged "
        f"after {acked_s:.1f} s, rotated after {rotated_s:.1f} s, as good as new {took_s:.1f} s"
    )
    return took_s


@pytest.mark.parametrize("rounds", in_full([20, 2], but=[2], seconds=400))
async def test_many_handles_of_one_process_outlive_their_servers(
    own_cluster: OwnCluster, rounds: int
) -> None:
    count = LOGS_OF[rounds]
    cluster, chance = own_cluster(bookies=BOOKIES), random.Random(SEED)
    await all_registered(cluster)
    async with aio.connect(f"{cluster.url}&meta_timeout_ms=2000") as client:
        logs = [Log(f"many-{count}-{number}") for number in range(count)]
        await each(logs, lambda log: log.open(client))
        followers = [asyncio.create_task(log.follow(client)) for log in logs]
        try:
            await each(logs, lambda log: log.send(client))
            took: list[float] = []
            for number in range(rounds):
                trouble = ROUNDS[number % len(ROUNDS)]
                took.append(await live_through(trouble, cluster, chance, client, logs))
                ended = [task for task in followers if task.done()]
                assert not ended, f"{trouble.name}: followers that ended: {ended}"
            await each(logs, lambda log: log.hand_over(client))
        finally:
            for task in followers:
                task.cancel()
            await asyncio.gather(*followers, return_exceptions=True)
    deaths = sum(log.deaths for log in logs)
    print(f"{count} logs, {rounds} rounds: {deaths} writers said that they are dead")
    print(f"until all went on: {sorted(took)[len(took) // 2]:.1f} s, at most {max(took):.1f} s")
