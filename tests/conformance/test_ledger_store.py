"""Every LedgerStore that needs no server, against the one conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from dlog.ledger.embedded import EmbeddedLedgerStore
from dlog.ledger.memory import MemoryLedgers, MemoryLedgerStore
from dlog.ledger.store import LedgerStore
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.meta.sqlite import SqliteMetaStore
from dlog.meta.store import MetaStore
from dlog.testing.conformance import ledger_store

Make = Callable[[], Awaitable[LedgerStore]]


@pytest.fixture(params=["memory", "embedded on memory", "embedded on sqlite"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    stores: list[LedgerStore] = []
    metas: list[MetaStore] = []
    ledgers, tree = MemoryLedgers(), MemoryTree()

    async def make_store() -> LedgerStore:
        store: LedgerStore
        if request.param == "memory":
            store = MemoryLedgerStore(ledgers)
        else:
            meta: MetaStore
            if request.param == "embedded on memory":
                meta = MemoryMetaStore(tree)
            else:
                meta = SqliteMetaStore(tmp_path)
            metas.append(meta)
            store = EmbeddedLedgerStore(tmp_path, meta)
        stores.append(store)
        return store

    yield make_store
    for store in stores:
        await store.close()
    for meta in metas:
        await meta.close()


@pytest.mark.parametrize("name", sorted(ledger_store.ALL))
async def test_ledger_store(name: str, make: Make) -> None:
    await ledger_store.ALL[name](make)
