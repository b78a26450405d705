"""Ledgers recovered on real bookies: with a full tail, with bookies lost at each step, by many at
once, and with too few bookies to know the end."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass

import pytest

from dlog import trace
from dlog.errors import Fenced, Timeout, Unavailable
from dlog.ledger.bookkeeper.ledger_nodes import LedgerNodes
from dlog.ledger.bookkeeper.links import DataLink
from dlog.ledger.bookkeeper.pool import BookieLinks
from dlog.ledger.bookkeeper.registry import BookieRegistry
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import Appender, ClosedLedger, LedgerSpec, LedgerState
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Bookie, Cluster
from dlog.testing.conformance.ledger_tools import Heard, read_all
from dlog.testing.conformance.meta_tools import until
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType, EntryDigest, master_key
from dlog.wire.bookie_v2 import pack_add
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata
from integration.conftest import OwnCluster
from tests.tiers import in_full

SPEC = LedgerSpec(custom={"of": b"test_recovery"})
PAYLOAD_BYTES = 1_000

Make = Callable[..., BookKeeperLedgerStore]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[tuple[BookKeeperLedgerStore, ZooKeeperMetaStore]] = []

    def make_store(cluster: Cluster, *, timeout_ms: float = 30_000) -> BookKeeperLedgerStore:
        meta = ZooKeeperMetaStore(cluster.zookeeper.hosts)
        store = BookKeeperLedgerStore(
            meta,
            ledgers_root=cluster.ledgers_root,
            recovery_timeout_ms=timeout_ms,
            unsafe_empty_password=True,
            unsafe_no_digest=True,
        )
        made.append((store, meta))
        return store

    yield make_store
    for store, _ in made:
        await store.close()
    await asyncio.gather(*(meta.close() for _, meta in made))


@pytest.fixture
def quiet_trace() -> Iterator[None]:
    yield
    trace.listen(None)


def payload_of(entry_id: int, payload_bytes: int = PAYLOAD_BYTES) -> bytes:
    return b"%d." % entry_id + bytes(payload_bytes)


@dataclass
class Tail:
    appender: Appender
    heard: Heard
    submitted: int

    @property
    def ledger_id(self) -> int:
        return self.appender.ledger_id


async def tail_of(
    store: BookKeeperLedgerStore,
    entries: int,
    *,
    confirmed: int = 20,
    payload_bytes: int = PAYLOAD_BYTES,
) -> Tail:
    """A ledger with so many entries behind the `confirmed` first ones, all on their way at once."""
    appender = await store.create(SPEC)
    heard = Heard()
    appender.listen(heard)
    await appender.birth([payload_of(0, payload_bytes)])
    for entry_id in range(1, confirmed + 1):
        appender.submit([payload_of(entry_id, payload_bytes)])
    await heard.until_confirmed(confirmed)
    for entry_id in range(confirmed + 1, confirmed + entries + 1):
        appender.submit([payload_of(entry_id, payload_bytes)])
    return Tail(appender, heard, confirmed + entries + 1)


async def sent(tail: Tail) -> None:
    """The first of them has been answered, so the others are at the bookies or nearly so."""
    await tail.heard.until_confirmed(tail.heard.confirmed + 1)


async def check_whole(
    store: BookKeeperLedgerStore,
    tail: Tail,
    end: ClosedLedger,
    payload_bytes: int = PAYLOAD_BYTES,
) -> None:
    assert tail.heard.confirmed <= end.last_entry < tail.submitted
    entries = await read_all(await store.open(tail.ledger_id), end.last_entry)
    wanted = [payload_of(entry_id, payload_bytes) for entry_id in range(end.last_entry + 1)]
    assert entries == wanted
    assert end.bytes == sum(map(len, wanted))
    info = await store.info(tail.ledger_id)
    assert (info.state, info.closed) == (LedgerState.CLOSED, end)


async def ensemble_of(cluster: Cluster, ledger_id: int) -> list[Bookie]:
    meta = ZooKeeperMetaStore(cluster.zookeeper.hosts)
    try:
        stored = await LedgerNodes(meta, cluster.ledgers_root).read_fresh(ledger_id)
    finally:
        await meta.close()
    return [cluster.bookie(each) for each in stored.metadata.fragments[-1].ensemble]


async def all_serving(cluster: Cluster) -> None:
    for bookie in cluster.bookies:
        if bookie.pid is None:
            bookie.start()
    for bookie in cluster.bookies:
        await asyncio.to_thread(bookie.wait_until_serving)


async def timed(what: str, act: Awaitable[ClosedLedger]) -> ClosedLedger:
    began = time.perf_counter()
    end = await act
    print(f"{what}: {(time.perf_counter() - began) * 1000:.1f} ms, ended at {end.last_entry}")
    return end


# --- tails


@pytest.mark.parametrize("entries", [0, 1, 1000])
async def test_a_tail(cluster: Cluster, make: Make, entries: int) -> None:
    for _ in range(3):
        tail = await tail_of(make(cluster), entries)
        if entries > 1:
            await sent(tail)
        tail.appender.abandon()
        other = make(cluster)
        end = await timed(f"{entries} outstanding", other.recover(tail.ledger_id))
        await check_whole(other, tail, end)
        assert await make(cluster).recover(tail.ledger_id) == end


async def test_a_tail_of_more_than_a_recovery_holds(cluster: Cluster, make: Make) -> None:
    payload_bytes = 100_000
    tail = await tail_of(make(cluster), 300, payload_bytes=payload_bytes)
    await sent(tail)
    tail.appender.abandon()
    other = make(cluster)
    end = await timed("300 of 100 KB outstanding", other.recover(tail.ledger_id))
    await check_whole(other, tail, end, payload_bytes)


async def test_a_live_writer_loses_and_acknowledges_nothing_above_the_end(
    cluster: Cluster, make: Make
) -> None:
    tail = await tail_of(make(cluster), 500)
    other = make(cluster)
    recovering = asyncio.create_task(other.recover(tail.ledger_id))
    while not recovering.done():
        await asyncio.wait([recovering], timeout=0.001)
        tail.appender.submit([payload_of(tail.submitted)])
        tail.submitted += 1
    end = recovering.result()
    await tail.heard.until_failed()
    assert isinstance(tail.heard.failed, Fenced)
    await check_whole(other, tail, end)


async def test_five_recoverers_agree(cluster: Cluster, make: Make) -> None:
    stores = [make(cluster) for _ in range(5)]
    for entries in (0, 1, 200):
        tail = await tail_of(make(cluster), entries)
        ends = await asyncio.gather(
            *(timed(f"five at once, {entries}", each.recover(tail.ledger_id)) for each in stores)
        )
        assert len(set(ends)) == 1
        await check_whole(stores[0], tail, ends[0])


# --- bookies lost under a recovery

# A step on each of its sides in `make full`; in `make test` on one, in turns.
STEPS = in_full(
    itertools.product(
        ("before", "after"), ("recovery.fenced", "recovery.read", "recovery.written_back")
    ),
    but=[
        ("before", "recovery.fenced"),
        ("after", "recovery.read"),
        ("before", "recovery.written_back"),
    ],
    seconds=6,
)
LOSSES: dict[str, Callable[[Bookie], None]] = {
    "killed": lambda bookie: bookie.kill(),
    "frozen": lambda bookie: bookie.freeze(),
}


@pytest.mark.usefixtures("quiet_trace")
@pytest.mark.parametrize("loss", in_full(LOSSES, but=["killed"], seconds=6))
@pytest.mark.parametrize("step", STEPS, ids="-".join)
async def test_a_bookie_lost_at_each_step(
    own_cluster: OwnCluster, make: Make, loss: str, step: tuple[str, str]
) -> None:
    side, point = step
    cluster = own_cluster()
    await all_serving(cluster)
    tail = await tail_of(make(cluster), 200)
    await sent(tail)
    tail.appender.abandon()
    victim = (await ensemble_of(cluster, tail.ledger_id))[1]
    struck: list[str] = []

    def strike(reached: str, reached_side: str) -> None:
        if (reached, reached_side) == (point, side) and not struck:
            struck.append(reached)
            LOSSES[loss](victim)

    trace.listen(strike)
    other = make(cluster)
    try:
        end = await timed(f"{loss} {side} {point}", other.recover(tail.ledger_id))
    finally:
        trace.listen(None)
        if loss == "frozen":
            victim.thaw()
    assert struck
    await check_whole(other, tail, end)


@pytest.mark.usefixtures("quiet_trace")
async def test_fenced_bookies_that_die_fence_no_less(own_cluster: OwnCluster, make: Make) -> None:
    """A recoverer dies behind its fence; all bookies are killed and start again; the old writer has
    been alive all the time."""
    cluster = own_cluster()
    await all_serving(cluster)
    tail = await tail_of(make(cluster), 0)
    fenced = asyncio.Event()
    trace.listen(
        lambda point, side: fenced.set() if (point, side) == ("recovery.read", "after") else None
    )
    first = asyncio.create_task(make(cluster).recover(tail.ledger_id))
    await fenced.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    trace.listen(None)
    for bookie in await ensemble_of(cluster, tail.ledger_id):
        bookie.kill()
    tail.appender.submit([payload_of(tail.submitted)])
    tail.submitted += 1
    await all_serving(cluster)
    other = make(cluster)
    end = await recovered(other, tail.ledger_id)
    await tail.heard.until_failed()
    await check_whole(other, tail, end)


async def test_a_wiped_bookie_hides_nothing(own_cluster: OwnCluster, make: Make) -> None:
    cluster = own_cluster()
    await all_serving(cluster)
    tail = await tail_of(make(cluster), 50)
    await tail.heard.until_confirmed(tail.submitted - 1)
    tail.appender.abandon()
    victim = (await ensemble_of(cluster, tail.ledger_id))[0]
    victim.kill()
    victim.wipe()
    await all_serving(cluster)
    other = make(cluster)
    end = await timed("one bookie wiped", recovered(other, tail.ledger_id))
    assert end.last_entry == tail.submitted - 1
    await check_whole(other, tail, end)


@pytest.mark.parametrize("loss", in_full(LOSSES, but=["frozen"], seconds=6))
async def test_two_bookies_away_are_named_and_a_later_try_succeeds(
    own_cluster: OwnCluster, make: Make, loss: str
) -> None:
    cluster = own_cluster()
    await all_serving(cluster)
    tail = await tail_of(make(cluster), 10)
    await tail.heard.until_confirmed(tail.submitted - 1)
    tail.appender.abandon()
    victims = (await ensemble_of(cluster, tail.ledger_id))[1:]
    for victim in victims:
        LOSSES[loss](victim)
    other = make(cluster)
    began = time.perf_counter()
    with pytest.raises(Unavailable) as caught:
        await other.recover(tail.ledger_id)
    print(f"two bookies {loss}: told after {time.perf_counter() - began:.1f} s: {caught.value}")
    assert sorted(caught.value.missing) == sorted(victim.bookie_id for victim in victims)
    assert caught.value.needed == 1
    assert (await other.info(tail.ledger_id)).state is LedgerState.IN_RECOVERY
    for victim in victims:
        if loss == "frozen":
            victim.thaw()
    await all_serving(cluster)
    end = await recovered(other, tail.ledger_id)
    assert end.last_entry == tail.submitted - 1
    await check_whole(other, tail, end)


async def recovered(store: BookKeeperLedgerStore, ledger_id: int) -> ClosedLedger:
    """As a client does it: again, while bookies are still coming up."""
    ends: list[ClosedLedger] = []

    async def try_again() -> bool:
        try:
            ends.append(await store.recover(ledger_id))
        except (Unavailable, Timeout):
            return False
        return True

    await until(try_again, "the ledger is recovered")
    return ends[0]


# --- striped ledgers


class Adding:
    """Adds of a striped ledger, until all bookies have answered theirs."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.open = 0
        self.all_answered = asyncio.Event()

    def on_adds(self, link: DataLink, answer: Answer, entry_ids: list[int]) -> None:
        assert answer is Answer.OK
        link.settle(self.ledger_id, entries=len(entry_ids), bytes=0)
        self.open -= len(entry_ids)
        if self.open == 0:
            self.all_answered.set()

    def on_room(self, link: DataLink) -> None: ...

    def on_down(self, link: DataLink, answer: Answer) -> None: ...


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_a_striped_ledger_with_each_digest(
    cluster: Cluster, make: Make, digest_type: DigestType
) -> None:
    meta = ZooKeeperMetaStore(cluster.zookeeper.hosts)
    registry = BookieRegistry(meta, cluster.ledgers_root)
    await registry.open()
    links = BookieLinks(registry)
    try:
        ensemble = tuple(sorted(registry.writable())[:4])
        digest, key = EntryDigest(digest_type, b""), master_key(b"")
        made = LedgerMetadata(
            4, 3, 2, (Fragment(0, ensemble),), digest_type=digest_type, password=b""
        )
        stored = await LedgerNodes(meta, cluster.ledgers_root).create(made)
        adding = Adding(stored.ledger_id)
        frames: dict[str, list[bytes]] = {bookie_id: [] for bookie_id in ensemble}
        ledger_bytes = 0
        for entry_id in range(200):
            payload = payload_of(entry_id)
            ledger_bytes += len(payload)
            lac = min(entry_id - 1, 99)  # a hundred of them on their way
            head = digest.pack_head(stored.ledger_id, entry_id, lac, ledger_bytes, [payload])
            frame = pack_add(head, payload_bytes=len(payload), master_key=key) + payload
            for turn in range(3):
                frames[ensemble[(entry_id + turn) % 4]].append(frame)
                adding.open += 1
        for bookie_id, each in frames.items():
            link = await links.data(bookie_id)
            link.attach(stored.ledger_id, adding)
            link.send_adds(stored.ledger_id, b"".join(each), entries=len(each), bytes=0)
        await adding.all_answered.wait()
    finally:
        await links.close()
        await registry.close()
        await meta.close()
    store = make(cluster)
    end = await timed(f"striped, {digest_type.name}", store.recover(stored.ledger_id))
    assert end == ClosedLedger(199, ledger_bytes)
    entries = await read_all(await store.open(stored.ledger_id), 199)
    assert entries == [payload_of(entry_id) for entry_id in range(200)]
