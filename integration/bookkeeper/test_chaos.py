"""Everything at once, at random: ledgers are written, followed, re-read, closed and taken over,
while bookies are killed, frozen, restarted, read-only and full, networks are cut and deaf, and
ZooKeeper stands still now and then. At the end all is healed and every ledger is audited.

DLOG_CHAOS_SECONDS=600 python -m pytest integration/bookkeeper/test_chaos.py -s      longer
DLOG_CHAOS_SEED=abc …              the same draws again (servers take their own time, though)

No bookie is wiped here, and no more than one gets a full disk, which costs it entries, too. One
that lost what it had and one that never got an entry are two that deny it, and two of three end a
ledger: that is more loss than three copies are made for.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from dlog.chance import SYSTEM_CHANCE
from dlog.errors import DlogError, Retry, Timeout, Unavailable
from dlog.ledger.bookkeeper.core.append_effects import AppendOptions
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import ClosedLedger
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.faulty_proxy import FaultyProxy
from integration.bookkeeper.fault_tools import (
    FAULTS,
    SPEC,
    Fault,
    Full,
    Killed,
    Stores,
    all_well,
    lead_through,
    stores_of,
)
from integration.bookkeeper.watched_ledgers import Following, Written, audit, read_whole
from integration.conftest import OwnCluster

SECONDS = float(os.environ.get("DLOG_CHAOS_SECONDS", "5"))
SEED = os.environ.get("DLOG_CHAOS_SEED") or SYSTEM_CHANCE.token()[:8]
BOOKIES = 5
LANES = 4
STORES = 3
BROKEN_MAX = 2  # so that three are left, which a new ledger needs
DISK_BYTES = 512 << 20
STALL_MS = 15_000.0

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(SECONDS * 3 + 300)]

T = TypeVar("T")
Told = Counter[str]


async def insist(call: Callable[[], Awaitable[T]], told: Told, what: str) -> T:
    """Until it succeeds. Only what a fault can cause, and says so, is tried again."""
    while True:
        try:
            return await call()
        except (Unavailable, Timeout) as error:
            if error.retry is Retry.NEVER:
                raise
            told[f"{what} failed"] += 1
            await asyncio.sleep(0.05)


class Lane:
    """One ledger after the other: written on one store, followed on others, ended in some way."""

    def __init__(self, stores: list[BookKeeperLedgerStore], chance: random.Random) -> None:
        self.ledgers: list[Written] = []
        self.told: Told = Counter()
        self._stores = stores
        self._chance = chance
        self._is_over = False

    def end(self) -> None:
        """When the ledger at work has ended."""
        self._is_over = True

    async def run(self) -> None:
        while not self._is_over:
            await self._one_ledger()

    async def _one_ledger(self) -> None:
        chance = self._chance
        store = chance.choice(self._stores)
        written = Written(await insist(lambda: store.create(SPEC), self.told, "create"))
        self.ledgers.append(written)
        readers = [asyncio.create_task(self._follow(written)) for _ in range(2)]
        try:
            await self._write(written)
            await self._finish(written)
            for task in readers:
                if task.done():
                    task.result()  # at the end of a closed ledger, or with what no fault excuses
        finally:
            for task in readers:
                task.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _write(self, written: Written) -> None:
        chance = self._chance
        try:
            if chance.random() < 0.7:
                await written.be_born()
            written.go()
            async with asyncio.timeout(chance.uniform(1.0, 8.0)):
                await written.until_failed()
        except TimeoutError as error:
            if isinstance(error, DlogError):
                raise
        except Unavailable:  # it could not be born
            self.told["birth failed"] += 1

    async def _finish(self, written: Written) -> None:
        chance = self._chance
        if written.failed is not None:
            # Nobody took it over yet, so to be fenced would be a lie.
            assert isinstance(written.failed, Unavailable), written.failed
            self.told["appender gave up"] += 1
        match chance.randrange(4):
            case 0:
                await self._close(written)
            case 1:
                self.told["left open"] += 1
                written.stop()
                if chance.random() < 0.5:
                    written.appender.abandon()
                return
            case _:
                await self._take_over(written)
        if chance.random() < 0.5:
            await self._read_again(written)

    async def _close(self, written: Written) -> None:
        try:
            await written.close()
            self.told["closed"] += 1
        except (Unavailable, Timeout):
            self.told["close failed"] += 1
            await self._take_over(written)

    async def _take_over(self, written: Written) -> None:
        """By some at once, each of a store of its own; one may be stopped half-way."""
        chance = self._chance
        by = chance.sample(self._stores, chance.randint(1, len(self._stores)))
        tasks = [asyncio.create_task(store.recover(written.ledger_id)) for store in by]
        if len(tasks) > 1 and chance.random() < 0.5:
            await asyncio.sleep(chance.uniform(0.0, 0.02))
            tasks[0].cancel()
        for end in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(end, ClosedLedger):
                self.told["recovered"] += 1
                written.note_closed(end, "a recovery")
            elif isinstance(end, (Unavailable, Timeout, asyncio.CancelledError)):
                self.told[f"recovery: {type(end).__name__}"] += 1
            else:
                raise end
        written.stop()

    async def _follow(self, written: Written) -> None:
        store = self._chance.choice(self._stores)
        reader = await insist(lambda: store.open(written.ledger_id), self.told, "open")
        tail = Following(written, reader)
        while not tail.is_over:
            await insist(tail.go_on, self.told, "read")

    async def _read_again(self, written: Written) -> None:
        store = self._chance.choice(self._stores)
        try:
            closed = (await store.info(written.ledger_id)).closed
            if closed is not None:
                written.note_closed(closed, "metadata")
                await read_whole(store, written, closed.last_entry)
                self.told["read again"] += 1
        except (Unavailable, Timeout):
            self.told["read again failed"] += 1


class Nemesis:
    """Breaks and heals, on a random walk."""

    def __init__(
        self, cluster: Cluster, proxies: list[FaultyProxy], chance: random.Random, *, can_fill: bool
    ) -> None:
        self.told: Told = Counter()
        self._cluster = cluster
        self._proxies = proxies
        self._chance = chance
        self._faults = [each for each in FAULTS if not each.loses_entries]
        self._can_fill = chance.choice(cluster.bookies) if can_fill else None
        self._broken: list[tuple[Fault, Bookie]] = []
        self._busy: dict[Bookie, asyncio.Task[None]] = {}  # being broken or healed

    def lost(self) -> set[str]:
        """The bookies that may have lost entries."""
        return set() if self._can_fill is None else {self._can_fill.bookie_id}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0.1, 1.2))
            await self._step()

    async def heal(self) -> None:
        self._cluster.zookeeper.thaw()
        for proxy in self._proxies:
            proxy.heal()
        await asyncio.gather(*self._busy.values())
        while self._broken:
            self._heal_one()
        await asyncio.gather(*self._busy.values())

    async def _step(self) -> None:
        match self._chance.randrange(12):
            case 0 | 1 | 2 | 3:
                self._break_one()
            case 4 | 5 | 6:
                self._heal_one()
            case 7 | 8 | 9:
                await self._harm_a_network()
            case 10:
                await self._stop_zookeeper()
            case 11 if self._chance.random() < 0.3:
                self._kill_all()

    def _well(self) -> list[Bookie]:
        ill = {bookie.bookie_id for _, bookie in self._broken}
        ill |= {bookie.bookie_id for bookie in self._busy}
        return [each for each in self._cluster.bookies if each.bookie_id not in ill]

    def _break_one(self) -> None:
        well = self._well()
        if len(well) <= len(self._cluster.bookies) - BROKEN_MAX:
            return
        fault, bookie = self._chance.choice(self._faults), self._chance.choice(well)
        if bookie is self._can_fill and self._chance.random() < 0.5:
            fault = Full()
        self.told[fault.name] += 1
        self._broken.append((fault, bookie))
        self._do(bookie, fault.strike(bookie))

    def _heal_one(self) -> None:
        ready = [each for each in self._broken if each[1] not in self._busy]
        if ready:
            fault, bookie = chosen = self._chance.choice(ready)
            self._broken.remove(chosen)
            self._do(bookie, fault.heal(bookie))

    def _kill_all(self) -> None:
        """All that were well: a power failure. They come back at once."""
        self.told["all killed"] += 1
        for bookie in self._well():
            bookie.kill()
            self._do(bookie, Killed().heal(bookie))

    def _do(self, bookie: Bookie, work: Awaitable[None]) -> None:
        async def to_its_end() -> None:
            try:
                await work
            finally:
                del self._busy[bookie]

        self._busy[bookie] = asyncio.create_task(to_its_end())

    async def _harm_a_network(self) -> None:
        proxy = self._chance.choice(self._proxies)
        harm = self._chance.choice(("cut", "refuse", "deaf", "dumb", "late", "crumbs"))
        self.told[f"network: {harm}"] += 1
        match harm:
            case "cut":
                proxy.cut()
            case "refuse":
                proxy.refuse()
            case "deaf":
                proxy.to_server.hold()
            case "dumb":
                proxy.to_client.hold()
            case "late":
                proxy.to_client.delay_s = self._chance.uniform(0.01, 1.0)
            case "crumbs":
                proxy.to_client.slice_bytes = proxy.to_server.slice_bytes = 37
        asyncio.get_running_loop().call_later(self._chance.uniform(0.2, 4.0), proxy.heal)

    async def _stop_zookeeper(self) -> None:
        self.told["ZooKeeper frozen"] += 1
        self._cluster.zookeeper.freeze()
        await asyncio.sleep(self._chance.uniform(0.2, 3.0))
        self._cluster.zookeeper.thaw()


async def play(cluster: Cluster, stores: Stores, proxies: list[FaultyProxy], fills: bool) -> None:
    chance = random.Random(SEED)
    made = [stores.make(append=AppendOptions(stall_ms=STALL_MS)) for _ in range(STORES)]
    for store, proxy, bookie in zip(made, proxies, cluster.bookies, strict=False):
        lead_through(store, bookie, proxy)
    lanes = [Lane(made, random.Random(f"{SEED}/{number}")) for number in range(LANES)]
    nemesis = Nemesis(cluster, proxies, chance, can_fill=fills)
    at_work = [asyncio.create_task(lane.run()) for lane in lanes]
    harming = asyncio.create_task(nemesis.run())
    try:
        done, _ = await asyncio.wait(
            [*at_work, harming], timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        for task in done:
            task.result()  # only a failure ends one of them
        harming.cancel()
        await asyncio.gather(harming, return_exceptions=True)
        await nemesis.heal()
        await all_well(stores)
        healed_s = time.monotonic()
        for lane in lanes:
            lane.end()
        async with asyncio.timeout(120):
            await asyncio.gather(*at_work)
    finally:
        for task in (harming, *at_work):
            task.cancel()
        await asyncio.gather(harming, *at_work, return_exceptions=True)
        for lane in lanes:
            for written in lane.ledgers:
                written.stop()
    ledgers = [written for lane in lanes for written in lane.ledgers]
    await check_alive(made, ledgers)
    print(f"{time.monotonic() - healed_s:.1f} s until all came to an end")
    for written in ledgers:
        written.stop()
    await audit(stores, ledgers, lost=nemesis.lost())
    told: Told = sum((lane.told for lane in lanes), Counter())
    entries = sum(written.confirmed + 1 for written in ledgers)
    changed = sum(len(w.appender.core.places.metadata.fragments) > 1 for w in ledgers)
    print(f"{len(ledgers)} ledgers, {entries} entries confirmed, {changed} changed bookies")
    print(f"longest wait {max(written.longest_gap_s for written in ledgers):.1f} s")
    print(dict(sorted(nemesis.told.items())))
    print(dict(sorted(told.items())))
    assert nemesis.told.total() > SECONDS / 10, "no harm was done: that proves nothing"
    assert entries > SECONDS * 10


async def check_alive(stores: list[BookKeeperLedgerStore], ledgers: list[Written]) -> None:
    """All faults are over: whoever has not failed goes on, and new ledgers are made and filled."""
    for store in stores:
        written = Written(await store.create(SPEC))
        await written.be_born()
        written.go()
        ledgers.append(written)
    for written in ledgers[-len(stores) :]:
        await written.until_confirmed(50)
        await written.close()


async def test_everything_at_once(own_cluster: OwnCluster) -> None:
    print(f"to repeat: DLOG_CHAOS_SEED={SEED}")
    try:
        cluster, fills = own_cluster(bookies=BOOKIES, disk_bytes=DISK_BYTES), True
    except Unavailable:
        cluster, fills = own_cluster(bookies=BOOKIES), False
    try:
        async with stores_of(cluster) as stores:
            await all_well(stores)
            proxies = [FaultyProxy(bookie.port) for bookie in cluster.bookies[:STORES]]
            for proxy in proxies:
                await proxy.__aenter__()
            try:
                await play(cluster, stores, proxies, fills)
            finally:
                for proxy in proxies:
                    await proxy.__aexit__(None, None, None)
    except BaseException as error:
        error.add_note(f"to repeat: DLOG_CHAOS_SEED={SEED}")
        raise
