"""Each backend keeps the MetaStore contract. `sqlite-processes` runs every second store of a check
in a process of its own, so that nothing is agreed upon in memory."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dlog.chance import SYSTEM_CHANCE
from dlog.clock import SYSTEM_CLOCK
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.meta.sqlite import SESSIONS_NAME, SqliteMetaStore
from dlog.meta.store import MetaStore
from dlog.testing.conformance.meta_store import CHECKS, LOSS_CHECKS, MODULES
from tests.conformance.remote_meta_store import RemoteMetaStore


class Memory:
    def __init__(self, directory: Path) -> None:
        self._tree = MemoryTree()

    async def make(self) -> MetaStore:
        return MemoryMetaStore(self._tree)

    async def lose(self, store: MetaStore) -> None:
        self._tree.expire((await store.session()).id)


class Sqlite:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    async def make(self) -> MetaStore:
        return SqliteMetaStore(self.directory, SYSTEM_CLOCK, SYSTEM_CHANCE)

    async def lose(self, store: MetaStore) -> None:
        lock = f"{(await store.session()).id}.lock"
        (self.directory / SESSIONS_NAME / lock).unlink()


class SqliteProcesses(Sqlite):
    made = 0

    async def make(self) -> MetaStore:
        self.made += 1
        if self.made % 2 == 1:
            return await super().make()
        return await RemoteMetaStore.start(self.directory)


BACKENDS = {"memory": Memory, "sqlite": Sqlite, "sqlite-processes": SqliteProcesses}


class Bench:
    """Makes stores and closes what a check left open."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.lose = backend.lose
        self.made: list[MetaStore] = []

    async def make(self) -> MetaStore:
        store = await self._backend.make()
        self.made.append(store)
        return store


@pytest.fixture(params=BACKENDS)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(BACKENDS[request.param](tmp_path / "meta"))
    yield bench
    for store in bench.made:
        await store.close()
    for store in bench.made:
        if isinstance(store, RemoteMetaStore):
            await store.end()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_contract(bench: Bench, check: Any) -> None:
    await check(bench.make)


@pytest.mark.parametrize("check", LOSS_CHECKS, ids=lambda check: check.__name__)
async def test_contract_when_a_session_is_lost(bench: Bench, check: Any) -> None:
    await check(bench.make, bench.lose)


def test_every_check_is_registered() -> None:
    """A check that somebody forgot to register would never run."""
    written = {
        name
        for module in MODULES
        for name, value in vars(module).items()
        if inspect.iscoroutinefunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    }
    registered = [check.__name__ for check in [*CHECKS, *LOSS_CHECKS]]
    assert written == set(registered)
    assert len(registered) == len(set(registered))
