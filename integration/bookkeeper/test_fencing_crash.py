"""A fence holds over crashes of the bookies that were fenced, although bookies forget.

Two things keep a writer that slept out: it looks at metadata before a connection that was made
anew counts, and bookies that hold an entry from before the fence remember it. Each must do alone.
"""

from __future__ import annotations

import asyncio

import pytest

from dlog.errors import Fenced
from dlog.ledger.store import ClosedLedger
from dlog.testing.faulty_proxy import FaultyProxy
from integration.bookkeeper.fault_tools import (
    Pinned,
    all_well,
    come_true,
    lead_through,
    patience,
    stores_of,
)
from integration.bookkeeper.fence_crash import (
    LEDGERS,
    HeldLooks,
    at_work,
    fence_crash_rounds,
    killed_and_back,
    slots_of,
    took,
)
from integration.conftest import OwnCluster
from tests.tiers import in_full

ROUNDS = pytest.mark.parametrize("rounds", in_full([1, 5], but=[1], seconds=25))


@ROUNDS
async def test_the_reconnect_check_alone_keeps_zombies_out(
    own_cluster: OwnCluster, rounds: int
) -> None:
    """No bookie holds an entry: each forgets the fence, and takes what the writer sends."""
    counts = await fence_crash_rounds(own_cluster(), rounds, born=False)
    print(counts)
    assert counts.kills == counts.forgot == rounds * LEDGERS * 3
    assert counts.zombie_acks == 0


@ROUNDS
async def test_a_first_entry_on_all_bookies_alone_keeps_zombies_out(
    own_cluster: OwnCluster, rounds: int
) -> None:
    """With the reconnect check off: each bookie remembers the fence."""
    counts = await fence_crash_rounds(own_cluster(), rounds, born=True)
    print(counts)
    assert counts.kills == rounds * LEDGERS * 3
    assert counts.forgot == counts.zombie_acks == 0


async def test_one_bookie_that_forgot_and_one_that_was_never_fenced(
    own_cluster: OwnCluster,
) -> None:
    """Two of three fenced are enough to close a ledger. One of them forgets; with the third, whose
    connection never broke, it is a quorum."""
    cluster = own_cluster()
    forgets, frozen, unfenced, _ = cluster.bookies
    names = [each.bookie_id for each in (forgets, frozen, unfenced)]
    async with stores_of(cluster) as stores, FaultyProxy(unfenced.port) as proxy:
        await all_well(stores)
        store = stores.make(placement=Pinned(names, replaces=False))
        written = await at_work(store, born=False)
        looks = HeldLooks(store)
        other = stores.make()
        lead_through(other, unfenced, proxy)
        proxy.to_server.hold()
        async with patience():
            assert await other.recover(written.ledger_id) == ClosedLedger(-1, 0)
        await other.close()
        await killed_and_back(stores, [forgets])
        frozen.freeze()
        try:
            last = written.send(10)
            await come_true(lambda: took(written, last) == 2, "a quorum of bookies took it")
            assert written.confirmed == -1
            proven = {slot.bookie_id for slot in slots_of(written) if slot.counts}
            assert forgets.bookie_id not in proven
            assert unfenced.bookie_id in proven, "its connection never broke"
            looks.release()
            assert isinstance(await written.until_failed(), Fenced)
            assert written.confirmed == -1
        finally:
            frozen.thaw()
        await asyncio.to_thread(frozen.wait_until_serving)


@pytest.mark.parametrize("born", in_full([False, True], but=[False], seconds=8))
async def test_a_fence_over_a_polite_end(own_cluster: OwnCluster, born: bool) -> None:
    """SIGTERM: a bookie that holds an entry remembers. One that holds none, and has nothing else to
    write to its disk, skips its last flush: it may forget, and the reconnect check keeps us out."""
    cluster = own_cluster()
    members = cluster.bookies[:3]
    async with stores_of(cluster) as stores:
        names = [each.bookie_id for each in members]
        store = stores.make(placement=Pinned(names, replaces=False))
        written = await at_work(store, born=born)
        looks = HeldLooks(store)
        await stores.make().recover(written.ledger_id)
        await asyncio.gather(*(asyncio.to_thread(each.terminate) for each in members))
        for each in members:
            each.start_writable()
        await all_well(stores)
        last = written.send(10)
        if born:
            assert "fenced" in (await written.until_failed()).message
            assert took(written, last) == 0
        looks.release()
        assert isinstance(await written.until_failed(), Fenced)
        assert written.confirmed == (0 if born else -1)
