"""A MetaStore for real drivers, over the simulated metadata: sessions, sequential nodes, parents,
watches.

`MetaTree` is the server, with all that `metadata` may do wrong. A `SimMetaStore` is one session of
one process on it. Whoever is cancelled while it waits leaves a request behind that arrives all the
same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from dlog.errors import (
    ConfigError,
    Conflict,
    DlogError,
    LeaseLost,
    NotFound,
    WriterClosed,
)
from dlog.meta.nodes import check_value, sequential_path
from dlog.meta.store import Created, Versioned, check_path, parent_of
from dlog.testing.sim.loop import SimLoop
from dlog.testing.sim.metadata import Answered, MetaClient, MetaManners, SimMeta
from dlog.testing.sim.world import World

WALL_BASE_US = 1_750_000_000_000_000

Ask = Callable[[Answered], None]

_TOLD_MS = 500.0  # how late a client learns that its session ended


class MetaTree(SimMeta):
    """The tree that real metadata stores have: nodes stand below nodes."""

    def __init__(self, world: World, manners: MetaManners | None = None) -> None:
        super().__init__(world, manners)
        self._number = 0

    @property
    def ids_drawn(self) -> int:
        """The next ledger has an id from here on."""
        return self._number

    @property
    def serial(self) -> int:
        """Of the last change."""
        return self._serial

    def make(
        self, path: str, value: bytes, *, owner: SimMetaStore | None, sequential: bool
    ) -> Created:
        if owner is not None and owner.is_expired:
            raise LeaseLost("the session is lost; it can own no node", path=path)
        if sequential:
            path = sequential_path(path, self._number)
        missing = []
        parent = parent_of(path)
        while parent != "/" and parent not in self._nodes:
            missing.append(parent)
            parent = parent_of(parent)
        if parent in self._nodes and self._nodes[parent].owner is not None:
            raise Conflict(f"{parent} is ephemeral and can have no children", path=path)
        for each in reversed(missing):
            self.create(each, b"", None)
        version = self.create(path, value, owner)
        if sequential:
            self._number += 1
        return Created(path, version)

    def forget(self, path: str) -> None:
        """Whatever stands there, if anything does."""
        if path in self._nodes:
            self._drop(path)

    def remove(self, path: str, version: int) -> None:
        self._find(path, version)
        if any(each in self._nodes for each in self._below.get(path, ())):
            raise Conflict(f"{path} has children", path=path)
        self.delete(path, version)

    def expire(self, client: MetaClient) -> None:
        super().expire(client)
        if isinstance(client, SimMetaStore) and not client.is_expired:
            client.is_expired = True
            delay_ms = self.world.chance.delay(_TOLD_MS)
            self.world.after(delay_ms, lambda: client.receive(client.lost.set))

    def _set(self, path: str, value: bytes, owner: MetaClient | None = None) -> int:
        is_new = path not in self._nodes
        version = super()._set(path, value, owner)
        if is_new:
            self._wake(parent_of(path))
        return version

    def _drop(self, path: str) -> None:
        super()._drop(path)
        self._wake(parent_of(path))


class SimSession:
    def __init__(self, session_id: str, lost: asyncio.Event) -> None:
        self.id = session_id
        self.lost = lost


class SimMetaStore:
    """Of the process that lives on `loop`."""

    def __init__(self, tree: MetaTree, loop: SimLoop, name: str, *, meta_ms: float = 0.5) -> None:
        self.name = name
        self.meta_ms = meta_ms
        self.synced = 0
        self.is_expired = False
        self.lost = asyncio.Event()
        self._tree = tree
        self._loop = loop
        self._is_closed = False
        self._watches: list[SimWatch] = []

    def receive(self, what: Callable[[], None]) -> None:
        self._loop.arrive(what)

    async def get(self, path: str) -> Versioned:
        check_path(path)
        found: Versioned = await self._ask(
            lambda answer: self._tree.read(self, path, False, answer)
        )
        return found

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> Created:
        check_path(path)
        check_value(path, value)
        raw, owner = bytes(value), self if ephemeral else None
        made: Created = await self._write(
            path, lambda: self._tree.make(path, raw, owner=owner, sequential=sequential)
        )
        return made

    async def put(self, path: str, value: bytes, version: int) -> int:
        check_path(path)
        check_value(path, value)
        raw = bytes(value)
        new: int = await self._write(path, lambda: self._tree.put(path, raw, version))
        return new

    async def delete(self, path: str, version: int) -> None:
        check_path(path)
        await self._write(path, lambda: self._tree.remove(path, version))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        names: list[str] = await self._ask(lambda answer: self._tree.list(self, path, answer))
        if not names and path != "/":
            await self.get(path)
        return names

    def watch(self, path: str) -> SimWatch:
        self.check_open()
        return SimWatch(self, check_path(path))

    async def sync(self) -> None:
        try:
            await self._ask(lambda answer: self._tree.read(self, "/", True, answer))
        except NotFound:
            pass  # the root has no value; it was asked, that is all

    async def wall_us(self, path: str) -> int:
        """Of a server, whose clock is right."""
        await self.sync()
        return WALL_BASE_US + int(self._tree.world.now_ms * 1000)

    async def session(self) -> SimSession:
        self.check_open()
        return SimSession(self.name, self.lost)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._tree.expire(self)
            self.lost.set()
            for watch in self._watches:
                watch.changed.set()

    def check_open(self) -> None:
        if self._is_closed:
            raise WriterClosed("the metadata store is closed")

    # --- inside

    def _write(self, path: str, apply: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
        return self._ask(lambda answer: self._tree.write(self, path, apply, answer))

    async def _ask(self, ask: Ask) -> Any:
        self.check_open()
        answered: asyncio.Future[Any] = self._loop.create_future()

        def answer(value: Any, error: DlogError | None) -> None:
            if answered.done():
                return  # nobody waits for it any more
            if error is None:
                answered.set_result(value)
            else:
                answered.set_exception(error)

        ask(answer)
        value = await answered
        self.check_open()
        return value

    def watch_at(self, watch: SimWatch) -> None:
        """One-shot at the server; asked for again as often as it comes, unless it gets lost."""

        def call() -> None:
            if watch in self._watches:
                if watch.armed_at != self._tree.serial:  # else it is told twice of one change
                    watch.armed_at = self._tree.serial
                    self._tree.watch(watch.path, call)
                delay_ms = self._tree.world.chance.delay(self.meta_ms)
                self._tree.world.after(delay_ms, lambda: self.receive(watch.changed.set))

        self._watches.append(watch)
        self._tree.watch(watch.path, call)

    def forget(self, watch: SimWatch) -> None:
        self._watches.remove(watch)


class SimWatch:
    def __init__(self, store: SimMetaStore, path: str) -> None:
        self.path = path
        self.changed = asyncio.Event()
        self.armed_at = -1  # behind which change
        self._store = store
        self._is_entered = False

    async def wait(self, timeout_ms: float) -> bool:
        if not self._is_entered:
            raise ConfigError("enter the watch first: `async with store.watch(path) as watch`")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self.changed.wait()
        except TimeoutError:
            return False
        self._store.check_open()
        self.changed.clear()
        return True

    async def __aenter__(self) -> SimWatch:
        self._store.check_open()
        self._is_entered = True
        self._store.watch_at(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_entered = False
        self._store.forget(self)
