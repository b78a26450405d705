"""Random programs run on SQLite and on the tree in memory: whatever one answers, so does the other.
Versions are compared by what they allow, not by number."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.chance import SYSTEM_CHANCE
from dlog.clock import SYSTEM_CLOCK
from dlog.errors import DlogError
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.meta.sqlite import SqliteMetaStore
from dlog.meta.store import Created, MetaStore, Versioned

STORES = 2

paths = st.sampled_from(["/", "/a", "/b", "/a/b", "/a/c", "/a/b/c", "/b/e"])
values = st.binary(max_size=3)
which_version = st.sampled_from(["current", "first", "before", "none"])
steps = st.one_of(
    st.tuples(st.just("create"), paths, values, st.booleans(), st.booleans()),
    st.tuples(st.just("put"), paths, values, which_version),
    st.tuples(st.just("delete"), paths, which_version),
    st.tuples(st.just("get"), paths),
    st.tuples(st.just("children"), paths),
    st.tuples(st.just("reopen")),
)
programs = st.lists(st.tuples(st.integers(0, STORES - 1), steps), max_size=30)


class Machine:
    """One backend that runs a program and keeps what it answered."""

    def __init__(self, make: Any) -> None:
        self._make = make
        self._stores: list[MetaStore] = [make() for _ in range(STORES)]
        self._seen: dict[str, list[int]] = {}

    async def step(self, which: int, verb: str, *arguments: Any) -> Any:
        try:
            return await getattr(self, f"on_{verb}")(which, *arguments)
        except DlogError as error:
            return type(error).__name__, error.outcome

    async def on_create(
        self, which: int, path: str, value: bytes, ephemeral: bool, sequential: bool
    ) -> Any:
        created: Created = await self._stores[which].create(
            path, value, ephemeral=ephemeral, sequential=sequential
        )
        self._saw(created.path, created.version)
        return created.path

    async def on_put(self, which: int, path: str, value: bytes, version: str) -> Any:
        number = await self._version(which, path, version)
        self._saw(path, await self._stores[which].put(path, value, number))

    async def on_delete(self, which: int, path: str, version: str) -> Any:
        await self._stores[which].delete(path, await self._version(which, path, version))

    async def on_get(self, which: int, path: str) -> Any:
        found: Versioned = await self._stores[which].get(path)
        self._saw(path, found.version)
        return found.value

    async def on_children(self, which: int, path: str) -> Any:
        return await self._stores[which].children(path)

    async def on_reopen(self, which: int) -> None:
        await self._stores[which].close()
        self._stores[which] = self._make()

    async def close(self) -> None:
        for store in self._stores:
            await store.close()

    async def _version(self, which: int, path: str, version: str) -> int:
        if version == "current":
            return (await self._stores[which].get(path)).version
        if version == "none":
            return -1
        seen = self._seen.get(path, [-1])
        return seen[0] if version == "first" else seen[max(0, len(seen) - 2)]

    def _saw(self, path: str, version: int) -> None:
        seen = self._seen.setdefault(path, [])
        if version not in seen:
            seen.append(version)


@given(programs)
@settings(max_examples=120, deadline=None)
def test_sqlite_answers_as_memory_does(program: list[tuple[int, tuple[Any, ...]]]) -> None:
    async def run(directory: Path) -> None:
        tree = MemoryTree()
        memory = Machine(lambda: MemoryMetaStore(tree))
        sqlite = Machine(lambda: SqliteMetaStore(directory, SYSTEM_CLOCK, SYSTEM_CHANCE))
        try:
            for number, (which, step) in enumerate(program):
                expected = await memory.step(which, *step)
                answer = await sqlite.step(which, *step)
                assert answer == expected, f"step {number}: {step} on store {which}"
        finally:
            await memory.close()
            await sqlite.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory) / "meta"))
