"""Watches on ZooKeeper: a stat to compare, and a bell that says when to compare again.

ZooKeeper's watches fire once, one kind for a node and another for its children, and are lost with
the connection; kazoo cannot take one back. So there is one `Bell` per path for all who wait there,
armed anew after each ring; whoever hears it looks, and only a difference counts. Looking also
happens every few seconds without any ring: a watch is a hint, and a hint may get lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from dlog.errors import ConfigError, Timeout, Unavailable
from dlog.meta.zookeeper_client import call_on

POLL_S = 5.0


class Sight(NamedTuple):
    """What changes when a node or the list of its children does: the transactions that made it,
    last wrote it, last changed its children. None stands for a node that is not there."""

    created: int
    written: int
    children: int


class Bell:
    """Rings for everybody who listens at one path."""

    def __init__(self) -> None:
        self.armed = False  # the server will tell; it tells once
        self._loop = asyncio.get_running_loop()
        self._listeners: set[asyncio.Event] = set()
        self._seen: Sight | str | None = "nothing yet"  # by whoever armed it last

    @property
    def is_idle(self) -> bool:
        return not self.armed and not self._listeners

    def on_event(self, event: Any) -> None:
        """On kazoo's thread: a change, or the loss of the connection and all watches with it."""
        call_on(self._loop, self.ring)

    def ring(self) -> None:
        self.armed = False
        self._wake()

    def saw(self, sight: Sight | None) -> None:
        """What whoever armed it saw. It rings for nothing before that, and others, who found it
        being armed, may have looked before: they look again."""
        if sight != self._seen:
            self._seen = sight
            self._wake()

    def _wake(self) -> None:
        for listener in self._listeners:
            listener.set()

    @contextmanager
    def heard(self) -> Iterator[asyncio.Event]:
        listener = asyncio.Event()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)


class Watched(Protocol):
    """What a watch needs of its store."""

    def check_open(self) -> None: ...

    def bell(self, path: str) -> Bell: ...

    async def look(self, path: str) -> Sight | None: ...

    async def arm_and_look(self, path: str, bell: Bell) -> Sight | None:
        """The bell rings for every change after what this saw."""
        ...


class ZooKeeperWatch:
    def __init__(self, store: Watched, path: str) -> None:
        self._store = store
        self._path = path
        self._base: Sight | None = None
        self._entered = False

    async def wait(self, timeout_ms: float) -> bool:
        if not self._entered:
            raise ConfigError("enter the watch first: `async with store.watch(path) as watch`")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._changed()
        except TimeoutError:
            return False
        return True

    async def _changed(self) -> None:
        while True:
            self._store.check_open()
            bell = self._store.bell(self._path)
            with bell.heard() as rung:
                # While ZooKeeper is away nothing is known; its return rings the bell, or the
                # time ends.
                with suppress(Unavailable, Timeout):
                    if self._is_new(await self._store.look(self._path)):
                        return
                    # Only now, that there is something to wait for: an armed bell nobody listens
                    # to stays until the node changes.
                    if not bell.armed:
                        sight = await self._store.arm_and_look(self._path, bell)
                        bell.saw(sight)
                        if self._is_new(sight):
                            return
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await rung.wait()

    def _is_new(self, sight: Sight | None) -> bool:
        before, self._base = self._base, sight
        return sight != before

    async def __aenter__(self) -> ZooKeeperWatch:
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
