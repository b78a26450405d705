"""Being present: the node where `if_dead` and `wait` look for a writer, for as long as it lives,
and no longer.

Opening makes the node, and it ends with its session. But a session can be lost under a writer that
is well: the metadata store was away for longer than it believes in anybody. Appends go on, so the
writer should be found; without its node the next one that asks politely would take it for dead.
Looked at from time to time, by a timer, so that a thousand idle writers have no task each.

And a session outlives many writers: one that died, or whose opening failed when it had claimed the
log already, still holds it by name. With its node left behind, polite openers would wait for it as
long as its process lives, those of that very process first of all. So it goes with its writer; the
store is asked until it took it away, as long as the client is open. Advice only: nothing that is
safe rests on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from dlog.drive import Driver, Stores
from dlog.errors import AlreadyExists, DlogError
from dlog.meta.store import Session
from dlog.writer.takeover import withdraw

CHECK_S = 5.0

_log = logging.getLogger("dlog.writer")


class Presence:
    """Of one writer, from when it opened until `withdraw`."""

    def __init__(self, stores: Stores, path: str, value: bytes) -> None:
        self._stores = stores
        self._sessions = stores.sessions
        self._path, self._value = path, value
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None  # that our node belongs to, as far as we know
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._leaving: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()  # once, to take it away

    async def start(self) -> None:
        if self._sessions is None:
            return
        with contextlib.suppress(DlogError):  # then the first check finds out
            self._session = await self._sessions.first()
        if not self._stopped:
            self._check()

    def withdraw(self) -> None:
        """From now on nobody is here. Goes on by itself; idempotent."""
        if self._leaving is not None:
            return
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._leaving = self._loop.create_task(self._leave())
        if self._sessions is not None:
            self._sessions.keep(self._leaving)

    async def withdrawn(self, patience_s: float | None = None) -> None:
        """The store took it away, or was asked once and could not."""
        self.withdraw()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._asked.wait()

    async def _leave(self) -> None:
        stores = self._stores
        leaving = withdraw(self._path, stores.chance, self._asked.set)
        try:
            await Driver(stores.meta, stores.ledgers).run(leaving)
        except DlogError as error:
            _log.info("%s stays until its session ends: %s", self._path, error)
        finally:
            self._asked.set()

    def _check(self) -> None:
        is_lost = self._session is None or self._session.lost.is_set()
        if is_lost and self._task is None:
            self._task = self._loop.create_task(self._announce())
        self._timer = self._loop.call_later(CHECK_S, self._check)

    async def _announce(self) -> None:
        assert self._sessions is not None
        try:
            meta, session = await self._sessions.living()
            try:
                await meta.create(self._path, self._value, ephemeral=True)
            except AlreadyExists:
                if self._session is None:
                    self._session = session
                return  # else it is the old one, which is about to go: look again
            self._session = session
            _log.info("present again at %s, in a session of its own", self._path)
        except DlogError as error:
            _log.info("not present at %s: %s", self._path, error)
        finally:
            self._task = None
