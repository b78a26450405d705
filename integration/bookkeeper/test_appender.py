"""The appender under load on real bookies: how long appends stand still when a bookie is killed or
frozen, what a new bookie is given, and what bookies that refuse most of it are left with."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from dlog.errors import DlogError
from dlog.ledger.bookkeeper.appender import BookKeeperAppender
from dlog.ledger.bookkeeper.core.append_effects import AppendOptions
from dlog.ledger.bookkeeper.links import DataLink
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import LedgerSpec
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.conformance import meta_tools
from dlog.testing.conformance.ledger_tools import Heard, read_all
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest
from dlog.wire.bookie_v3 import pack_read_lac
from dlog.wire.bookie_v3_replies import ReadLacBody
from integration.conftest import OwnCluster

SPEC = LedgerSpec()
PASSWORD = b"of the appender's tests"
WINDOW = 1_000
PENDING_MAX = 20  # adds that a bookie of the storm lets wait; the default is 10,000


class Load(Heard):
    """Keeps a window full and measures how long nothing is confirmed."""

    def __init__(self, appender: BookKeeperAppender, entry_bytes: int = 1_024) -> None:
        super().__init__()
        self.appender = appender
        self.sent: list[bytes] = []
        self.longest_gap_s = 0.0
        self._entry_bytes = entry_bytes
        self._heard_at_s = time.monotonic()
        self._is_going = True
        appender.listen(self)

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        now_s = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now_s - self._heard_at_s)
        self._heard_at_s = now_s
        super().on_confirmed(ledger_id, last_entry)
        self.fill()

    def fill(self) -> None:
        while self._is_going and len(self.sent) - 1 - self.confirmed < WINDOW:
            number = len(self.sent)
            entry = number.to_bytes(8, "big") * (self._entry_bytes // 8)
            assert self.appender.submit([entry]) == number
            self.sent.append(entry)

    async def more(self, count: int) -> None:
        await self.until_confirmed(self.confirmed + count)

    async def drained(self) -> None:
        self._is_going = False
        await self.until_confirmed(len(self.sent) - 1)

    def measured(self) -> float:
        """Since it was asked last."""
        gap_s = max(self.longest_gap_s, time.monotonic() - self._heard_at_s)
        self.longest_gap_s = 0.0
        return gap_s


@asynccontextmanager
async def store_on(
    cluster: Cluster, append: AppendOptions | None = None
) -> AsyncIterator[BookKeeperLedgerStore]:
    meta = ZooKeeperMetaStore(cluster.zookeeper.hosts)
    store = BookKeeperLedgerStore(
        meta, ledgers_root=cluster.ledgers_root, password=PASSWORD, append=append
    )
    try:
        yield store
    finally:
        await store.close()
        await meta.close()


async def until(fact: Callable[[], object]) -> None:
    async def asked() -> bool:
        return bool(fact())

    await meta_tools.until(asked, "what a test waits for")


async def serving(cluster: Cluster) -> None:
    for bookie in cluster.bookies:
        await asyncio.to_thread(bookie.wait_until_serving)


def kill(bookie: Bookie) -> None:
    bookie.kill()


def freeze(bookie: Bookie) -> None:
    bookie.freeze()


@pytest.mark.parametrize("strike", [kill, freeze])
async def test_a_bookie_is_lost_under_load(
    own_cluster: OwnCluster, strike: Callable[[Bookie], None]
) -> None:
    cluster = own_cluster()
    await serving(cluster)
    async with store_on(cluster) as store:
        appender = await store.create(SPEC)
        load = Load(appender)
        load.fill()
        await load.more(2_000)
        appender.publish()
        before_s = load.measured()
        victim = cluster.bookie(appender.core.places.ensemble[1])
        strike(victim)
        try:
            await until(lambda: victim.bookie_id not in appender.core.places.ensemble)
            await load.more(2_000)
            gap_s = load.measured()
            await load.drained()
            appender.publish()
            await load.until(lambda: load.published == len(load.sent) - 1)
            print(
                f"{strike.__name__}: still for {gap_s * 1000:.0f} ms, {before_s * 1000:.0f} before"
            )
            await check_new_bookie(store, appender, load)
            closed = await appender.close()
            assert closed.last_entry == len(load.sent) - 1
            assert closed.bytes == sum(map(len, load.sent))
            reader = await store.open(appender.ledger_id)
            assert await read_all(reader, closed.last_entry) == load.sent
        finally:
            victim.thaw() if strike is freeze else victim.start()
            await serving(cluster)


async def check_new_bookie(
    store: BookKeeperLedgerStore, appender: BookKeeperAppender, load: Load
) -> None:
    """It holds its fragment from the first entry on, as the others do, and shows the LAC."""
    core = appender.core
    fragment = core.places.metadata.fragments[-1]
    digest = EntryDigest(DigestType.CRC32C, PASSWORD)
    ledger_id, bookie_id = appender.ledger_id, fragment.ensemble[1]
    link = await store._links.data(bookie_id)
    for entry_id in (fragment.first_entry_id, len(load.sent) - 1):
        await until(lambda: core.slots[1].acked_to >= len(load.sent) - 1)
        reply = await link.read(ledger_id, entry_id, timeout_ms=5_000)
        assert reply.answer is Answer.OK
        assert reply.entry is not None
        entry = digest.verify(reply.entry, ledger_id=ledger_id, entry_id=entry_id)
        assert entry.payload == load.sent[entry_id]
        assert entry.last_confirmed < entry_id
    if fragment.first_entry_id > 0:
        reply = await link.read(ledger_id, fragment.first_entry_id - 1, timeout_ms=5_000)
        assert reply.answer is Answer.NO_ENTRY
    control = await store._links.control(bookie_id)
    response = await control.ask(lambda txn_id: pack_read_lac(txn_id, ledger_id), timeout_ms=5_000)
    assert isinstance(response.body, ReadLacBody)
    assert response.body.proof is not None
    assert digest.verify_lac(response.body.proof, ledger_id=ledger_id) == len(load.sent) - 1


async def test_bookies_that_refuse_most_of_it(own_cluster: OwnCluster) -> None:
    """Pressure, not failure: refused entries are sent again, in order, and nobody is replaced."""
    cluster = own_cluster(settings={"maxPendingAddRequestsPerThread": str(PENDING_MAX)})
    await serving(cluster)
    async with store_on(cluster) as store:
        appender = await store.create(SPEC)
        said: Counter[Answer] = Counter()
        kept_max = 0
        real = appender.core.on_adds

        def on_adds(link: DataLink, answer: Answer, entry_ids: list[int]) -> tuple[int, int]:
            nonlocal kept_max
            said[answer] += len(entry_ids)
            kept_max = max(kept_max, appender.core.outbox.end - appender.core.outbox.first)
            return real(link, answer, entry_ids)

        appender.core.on_adds = on_adds  # type: ignore[method-assign]
        load = Load(appender)
        load.fill()
        began_s = time.monotonic()
        await load.more(2_000)
        await load.drained()
        took_s = time.monotonic() - began_s
        print(f"{len(load.sent)} entries in {took_s:.1f} s, {said[Answer.BUSY]} times refused")
        assert said[Answer.BUSY] > 100, "the storm did not bite"
        assert len(appender.core.places.metadata.fragments) == 1
        assert kept_max <= 4 * WINDOW
        closed = await appender.close()
        reader = await store.open(appender.ledger_id)
        assert await read_all(reader, closed.last_entry) == load.sent
        await until(lambda: appender not in store._appenders)  # it has delivered everything
        await check_each_bookie(store, appender, len(load.sent))


async def check_each_bookie(
    store: BookKeeperLedgerStore, appender: BookKeeperAppender, count: int
) -> None:
    """No hole on any of them, whatever it had refused."""
    for bookie_id in appender.core.places.ensemble:
        link = await store._links.data(bookie_id)
        entry_id = 0
        while entry_id < count:
            reply = await link.batch_read(
                appender.ledger_id,
                entry_id,
                count_max=500,
                frame_bytes_max=1 << 20,
                timeout_ms=5_000,
            )
            assert reply.answer is Answer.OK, f"{bookie_id} has no entry {entry_id}"
            entry_id += len(reply.entries)


async def test_an_appender_that_sleeps_through_a_recovery(own_cluster: OwnCluster) -> None:
    """Its bookies are killed and come back, and may have forgotten that it was fenced."""
    cluster = own_cluster()
    await serving(cluster)
    async with store_on(cluster) as store, store_on(cluster) as other:
        asleep = await store.create(SPEC)
        heard = Heard()
        asleep.listen(heard)
        await until(lambda: all(slot.counts for slot in asleep.core.slots))
        ended = await other.recover(asleep.ledger_id)
        assert ended.last_entry == -1
        members = [cluster.bookie(name) for name in asleep.core.places.ensemble]
        for bookie in members:
            bookie.kill()
        for bookie in members:
            bookie.start()
        await serving(cluster)
        asleep.submit([b"late"])
        await heard.until_failed()
        assert isinstance(heard.failed, DlogError)
        assert (heard.confirmed, heard.published) == (-1, -1)
        assert (await other.info(asleep.ledger_id)).closed == ended
