"""Every fault in every phase: a bookie is killed, frozen, restarted, made read-only, full or wiped
while entries are added, while the ensemble changes, while they are read, while ledgers are
recovered. Each test breaks one bookie (or a second one) of three ledgers in which it stands first,
in the middle and last; the phase is reached by a fact. Then all is healed, and audited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from dlog import trace
from dlog.errors import Unavailable
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.faulty_proxy import FaultyProxy
from integration.bookkeeper.fault_tools import (
    FAULTS,
    SPEC,
    Fault,
    Frozen,
    Full,
    Held,
    Killed,
    Pinned,
    Stores,
    Wiped,
    all_well,
    lead_through,
    patience,
    places_of,
    stores_of,
)
from integration.bookkeeper.watched_ledgers import Following, Written, audit
from integration.conftest import OwnCluster
from tests.tiers import in_full

DISK_BYTES = 512 << 20  # all tests of this module share it
BEFORE, DURING = 50, 50  # entries that each ledger confirms before and while a bookie is broken


def each_fault(*in_test: str, of: Sequence[Fault] = FAULTS) -> pytest.MarkDecorator:
    """Faults as a parameter. `make test` has each fault in one phase at least, `make full` in every
    one."""
    kept = [fault for fault in of if fault.name in in_test]
    assert len(kept) == len(in_test)
    return pytest.mark.parametrize(
        "fault", in_full(of, but=kept, seconds=15), ids=lambda fault: fault.name
    )


POINTS = ["recovery.fenced", "recovery.read", "recovery.written_back"]
SILENCES = [fault for fault in FAULTS if isinstance(fault, Frozen) or type(fault) is Killed]


@pytest.fixture(scope="module")
def can_fill(own_cluster: OwnCluster) -> bool:
    try:
        own_cluster(disk_bytes=DISK_BYTES)
    except Unavailable:
        own_cluster()
        return False
    return True


@pytest.fixture
async def stores(own_cluster: OwnCluster, can_fill: bool) -> AsyncIterator[Stores]:
    cluster = own_cluster(disk_bytes=DISK_BYTES) if can_fill else own_cluster()
    async with stores_of(cluster) as made:
        await all_well(made)
        yield made


class Struck:
    """Bookies that are broken by now; leaving it heals them all."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._broken: list[tuple[Fault, Bookie]] = []

    async def strike(self, fault: Fault, bookie: Bookie) -> None:
        self._broken.append((fault, bookie))
        await fault.strike(bookie)

    def strike_now(self, fault: Killed | Frozen, bookie: Bookie) -> None:
        """From inside a crash point."""
        self._broken.append((fault, bookie))
        bookie.freeze() if isinstance(fault, Frozen) else bookie.kill()

    async def heal(self) -> None:
        broken, self._broken = self._broken, []
        await asyncio.gather(*(fault.heal(bookie) for fault, bookie in broken))
        await all_well(self._stores)

    def lost(self) -> set[str]:
        return {bookie.bookie_id for fault, bookie in self._broken if fault.loses_entries}


@pytest.fixture
async def struck(stores: Stores) -> AsyncIterator[Struck]:
    made = Struck(stores)
    yield made
    await made.heal()  # of a test that failed; the next one finds all well


def skip_unless(fault: Fault, can_fill: bool) -> None:
    if isinstance(fault, Full) and not can_fill:
        pytest.skip("no small disk could be mounted: it takes root")


def cast(cluster: Cluster) -> tuple[Bookie, Bookie, Bookie, Bookie]:
    """The one to be struck, two beside it, and the spare one."""
    victim, one, other, spare = cluster.bookies
    return victim, one, other, spare


async def begun(store: BookKeeperLedgerStore, *, born: bool = True) -> Written:
    written = Written(await store.create(SPEC))
    if born:
        await written.be_born()
    return written


async def going(stores: Stores, victim: Bookie, *others: Bookie) -> list[Written]:
    """Three ledgers under load, each with the victim in another place."""
    store = stores.make(placement=Pinned(*places_of(stores.cluster, victim, *others)))
    ledgers = [await begun(store) for _ in range(3)]
    for each in ledgers:
        each.go()
    await confirm(ledgers, BEFORE)
    return ledgers


async def confirm(ledgers: Sequence[Written], more: int) -> None:
    await asyncio.gather(*(each.until_confirmed(each.confirmed + more) for each in ledgers))


def gaps(ledgers: Sequence[Written]) -> str:
    return ", ".join(f"{each.longest_gap_s * 1000:.0f}" for each in ledgers)


@each_fault("killed", "full")
async def test_adds_and_reads(stores: Stores, struck: Struck, can_fill: bool, fault: Fault) -> None:
    """Adds under load, and a ledger that is made on the broken bookie; reads of closed ledgers, and
    at the tails of those that are written. Nobody waits for the broken one."""
    skip_unless(fault, can_fill)
    victim, *_ = cast(stores.cluster)
    ledgers, closed = await going(stores, victim), await going(stores, victim)
    for each in closed:
        await each.close()
    newer = stores.make(placement=Pinned(*places_of(stores.cluster, victim)))
    reading = stores.make()
    readers = [Following(each, await reading.open(each.ledger_id)) for each in closed]
    tails = [Following(each, await reading.open(each.ledger_id)) for each in ledgers]
    following = [asyncio.create_task(tail.run()) for tail in tails]
    for reader in readers:  # the links are there, and each is at home with some bookie
        assert len(await reader.reader.read(0, 9, bytes_max=1)) >= 1
    await asyncio.gather(*(tail.until_known(BEFORE) for tail in tails))

    await struck.strike(fault, victim)
    await confirm(ledgers, DURING)
    async with patience():
        late = await begun(newer)
        late.go()
        await confirm([*ledgers, late], DURING)
        for reader in readers:
            while reader.known < reader.written.confirmed:
                await reader.go_on()
    await asyncio.gather(*(tail.until_known(tail.known + DURING) for tail in tails))
    print(f"{fault.name} under adds: longest waits {gaps(ledgers)} ms")

    lost = struck.lost()
    await struck.heal()
    await confirm(ledgers, DURING)
    await asyncio.gather(*(tail.until_known(tail.known + DURING) for tail in tails))
    assert not any(task.done() for task in following)
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    for each in (*ledgers[:2], late):
        await each.close()
    ledgers[2].stop()  # its end is for a recovery to find
    await audit(stores, [*ledgers, *closed, late], lost=lost)


@each_fault("read-only")
async def test_adds_in_a_change_of_the_ensemble(
    stores: Stores, struck: Struck, can_fill: bool, fault: Fault
) -> None:
    """A bookie was lost, and while its successor is being named, another one is broken: in three
    ledgers one that stays, in three others the successor."""
    skip_unless(fault, can_fill)
    victim, other, gone, spare = cast(stores.cluster)
    pinned = (
        Pinned(*places_of(stores.cluster, victim, other, gone), spare=spare.bookie_id),
        Pinned(*places_of(stores.cluster, gone, other, spare), spare=victim.bookie_id),
    )
    ledgers, changes = [], []
    for placement in pinned:
        store = stores.make(placement=placement)
        ledgers += [await begun(store) for _ in range(3)]
        changes.append(Held(store, 0, "before"))
    for each in ledgers:
        each.go()
    await confirm(ledgers, BEFORE)
    await struck.strike(Killed(), gone)
    for held in changes:
        await held.until_arrived(3)
    await struck.strike(fault, victim)
    for held in changes:
        held.release()
    for each in ledgers:
        each.measure()  # until here metadata stood still, and two of three were away
    await confirm(ledgers, DURING)
    print(f"{fault.name} in a change: longest waits {gaps(ledgers)} ms")
    lost = struck.lost()
    await struck.heal()
    await confirm(ledgers, DURING)
    await ledgers[0].close()
    for each in ledgers:
        each.stop()
    await audit(stores, ledgers, lost=lost)


@each_fault("restarted", "wiped")
async def test_recovery(stores: Stores, struck: Struck, can_fill: bool, fault: Fault) -> None:
    """Of three ledgers it is announced, and no bookie was asked yet; of three others all is found
    and written back, and they are not closed yet. The appenders live, and are under load."""
    skip_unless(fault, can_fill)
    victim, *_ = cast(stores.cluster)
    marked, found = await going(stores, victim), await going(stores, victim)
    recoveries, points = [], []
    for ledgers, number, side in ((marked, 0, "after"), (found, 1, "before")):
        store = stores.make()
        await store._ready()
        points.append(Held(store, number, side))
        recoveries += [asyncio.create_task(store.recover(each.ledger_id)) for each in ledgers]
    for held in points:
        await held.until_arrived(3)
    await struck.strike(fault, victim)
    for held in points:
        held.release()
    async with patience():
        ends = await asyncio.gather(*recoveries)
    ledgers = [*marked, *found]
    for each, end in zip(ledgers, ends, strict=True):
        each.note_closed(end, "a recovery under a fault")
        await each.until_failed()
    lost = struck.lost()
    await struck.heal()
    await audit(stores, ledgers, lost=lost)


@pytest.mark.parametrize("point", in_full(POINTS, but=["recovery.read"], seconds=15))
@each_fault("frozen", of=SILENCES)
async def test_recovery_at_a_crash_point(
    stores: Stores, struck: Struck, fault: Killed | Frozen, point: str
) -> None:
    """In the very turn in which the first bookie is asked."""
    victim, *_ = cast(stores.cluster)
    ledgers = await going(stores, victim)
    store = stores.make()
    await store._ready()
    reached: list[str] = []

    def listen(at: str, side: str) -> None:
        if at == point and side == "before" and not reached:
            reached.append(at)
            struck.strike_now(fault, victim)

    trace.listen(listen)
    try:
        async with patience():
            ends = await asyncio.gather(*(store.recover(each.ledger_id) for each in ledgers))
    finally:
        trace.listen(None)
    assert reached
    for each, end in zip(ledgers, ends, strict=True):
        each.note_closed(end, "a recovery under a fault")
    await struck.heal()
    await audit(stores, ledgers)


async def test_one_denial_is_no_proof(stores: Stores, struck: Struck) -> None:
    """The bookie that lost everything is the first one to answer, to every question."""
    victim, *others = cast(stores.cluster)
    ledgers = await going(stores, victim)
    await confirm(ledgers, DURING)
    for each in ledgers:
        each.stop()
        each.appender.abandon()
    await struck.strike(Wiped(), victim)
    store = stores.make()
    async with contextlib.AsyncExitStack() as proxies:
        for bookie in others:
            proxy = await proxies.enter_async_context(FaultyProxy(bookie.port))
            proxy.to_client.delay_s = 0.1
            lead_through(store, bookie, proxy)
        async with patience():
            ends = await asyncio.gather(*(store.recover(each.ledger_id) for each in ledgers))
        await store.close()
    for each, end in zip(ledgers, ends, strict=True):
        each.note_closed(end, "a recovery that is denied first")
    await struck.heal()
    await audit(stores, ledgers, lost={victim.bookie_id})


@each_fault("frozen", of=SILENCES)
async def test_two_of_three_and_back(stores: Stores, struck: Struck, fault: Fault) -> None:
    """No quorum is left: nothing is confirmed, nothing is lost, a recovery names who is missing,
    and all goes on when they are back."""
    victim, other, *_ = cast(stores.cluster)
    ledgers = await going(stores, victim)
    third = stores.make()
    dead = await begun(third)
    dead.go()
    await confirm([dead], BEFORE)
    await struck.strike(fault, victim)
    await struck.strike(fault, other)
    spare = stores.cluster.bookies[3]
    await struck.strike(fault, spare)
    standing = [each.confirmed for each in ledgers]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(2.0):  # what was on its way may still come
            await asyncio.gather(*(e.until_confirmed(e.confirmed + DURING) for e in ledgers))
    assert all(e.confirmed < was + DURING for e, was in zip(ledgers, standing, strict=True))
    impatient = stores.make(recovery_timeout_ms=8_000)
    with pytest.raises(Unavailable) as caught:
        await impatient.recover(dead.ledger_id)
    assert caught.value.missing
    await struck.heal()
    await confirm(ledgers, DURING)
    for each in ledgers:
        await each.close()
    dead.stop()
    await audit(stores, [*ledgers, dead])
