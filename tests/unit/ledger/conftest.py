"""Embedded stores on real files, closed when the test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from dlog import trace
from dlog.ledger.embedded import EmbeddedLedgerStore
from dlog.meta.memory import MemoryMetaStore, MemoryTree

MakeEmbedded = Callable[[], EmbeddedLedgerStore]


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree()


@pytest.fixture
async def make(tmp_path: Path, tree: MemoryTree) -> AsyncIterator[MakeEmbedded]:
    """Each call is one more process, as far as the ledgers can tell."""
    stores: list[EmbeddedLedgerStore] = []
    metas: list[MemoryMetaStore] = []

    def make_store() -> EmbeddedLedgerStore:
        metas.append(MemoryMetaStore(tree))
        stores.append(EmbeddedLedgerStore(tmp_path, metas[-1]))
        return stores[-1]

    yield make_store
    trace.listen(None)
    for store in stores:
        await store.close()
    for meta in metas:
        await meta.close()
