"""A MetaStore that goes wrong on command: replies and requests are lost, reads are old, others act
in between. What it stands on is the one in memory."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from dlog.errors import LeaseLost, NotFound, Outcome, Timeout, Unavailable
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.meta.store import Created, Versioned, parent_of

Act = Callable[[], Awaitable[object]]

# As in ZooKeeper each parent counts for itself, and for all who draw below it.
_COUNTERS: WeakKeyDictionary[MemoryTree, defaultdict[str, itertools.count[int]]] = (
    WeakKeyDictionary()
)


class Meddling(MemoryMetaStore):
    """`lost_replies` and `lost_requests` name calls, each once for each time; `before` runs what
    somebody else does just before a call reaches the store."""

    def __init__(self, tree: MemoryTree) -> None:
        super().__init__(tree)
        self.calls: list[tuple[str, str]] = []
        self.lost_replies: list[str] = []
        self.lost_requests: list[str] = []
        self.away: set[str] = set()
        self.before: dict[str, list[Act]] = defaultdict(list)
        self.old: dict[str, Versioned | None] = {}  # what reads show until the next sync
        self.session_is_lost = False
        self.counters = _COUNTERS.setdefault(tree, defaultdict(itertools.count))

    def count_of(self, call: str) -> int:
        return sum(name == call for name, _ in self.calls)

    async def _around(self, name: str, path: str, act: Callable[[], Awaitable[Any]]) -> Any:
        self.calls.append((name, path))
        if name in self.away:
            raise Unavailable("away", missing=["the store"])
        if self.before[name]:
            await self.before[name].pop(0)()
        if name in self.lost_requests:
            self.lost_requests.remove(name)
            raise Timeout("a lost request", outcome=Outcome.UNKNOWN)
        answer = await act()
        if name in self.lost_replies:
            self.lost_replies.remove(name)
            raise Unavailable("a lost reply", outcome=Outcome.UNKNOWN)
        return answer

    async def get(self, path: str) -> Versioned:
        async def act() -> Versioned:
            if path in self.old:
                shown = self.old[path]
                if shown is None:
                    raise NotFound(f"not seen yet: {path}", path=path)
                return shown
            return await super(Meddling, self).get(path)

        found: Versioned = await self._around("get", path, act)
        return found

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> Created:
        async def act() -> Created:
            if ephemeral and self.session_is_lost:
                raise LeaseLost("the session is over")
            name = path
            if sequential:
                name = f"{path}{next(self.counters[parent_of(path)]):010d}"
            return await super(Meddling, self).create(name, value, ephemeral=ephemeral)

        name = "draw" if sequential else "create"
        made: Created = await self._around(name, path, act)
        return made

    async def put(self, path: str, value: bytes, version: int) -> int:
        stored: int = await self._around(
            "put", path, lambda: super(Meddling, self).put(path, value, version)
        )
        return stored

    async def delete(self, path: str, version: int) -> None:
        await self._around("delete", path, lambda: super(Meddling, self).delete(path, version))

    async def children(self, path: str) -> list[str]:
        names: list[str] = await self._around(
            "children", path, lambda: super(Meddling, self).children(path)
        )
        return names

    async def sync(self) -> None:
        await self._around("sync", "", super().sync)
        self.old.clear()
