"""The MetaStore in memory: one tree per process, the smallest honest implementation.

A `MemoryTree` is the server, each `MemoryMetaStore` one session on it. Clients of one tree may live
on different event loops (a sync client has its own loop thread), so the tree has a lock, held for
a few dictionary operations, and wakes every watch on the watch's own loop. Each call yields to the
loop before it acts: a program that only works when nobody comes between its read and its write
shall fail here as it would elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.clock import SYSTEM_CLOCK
from dlog.errors import (
    AlreadyExists,
    ConfigError,
    Conflict,
    ForkedHandle,
    LeaseLost,
    NotFound,
    WriterClosed,
)
from dlog.meta.nodes import check_value, sequential_path
from dlog.meta.store import Created, Versioned, check_path, parent_of


@dataclass(slots=True)
class _Node:
    value: bytes
    version: int
    owner: str | None  # the session of an ephemeral node
    children: set[str] = field(default_factory=set)


class MemoryTree:
    """What the stores of one name share. Every method is one atomic step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes = {"/": _Node(b"", 0, None)}
        self._next_version = 0  # above every version a deleted node ever had
        self._next_number = 0  # for sequential nodes; one for the whole tree keeps its promise
        self._sessions: dict[str, Callable[[], None]] = {}
        self._watches: dict[str, set[MemoryWatch]] = {}

    def get(self, path: str) -> Versioned:
        with self._lock:
            node = self._node(path)
            return Versioned(node.value, node.version)

    def children(self, path: str) -> list[str]:
        with self._lock:
            return sorted(self._node(path).children)

    def create(self, path: str, value: bytes, *, owner: str | None, sequential: bool) -> Created:
        with self._lock:
            if owner is not None and owner not in self._sessions:
                raise LeaseLost("the session is lost; it can own no node", path=path)
            if sequential:
                path = sequential_path(path, self._next_number)
            if path in self._nodes:
                raise AlreadyExists(f"there is a node {path}", path=path)
            missing = [path]
            while (parent := parent_of(missing[-1])) not in self._nodes:
                missing.append(parent)
            if self._nodes[parent].owner is not None:
                raise Conflict(f"{parent} is ephemeral and can have no children", path=path)
            if sequential:
                self._next_number += 1
            version = self._next_version
            for step in reversed(missing):
                leaf = step == path
                self._nodes[step] = _Node(value if leaf else b"", version, owner if leaf else None)
                self._nodes[parent_of(step)].children.add(step.rsplit("/", 1)[1])
                self._tell(step)
                self._tell(parent_of(step))
            return Created(path, version)

    def put(self, path: str, value: bytes, version: int) -> int:
        with self._lock:
            node = self._node_at(path, version)
            node.value = value
            node.version += 1
            self._tell(path)
            return node.version

    def delete(self, path: str, version: int) -> None:
        if path == "/":
            raise ConfigError("the root of the metadata tree cannot be deleted")
        with self._lock:
            if self._node_at(path, version).children:
                raise Conflict(f"{path} has children", path=path)
            self._remove(path)

    def open_session(self, session_id: str, on_lost: Callable[[], None]) -> None:
        """`on_lost` runs on any thread, under the lock, when the session is expired."""
        with self._lock:
            if session_id in self._sessions:
                raise AlreadyExists(f"there is a session {session_id}")
            self._sessions[session_id] = on_lost

    def end_session(self, session_id: str) -> None:
        with self._lock:
            if self._sessions.pop(session_id, None) is not None:
                self._remove_owned_by(session_id)

    def expire(self, session_id: str) -> None:
        """Tests only: give a session up behind its owner's back."""
        with self._lock:
            on_lost = self._sessions.pop(session_id, None)
            if on_lost is not None:
                self._remove_owned_by(session_id)
                on_lost()

    def add_watch(self, watch: MemoryWatch) -> None:
        with self._lock:
            self._watches.setdefault(watch.path, set()).add(watch)

    def drop_watch(self, watch: MemoryWatch) -> None:
        with self._lock:
            watches = self._watches.get(watch.path, set())
            watches.discard(watch)
            if not watches:
                self._watches.pop(watch.path, None)

    def _node(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise NotFound(f"there is no node {path}", path=path)
        return node

    def _node_at(self, path: str, version: int) -> _Node:
        node = self._node(path)
        if node.version != version:
            raise Conflict(f"{path} is at version {node.version}, not {version}", path=path)
        return node

    def _remove(self, path: str) -> None:
        node = self._nodes.pop(path)
        self._next_version = max(self._next_version, node.version + 1)
        self._nodes[parent_of(path)].children.remove(path.rsplit("/", 1)[1])
        self._tell(path)
        self._tell(parent_of(path))

    def _remove_owned_by(self, session_id: str) -> None:
        for path in [path for path, node in self._nodes.items() if node.owner == session_id]:
            self._remove(path)

    def _tell(self, path: str) -> None:
        for watch in self._watches.get(path, ()):
            watch.on_changed()


_trees: dict[str, MemoryTree] = {}
_trees_lock = threading.Lock()


def tree_named(name: str) -> MemoryTree:
    """The tree of this name in this process, made at first use; it lives until it is forgotten."""
    with _trees_lock:
        return _trees.setdefault(name, MemoryTree())


def forget_tree(name: str) -> None:
    """Stores that are open keep their tree; the next `tree_named` starts an empty one."""
    with _trees_lock:
        _trees.pop(name, None)


class MemorySession:
    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.lost = asyncio.Event()


class MemoryWatch:
    def __init__(self, store: MemoryMetaStore, path: str) -> None:
        self.path = path
        self._store = store
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def wait(self, timeout_ms: float) -> bool:
        if self._loop is None:
            raise ConfigError("enter the watch first: `async with store.watch(path) as watch`")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._store.check_open()
        self._changed.clear()
        return True

    def on_changed(self) -> None:
        """Any thread."""
        if self._loop is not None:
            _call_on(self._loop, self._changed.set)

    async def __aenter__(self) -> MemoryWatch:
        self._store.check_open()
        self._loop = asyncio.get_running_loop()
        self._store.add_watch(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop = None
        self._store.drop_watch(self)


class MemoryMetaStore:
    def __init__(self, tree: MemoryTree, *, chance: Chance = SYSTEM_CHANCE) -> None:
        self._tree = tree
        self._session = MemorySession(chance.token())
        self._session_loop: asyncio.AbstractEventLoop | None = None
        self._watches: set[MemoryWatch] = set()
        self._pid = os.getpid()
        self._closed = False
        tree.open_session(self._session.id, self._on_lost)

    async def get(self, path: str) -> Versioned:
        check_path(path)
        await self._arrive()
        return self._tree.get(path)

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> Created:
        check_path(path)
        check_value(path, value)
        await self._arrive()
        owner = self._session.id if ephemeral else None
        return self._tree.create(path, bytes(value), owner=owner, sequential=sequential)

    async def put(self, path: str, value: bytes, version: int) -> int:
        check_path(path)
        check_value(path, value)
        await self._arrive()
        return self._tree.put(path, bytes(value), version)

    async def delete(self, path: str, version: int) -> None:
        check_path(path)
        await self._arrive()
        self._tree.delete(path, version)

    async def children(self, path: str) -> list[str]:
        check_path(path)
        await self._arrive()
        return self._tree.children(path)

    def watch(self, path: str) -> MemoryWatch:
        self.check_open()
        return MemoryWatch(self, check_path(path))

    async def sync(self) -> None:
        await self._arrive()

    async def wall_us(self, path: str) -> int:
        """This machine's: no client is on another one."""
        return SYSTEM_CLOCK.wall_us()

    async def session(self) -> MemorySession:
        self.check_open()
        self._session_loop = asyncio.get_running_loop()
        return self._session

    async def close(self) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._tree.end_session(self._session.id)
        self._session.lost.set()
        for watch in list(self._watches):
            watch.on_changed()
            self.drop_watch(watch)

    def check_open(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle("this metadata store was opened in another process, before a fork")
        if self._closed:
            raise WriterClosed("the metadata store is closed")

    def add_watch(self, watch: MemoryWatch) -> None:
        self._watches.add(watch)
        self._tree.add_watch(watch)

    def drop_watch(self, watch: MemoryWatch) -> None:
        self._watches.discard(watch)
        self._tree.drop_watch(watch)

    async def _arrive(self) -> None:
        self.check_open()
        await asyncio.sleep(0)
        self.check_open()

    def _on_lost(self) -> None:
        loop = self._session_loop
        if loop is None:
            self._session.lost.set()  # nobody waits for it yet
        else:
            _call_on(loop, self._session.lost.set)


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise
        # Its loop is gone, and with it everybody who could have cared.
