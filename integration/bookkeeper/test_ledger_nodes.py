"""Ledger metadata on a real ZooKeeper: the nodes are those of the stock client, and stay right
beside its writes, after a lost session, and while the server is killed under many calls at once."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from kazoo.exceptions import BadVersionError

from dlog.errors import NotFound
from dlog.ledger.bookkeeper.core.changes import marked
from dlog.ledger.bookkeeper.ledger_nodes import Change, LedgerNodes
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import ZooKeeper
from dlog.wire.bookie_digest import DigestType
from dlog.wire.ledger_metadata import CustomPair, Fragment, LedgerMetadata, LedgerState
from dlog.wire.ledger_metadata_format import pack_ledger_metadata, parse_ledger_metadata
from integration.zookeeper_tools import end_session, raw, raw_client

NEW = LedgerMetadata(
    3, 3, 2, (Fragment(0, ("b1:1", "b2:1", "b3:1")),), digest_type=DigestType.CRC32C, password=b""
)
FIRST = "/ledgers/00/0000/L0000"
PATIENT_MS = 60_000

Make = Callable[[str], LedgerNodes]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[tuple[ZooKeeperMetaStore, LedgerNodes]] = []

    def make_nodes(hosts: str) -> LedgerNodes:
        meta = ZooKeeperMetaStore(hosts)
        nodes = LedgerNodes(meta, timeout_ms=PATIENT_MS)
        made.append((meta, nodes))
        return nodes

    yield make_nodes
    for meta, nodes in made:
        await nodes.close()
        await meta.close()


@pytest.fixture
def place(zookeeper: ZooKeeper, request: pytest.FixtureRequest) -> str:
    """Hosts, and a chroot of the test's own."""
    return f"{zookeeper.hosts}/{request.node.name}"


def note(metadata: LedgerMetadata, key: str) -> LedgerMetadata | None:
    if metadata.custom_value(key) is not None:
        return None
    return replace(metadata, custom=(*metadata.custom, CustomPair(key, b"")))


def noting(key: str) -> Change:
    return functools.partial(note, key=key)


async def ids_of(nodes: LedgerNodes) -> list[int]:
    return [ledger_id async for ledger_id in nodes.scan_ids()]


def meta_of(nodes: LedgerNodes) -> ZooKeeperMetaStore:
    assert isinstance(nodes._meta, ZooKeeperMetaStore)
    return nodes._meta


async def test_the_nodes_are_those_of_the_stock_client(place: str, make: Make) -> None:
    nodes = make(place)
    stored = await nodes.create(NEW)
    await nodes.close()

    def look(zk: Any) -> tuple[Any, ...]:
        value, stat = zk.get(FIRST)
        return zk.get("/ledgers/LAYOUT")[0], value, stat.version, zk.get_children("/ledgers/idgen")

    layout, value, version, drawn = await raw(place, look)
    assert layout == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
    assert parse_ledger_metadata(value, where=FIRST) == stored.metadata
    assert version == 0, "the stock client takes a new ledger's version for 0"
    assert drawn == []


async def test_ids_rise_and_are_nobody_elses(place: str, make: Make) -> None:
    ours, theirs = make(place), make(place)
    seen = [(await each.create(NEW)).ledger_id for each in (ours, theirs) * 5]
    assert seen == list(range(10))
    made = await asyncio.gather(*((ours, theirs)[turn % 2].create(NEW) for turn in range(40)))
    assert {stored.ledger_id for stored in made} == set(range(10, 50))
    assert await ids_of(ours) == list(range(50))


async def test_after_2_to_the_31_ids_and_paths_are_long(place: str, make: Make) -> None:
    nodes = make(place)
    await nodes.create(NEW)
    await raw(place, lambda zk: zk.create("/ledgers/idgen-long/HOB-0000000003", makepath=True))
    later = make(place)  # the first one knows by now that there are no long ids
    first = await later.create(NEW)
    assert first.ledger_id == 3 << 32
    assert await raw(place, lambda zk: zk.exists("/ledgers/000/0000/0128/8490/L1888"))
    assert (await nodes.create(NEW)).ledger_id == 1
    assert await ids_of(nodes) == [0, 1, 3 << 32]
    await nodes.delete(3 << 32)
    assert await raw(place, lambda zk: zk.exists("/ledgers/000")) is None


async def test_a_write_of_the_stock_client_is_never_lost(place: str, make: Make) -> None:
    """It compares the node's own counter, we the transaction: both lose to the other one."""
    nodes = make(place)
    stored = await nodes.create(NEW)

    def add(zk: Any, key: str, known: tuple[bytes, int] | None = None) -> None:
        while True:
            value, version = known or ((found := zk.get(FIRST))[0], found[1].version)
            changed = note(parse_ledger_metadata(value, where=FIRST), key)
            assert changed is not None
            try:
                zk.set(FIRST, pack_ledger_metadata(changed), version)
            except BadVersionError:
                if known is not None:
                    raise
            else:
                return

    def add_many() -> None:
        with raw_client(place) as zk:
            for turn in range(30):
                add(zk, f"theirs {turn}")

    old = (pack_ledger_metadata(stored.metadata), 0)
    await raw(place, lambda zk: add(zk, "before", old))
    others = asyncio.create_task(asyncio.to_thread(add_many))
    for turn in range(30):
        stored = await nodes.change(stored, noting(f"ours {turn}"))
    await others
    keys = {pair.key for pair in (await nodes.read_fresh(0)).metadata.custom}
    assert keys == {"before"} | {
        f"{who} {turn}" for who in ("ours", "theirs") for turn in range(30)
    }
    with pytest.raises(BadVersionError):
        await raw(place, lambda zk: add(zk, "late", old))


async def test_what_the_stock_client_deleted_is_gone(place: str, make: Make) -> None:
    nodes = make(place)
    stored = await nodes.create(NEW)
    await raw(place, lambda zk: zk.delete(FIRST, version=-1))
    with pytest.raises(NotFound):
        await nodes.change(stored, marked)
    await nodes.delete(0)
    assert await ids_of(nodes) == []


async def test_a_watch_hears_of_foreign_changes(place: str, make: Make) -> None:
    nodes = make(place)
    stored = await nodes.create(NEW)
    changed = replace(stored.metadata, state=LedgerState.IN_RECOVERY)
    async with nodes.watch(0) as watch, asyncio.timeout(20):
        await raw(place, lambda zk: zk.set(FIRST, pack_ledger_metadata(changed), 0))
        assert await watch.wait(20_000)
    assert (await nodes.read_fresh(0)).metadata == changed


async def test_a_lost_session_ends_nothing(place: str, make: Make) -> None:
    nodes = make(place)
    first = await nodes.create(NEW)
    await end_session(meta_of(nodes))
    assert (await nodes.create(NEW)).ledger_id == 1
    assert (await nodes.change(first, marked)).metadata.state is LedgerState.IN_RECOVERY
    await nodes.close()
    assert await raw(place, lambda zk: zk.get_children("/ledgers/idgen")) == []


async def test_a_server_killed_under_many_creates(own_zookeeper: ZooKeeper, make: Make) -> None:
    """Every one of them ends in a ledger, and no ledger is left that nobody got."""
    stores = [make(own_zookeeper.hosts) for _ in range(2)]
    await stores[0].create(NEW)
    made: list[int] = []
    enough = asyncio.Event()

    async def keep_creating(nodes: LedgerNodes) -> None:
        for _ in range(25):
            made.append((await nodes.create(NEW)).ledger_id)
            if len(made) >= 30:
                enough.set()

    async with asyncio.timeout(PATIENT_MS / 1000):
        creating = asyncio.gather(*(keep_creating(stores[turn % 2]) for turn in range(8)))
        await enough.wait()
        own_zookeeper.kill()
        own_zookeeper.start()
        await asyncio.to_thread(own_zookeeper.wait_until_serving)
        await creating
    assert len(made) == 200
    assert await ids_of(stores[0]) == sorted([0, *made])


async def test_a_server_killed_under_changes_and_deletions(
    own_zookeeper: ZooKeeper, make: Make
) -> None:
    nodes = make(own_zookeeper.hosts)
    kept = [await nodes.create(NEW) for _ in range(4)]
    doomed = [await nodes.create(NEW) for _ in range(60)]
    done = 0
    enough = asyncio.Event()

    async def keep_changing(turn: int) -> None:
        nonlocal done
        stored = kept[turn]
        for number in range(40):
            stored = await nodes.change(stored, noting(f"note {number}"))
            done += 1
            if done >= 40:
                enough.set()

    async def keep_deleting() -> None:
        for stored in doomed:
            await nodes.delete(stored.ledger_id)

    async with asyncio.timeout(PATIENT_MS / 1000):
        working = asyncio.gather(keep_deleting(), *(keep_changing(turn) for turn in range(4)))
        await enough.wait()
        own_zookeeper.kill()
        own_zookeeper.start()
        await asyncio.to_thread(own_zookeeper.wait_until_serving)
        await working
    assert await ids_of(nodes) == [stored.ledger_id for stored in kept]
    for stored in kept:
        custom = (await nodes.read(stored.ledger_id)).metadata.custom
        assert [pair.key for pair in custom] == [f"note {number}" for number in range(40)]
