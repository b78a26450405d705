"""Networks that fail between a client and one healthy bookie: answers that come late, twice, never
or in crumbs, connections that are accepted and reset. The bookie stands first, in the middle and
last; entries are added, read and recovered meanwhile, and then all is audited by clients with a
network that works."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest

from dlog.errors import Fenced
from dlog.ledger.bookkeeper.core.append_effects import AppendOptions
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.faulty_proxy import FaultyProxy
from integration.bookkeeper.fault_tools import (
    SPEC,
    Pinned,
    Stores,
    come_true,
    lead_through,
    patience,
    places_of,
    stores_of,
)
from integration.bookkeeper.watched_ledgers import Following, Written, audit, read_whole
from tests.tiers import in_full

ADD_TIMEOUT_MS = 1_000.0
BEFORE, DURING = 50, 50  # entries that each ledger confirms before and while the network fails


def late(proxy: FaultyProxy) -> None:
    """Later than a laggard, sooner than the end of patience."""
    proxy.to_client.delay_s = 0.7


def too_late(proxy: FaultyProxy) -> None:
    proxy.to_client.delay_s = 1.5 * ADD_TIMEOUT_MS / 1000


def never_answers(proxy: FaultyProxy) -> None:
    proxy.to_client.hold()


def never_hears(proxy: FaultyProxy) -> None:
    proxy.to_server.hold()


def resets(proxy: FaultyProxy) -> None:
    """Each connection, as soon as it was accepted."""
    proxy.refuse()


def crumbles(proxy: FaultyProxy) -> None:
    proxy.to_client.slice_bytes, proxy.to_server.slice_bytes = 5, 61


Harm = Callable[[FaultyProxy], None]
REPLACED = (too_late, never_answers, never_hears, resets)


@pytest.fixture
async def stores(cluster: Cluster) -> AsyncIterator[Stores]:
    async with stores_of(cluster) as made:
        yield made


@pytest.fixture
def victim(cluster: Cluster) -> Bookie:
    return cluster.bookies[1]


@pytest.fixture
async def proxy(victim: Bookie) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(victim.port) as between:
        yield between


def led_through(
    stores: Stores, victim: Bookie, proxy: FaultyProxy, ensembles: int = 1
) -> BookKeeperLedgerStore:
    names = places_of(stores.cluster, victim) * ensembles
    options = AppendOptions(add_timeout_ms=ADD_TIMEOUT_MS)
    store = stores.make(placement=Pinned(*names), append=options)
    lead_through(store, victim, proxy)
    return store


async def going(store: BookKeeperLedgerStore) -> list[Written]:
    ledgers = []
    for _ in range(3):
        written = Written(await store.create(SPEC))
        await written.be_born()
        written.go()
        ledgers.append(written)
    await confirm(ledgers, BEFORE)
    return ledgers


async def confirm(ledgers: list[Written], more: int) -> None:
    await asyncio.gather(*(each.until_confirmed(each.confirmed + more) for each in ledgers))


def is_replaced(bookie: Bookie, written: Written) -> bool:
    return bookie.bookie_id not in written.appender.core.places.ensemble


@pytest.mark.parametrize(
    "harm",
    in_full([late, crumbles, *REPLACED], but=[late, never_answers, resets], seconds=12),
    ids=lambda harm: harm.__name__,
)
async def test_one_bookie_behind_a_bad_network(
    stores: Stores, victim: Bookie, proxy: FaultyProxy, harm: Harm
) -> None:
    store = led_through(stores, victim, proxy, 3)
    ledgers, closed, doomed = await going(store), await going(store), await going(store)
    for each in closed:
        await each.close()
    tails = [Following(each, await store.open(each.ledger_id)) for each in ledgers]
    following = [asyncio.create_task(tail.run()) for tail in tails]
    recovering = stores.make()
    lead_through(recovering, victim, proxy)
    await recovering._ready()

    harm(proxy)
    await confirm(ledgers, DURING)
    async with patience():
        newer = led_through(stores, victim, proxy)
        written = Written(await newer.create(SPEC))
        await written.be_born()
        for each in closed:
            await read_whole(newer, each, each.confirmed)
        ends = await asyncio.gather(*(recovering.recover(each.ledger_id) for each in doomed))
        for each, end in zip(doomed, ends, strict=True):
            each.note_closed(end, "a recovery over a bad network")
            assert isinstance(await each.until_failed(), Fenced)
    await asyncio.gather(*(tail.until_known(tail.known + DURING) for tail in tails))
    if harm in REPLACED:
        for each in [*ledgers, written]:
            await come_true(partial(is_replaced, victim, each), "it is replaced")
    print(f"{harm.__name__}: longest waits {[round(e.longest_gap_s * 1e3) for e in ledgers]} ms")

    proxy.heal()  # what was held comes now, to nobody who waits for it
    await confirm(ledgers, DURING)
    assert not any(task.done() for task in following)
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    for each in [*ledgers, written]:
        each.stop()
    await ledgers[0].close()
    await audit(stores, [*ledgers, *closed, *doomed, written])


async def test_every_answer_twice(stores: Stores, victim: Bookie, proxy: FaultyProxy) -> None:
    """From the first byte on. Nothing counts twice, and nobody is replaced for it."""
    proxy.to_client.doubles_frames = True
    store = led_through(stores, victim, proxy, 2)
    ledgers, doomed = await going(store), await going(store)
    tails = [Following(each, await store.open(each.ledger_id)) for each in ledgers]
    following = [asyncio.create_task(tail.run()) for tail in tails]
    await confirm(ledgers, DURING)
    await asyncio.gather(*(tail.until_known(tail.known + DURING) for tail in tails))
    for each in doomed:
        each.stop()
        each.note_closed(await store.recover(each.ledger_id), "a recovery that hears all twice")
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    for each in ledgers:
        assert not is_replaced(victim, each)
        await each.close()
        await read_whole(store, each, each.confirmed)
    strays: Counter[str] = Counter()
    for link in store._links._open:
        strays += link.strays
    print(dict(strays))
    assert strays, "that the proxy did it is known by this"
    await audit(stores, [*ledgers, *doomed])


async def test_connections_that_flap(stores: Stores, victim: Bookie, proxy: FaultyProxy) -> None:
    """Cut again and again, as soon as the bookie is reached and takes entries. There is no other
    for its place, so it is reached again, and attempts stay few."""
    store = stores.make(placement=Pinned(*places_of(stores.cluster, victim), replaces=False))
    lead_through(store, victim, proxy)
    ledgers = await going(store)

    def is_back() -> bool:
        slots = [slot for each in ledgers for slot in each.appender.core.slots]
        return all(slot.counts and slot.acked_to >= 0 for slot in slots)

    rounds = 8
    for _ in range(rounds):
        await come_true(is_back, "the bookie takes entries")
        proxy.cut()
        await confirm(ledgers, 10)
    await come_true(is_back, "the bookie takes entries")
    kinds = 2  # of links: of data, and of control
    assert rounds + 1 <= proxy.connections_made <= 3 * kinds * (rounds + 1)
    print(f"{proxy.connections_made} connections in {rounds} rounds")
    for each in ledgers:
        each.stop()
    await audit(stores, ledgers)
