"""Fenced bookies that are killed and started again, and what a writer that knows nothing of it is
told. A bookie that holds no entry of a ledger forgets its fence when it is killed; one that holds
an entry from before the fence does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dlog.errors import Fenced
from dlog.ledger.bookkeeper.core.slots import Slot, State
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.testing.cluster import Bookie, Cluster
from integration.bookkeeper.fault_tools import (
    SPEC,
    Pinned,
    Stores,
    all_well,
    come_true,
    places_of,
    stores_of,
)
from integration.bookkeeper.watched_ledgers import Written

LEDGERS = 5  # in each round: one restart serves them all
LATE_ADDS = 10


@dataclass(slots=True)
class FenceCounts:
    """`kills` counts fenced bookies of a ledger that were killed; `forgot`, those of them that took
    an entry afterwards; `zombie_acks`, the entries behind its end that a writer took for
    confirmed."""

    kills: int = 0
    forgot: int = 0
    zombie_acks: int = 0


class HeldLooks:
    """From now on the looks of a store's appenders at metadata wait until they are released."""

    def __init__(self, store: BookKeeperLedgerStore) -> None:
        self._go = asyncio.Event()
        self._read = store._nodes.read_fresh
        store._nodes.read_fresh = self._held  # type: ignore[method-assign]

    def release(self) -> None:
        self._go.set()

    async def _held(self, ledger_id: int) -> StoredLedger:
        await self._go.wait()
        return await self._read(ledger_id)


@contextmanager
def no_reconnect_check() -> Iterator[None]:
    """As if every connection were proven: bookies alone keep zombies out."""
    proven = Slot.counts
    Slot.counts = property(lambda slot: slot.state is State.LIVE)  # type: ignore[assignment]
    try:
        yield
    finally:
        Slot.counts = proven  # type: ignore[method-assign]


async def at_work(store: BookKeeperLedgerStore, *, born: bool) -> Written:
    """A new ledger whose appender is connected and has looked."""
    written = Written(await store.create(SPEC))
    if born:
        await written.be_born()
    await come_true(lambda: all(slot.counts for slot in slots_of(written)), "all are proven")
    return written


def slots_of(written: Written) -> Sequence[Slot]:
    return written.appender.core.slots


def took(written: Written, entry_id: int) -> int:
    """How many bookies have acknowledged the entry to the appender, whether that counts or not."""
    return sum(slot.acked_to >= entry_id for slot in slots_of(written))


async def killed_and_back(stores: Stores, bookies: Sequence[Bookie]) -> None:
    for bookie in bookies:
        bookie.kill()
    for bookie in bookies:
        bookie.start_writable()
    await all_well(stores)


async def fence_crash_rounds(
    cluster: Cluster, rounds: int, *, born: bool, ledgers: int = LEDGERS
) -> FenceCounts:
    """Each round: ledgers are made, fenced and closed by another store, all their bookies killed
    (-9) and started again; then their writers add. Without a `born` entry only the reconnect check
    stops them; with one the check is off, and bookies must."""
    counts = FenceCounts()
    for _ in range(rounds):
        async with stores_of(cluster) as stores:
            if born:
                with no_reconnect_check():
                    await _round(stores, counts, born=True, ledgers=ledgers)
            else:
                await _round(stores, counts, born=False, ledgers=ledgers)
    return counts


async def _round(stores: Stores, counts: FenceCounts, *, born: bool, ledgers: int) -> None:
    members = stores.cluster.bookies[:3]
    names = places_of(stores.cluster, *members)
    store = stores.make(placement=Pinned(*(names[n % 3] for n in range(ledgers)), replaces=False))
    written = [await at_work(store, born=born) for _ in range(ledgers)]
    looks = HeldLooks(store)
    other = stores.make()
    ends = await asyncio.gather(*(other.recover(each.ledger_id) for each in written))
    assert {end.last_entry for end in ends} == {0 if born else -1}
    await killed_and_back(stores, members)
    counts.kills += len(members) * ledgers
    for each, end in zip(written, ends, strict=True):
        last = each.send(LATE_ADDS)
        if not born:  # no look comes back yet, and the bookies take what they are sent
            await come_true(lambda: took(each, last) == 3, "bookies took it")  # noqa: B023
        else:
            assert isinstance(await each.until_failed(), Fenced)
        counts.forgot += took(each, last)
        counts.zombie_acks += each.confirmed - end.last_entry
    looks.release()
    for each, end in zip(written, ends, strict=True):
        assert isinstance(await each.until_failed(), Fenced)
        counts.zombie_acks += each.confirmed - end.last_entry if not born else 0
