"""The LedgerStore contract on real bookies: the suite of every backend, unchanged. Each further
store has a ZooKeeper session and connections of its own, as another process would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from dlog.ledger.bookkeeper.ledger_nodes import LedgerNodes
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.ledger.store import LedgerStore
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import Cluster
from dlog.testing.conformance import ledger_store

Make = Callable[[], Awaitable[LedgerStore]]


@pytest.fixture
async def make(cluster: Cluster) -> AsyncIterator[Make]:
    stores: list[LedgerStore] = []
    metas: list[ZooKeeperMetaStore] = []

    async def make_store() -> LedgerStore:
        meta = ZooKeeperMetaStore(cluster.zookeeper.hosts)
        store = BookKeeperLedgerStore(meta, ledgers_root=cluster.ledgers_root)
        metas.append(meta)
        stores.append(store)
        return store

    await _delete_all(cluster)
    yield make_store
    for store in stores:
        await store.close()
    await asyncio.gather(*(meta.close() for meta in metas))


async def _delete_all(cluster: Cluster) -> None:
    """Bookies know ledgers by their ids alone, so a root of its own for each check, with ids that
    begin again, would mix them up. Instead all checks share the root, and find it empty."""
    meta = ZooKeeperMetaStore(cluster.zookeeper.hosts)
    nodes = LedgerNodes(meta, cluster.ledgers_root)
    left = [ledger_id async for ledger_id in nodes.scan_ids()]
    await asyncio.gather(*map(nodes.delete, left))
    await meta.close()


@pytest.mark.parametrize("name", sorted(ledger_store.ALL))
async def test_ledger_store(name: str, make: Make) -> None:
    await ledger_store.ALL[name](make)
