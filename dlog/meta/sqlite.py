"""The MetaStore in a directory: one SQLite file for all processes of one host.

`meta.db` holds the tree (write-ahead log, every commit synced), `sessions/` the lock files of
those who made ephemeral nodes. This module is the loop's side: it checks arguments, hands calls to
the worker thread and keeps deadlines. Behind it stand, each usable alone: `sqlite_worker` (the
thread), `sqlite_tree` (calls as SQL), `sqlite_file` (opening, locking, transactions),
`sqlite_sessions` and `sqlite_errors`. Why it is built like this: docs/adr/0004.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from dlog.chance import SYSTEM_CHANCE, Chance
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import ConfigError, ForkedHandle, WriterClosed
from dlog.limits import META_TIMEOUT_MS_DEFAULT
from dlog.meta.nodes import check_value
from dlog.meta.sqlite_sessions import SessionLocks
from dlog.meta.sqlite_tree import Sight, Tree
from dlog.meta.sqlite_worker import Job, Vigil, Worker, call_on
from dlog.meta.store import Created, Versioned, check_path

DATABASE_NAME = "meta.db"
SESSIONS_NAME = "sessions"
CLOSE_PATIENCE_S = 2.0  # for a worker inside a sync that does not come back; it is left behind then

T = TypeVar("T")


class SqliteSession:
    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.lost = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def heard_on(self, loop: asyncio.AbstractEventLoop) -> SqliteSession:
        self._loop = loop
        return self

    def on_lost(self) -> None:
        """On the worker's thread."""
        if self._loop is None:
            self.lost.set()  # nobody waits for it yet
        else:
            call_on(self._loop, self.lost.set)


class SqliteWatch:
    def __init__(self, store: SqliteMetaStore, path: str) -> None:
        self._store = store
        self._path = path
        self._base: Sight | None = None
        self._entered = False

    async def wait(self, timeout_ms: float) -> bool:
        if not self._entered:
            raise ConfigError("enter the watch first: `async with store.watch(path) as watch`")
        changed, self._base = await self._store.wait_change(self._path, self._base, timeout_ms)
        return changed

    async def __aenter__(self) -> SqliteWatch:
        self._base = await self._store.look(self._path)
        self._entered = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered = False


class SqliteMetaStore:
    """One session on the tree in `directory`, which is made if it is missing. Nothing is opened
    before the first call, or `open()`, which only exists to hear of trouble early."""

    def __init__(
        self,
        directory: Path,
        clock: Clock = SYSTEM_CLOCK,
        chance: Chance = SYSTEM_CHANCE,
        *,
        timeout_ms: float = META_TIMEOUT_MS_DEFAULT,
    ) -> None:
        self.path = directory / DATABASE_NAME
        self._timeout_ms = timeout_ms
        self._pid = os.getpid()
        self._closed = False
        self._session = SqliteSession(chance.token())
        self._sessions = SessionLocks(directory / SESSIONS_NAME, self._session.id)
        self._worker = Worker(self.path, self._sessions, clock, chance, self._session.on_lost)

    async def open(self) -> None:
        await self._read(lambda tree, turn: None)

    async def get(self, path: str) -> Versioned:
        check_path(path)
        return await self._read(lambda tree, turn: tree.get(turn, path))

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequential: bool = False
    ) -> Created:
        check_path(path)
        check_value(path, value)
        return await self._write(
            lambda tree, turn: tree.create(
                turn, path, value, ephemeral=ephemeral, sequential=sequential
            )
        )

    async def put(self, path: str, value: bytes, version: int) -> int:
        check_path(path)
        check_value(path, value)
        return await self._write(lambda tree, turn: tree.put(turn, path, value, version))

    async def delete(self, path: str, version: int) -> None:
        check_path(path)
        await self._write(lambda tree, turn: tree.delete(turn, path, version))

    async def children(self, path: str) -> list[str]:
        check_path(path)
        return await self._read(lambda tree, turn: tree.children(turn, path))

    def watch(self, path: str) -> SqliteWatch:
        self._check_open()
        return SqliteWatch(self, check_path(path))

    async def look(self, path: str) -> Sight:
        """For watches: what there is to compare."""
        return await self._read(lambda tree, turn: tree.look(turn, path))

    async def wait_change(
        self, path: str, base: Sight | None, timeout_ms: float
    ) -> tuple[bool, Sight | None]:
        """For watches: whether `path` came to differ from `base`, and the base to go on with."""
        self._check_open()
        vigil = Vigil(path, base)
        self._worker.put(vigil)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return True, await vigil.answer
        except TimeoutError:
            return False, base
        finally:
            vigil.over = True

    async def sync(self) -> None:
        """Nothing to wait for: each read takes a snapshot that is not older than itself."""
        self._check_open()

    async def wall_us(self, path: str) -> int:
        """This machine's: no client is on another one."""
        return SYSTEM_CLOCK.wall_us()

    async def session(self) -> SqliteSession:
        self._check_open()
        return self._session.heard_on(asyncio.get_running_loop())

    async def close(self) -> None:
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._session.lost.set()
        if not self._worker.started:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        self._worker.call_at_end(lambda: call_on(loop, ended.set))
        self._worker.stop()
        try:
            async with asyncio.timeout(CLOSE_PATIENCE_S):
                await ended.wait()
        except TimeoutError:
            self._sessions.release()  # our nodes shall not wait for the disk
        else:
            self._worker.join(CLOSE_PATIENCE_S)  # it has nothing left to do but to end

    def __del__(self) -> None:
        if not self._closed and self._worker.started and os.getpid() == self._pid:
            self._worker.stop()
            warnings.warn(
                f"the metadata store of {self.path} was dropped without close()",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

    async def _read(self, act: Callable[[Tree, Job[T]], T]) -> T:
        self._check_open()
        return await Job(self._worker, act, writes=False, timeout_ms=self._timeout_ms).answer()

    async def _write(self, act: Callable[[Tree, Job[T]], T]) -> T:
        self._check_open()
        return await Job(self._worker, act, writes=True, timeout_ms=self._timeout_ms).answer()

    def _check_open(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle("this metadata store was opened in another process, before a fork")
        if self._closed:
            raise WriterClosed("the metadata store is closed")
