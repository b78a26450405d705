"""The MetaStore contract on a real ZooKeeper. Each check has a chroot of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dlog.meta.store import MetaStore
from dlog.meta.zookeeper import ZooKeeperMetaStore
from dlog.testing.cluster import ZooKeeper
from dlog.testing.conformance.meta_store import CHECKS, LOSS_CHECKS
from integration.zookeeper_tools import end_session

_numbers = itertools.count()


class Bench:
    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._hosts = f"{zookeeper.hosts}/check/{next(_numbers)}"
        self.made: list[ZooKeeperMetaStore] = []

    async def make(self) -> MetaStore:
        store = ZooKeeperMetaStore(self._hosts)
        self.made.append(store)
        return store

    async def lose(self, store: MetaStore) -> None:
        assert isinstance(store, ZooKeeperMetaStore)
        await end_session(store)


@pytest.fixture
async def bench(zookeeper: ZooKeeper) -> AsyncIterator[Bench]:
    bench = Bench(zookeeper)
    yield bench
    await asyncio.gather(*(store.close() for store in bench.made))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(bench: Bench, check: Any) -> None:
    await check(bench.make)


@pytest.mark.parametrize("check", LOSS_CHECKS, ids=lambda check: check.__name__)
async def test_contract_when_a_session_is_lost(bench: Bench, check: Any) -> None:
    await check(bench.make, bench.lose)
