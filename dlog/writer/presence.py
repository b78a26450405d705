"""Being present: the node where `if_dead`, `wait`, standbys and repairs look for a writer, or for a
job that fills a segment, for as long as it lives, and no longer.

The node is made before the log names its writer, and before a job has a ledger. From then on it is
kept true: a call that failed is made again until the node is there. A session can be lost under a
handle that is well, since the metadata store was away for longer than it believes in anybody; then
the node is made in another session. Somebody may have deleted it: so it is looked at from time to
time. All of this by a timer, so that a thousand idle writers have no task each. While the node is
missing, `wait` says so and why.

The node stands below the log's, and may outlive it: an idle writer is told of nothing when its log
is removed, or taken by another writer. So the handle looks at the log from time to time, and behind
each node that it makes late, and withdraws when the log is gone or another's.

A session outlives many writers: one that died, or whose opening failed when it had claimed the log
already, still holds it by name. With its node left behind, polite openers would wait for it as long
as its process lives, those of that very process first of all. So it goes with its writer; the store
is asked until it took it away, as long as the client is open. Advice only: nothing that is safe
rests on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from dlog.drive import Driver, Stores
from dlog.effects import Procedure
from dlog.errors import AlreadyExists, DlogError, LeaseLost, NotFound, Outcome, WriterClosed
from dlog.meta.store import Session
from dlog.reason import ReasonCode, Wait, told_of
from dlog.writer.present import is_lost, withdraw

CHECK_S = 1.0  # is the session there? And so long after a call that failed it is made again
LOOKS = 10  # every so many checks, the node itself is looked at
LOG_LOOKS = 60  # and the log's, by a writer that may be idle while its log is removed
LATE_S = (1.0, 4.0, 15.0)  # when a creation that nobody answered may have come true

_log = logging.getLogger("dlog.writer")


class Presence:
    """Of one handle, from the first `make` until `withdraw`."""

    def __init__(self, stores: Stores, path: str, value: bytes) -> None:
        self._stores = stores
        self._path, self._value = path, value
        self._loop = asyncio.get_running_loop()
        self._driver = Driver(stores.meta, stores.ledgers)
        self._session: Session | None = None  # that our node belongs to, as far as we know
        self._unsure_in: Session | None = None  # a creation in it had no answer
        self._is_over: Callable[[], Procedure[bool]] | None = None
        self._over_looks = LOOKS
        self._was_late = False  # the node was made behind the opening: is the log still there?
        self._missing_since_s: float | None = None
        self._failure: DlogError | None = None  # of the last try to make it
        self._checks = 0
        self._timer: asyncio.TimerHandle | None = None
        self._making: asyncio.Task[int] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._stopped = False
        self._leaving: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()  # once, to take it away

    async def make(self) -> int:
        """Make the node; its version. From now on it is kept, also when this fails.
        `WriterClosed` behind `withdraw` or `stop`."""
        if self._stopped:
            raise WriterClosed(f"the handle that was present at {self._path} is closed")
        if self._timer is None:
            self._misses()
            self._timer = self._loop.call_later(CHECK_S, self._check)
        return await asyncio.shield(self._made())

    def until(self, is_over: Callable[[], Procedure[bool]]) -> None:
        """From now on, withdraw by itself once this is true. It is asked with every look at the
        node, and behind each node that is made late."""
        self._is_over = is_over

    def until_lost(self, log_path: str, token: str) -> None:
        """From now on, withdraw by itself once the log is gone, or another writer's."""
        self._is_over, self._over_looks = lambda: is_lost(log_path, token), LOG_LOOKS

    def wait(self) -> Wait | None:
        """Since when the node is missing, and why. None while it is there, as far as we know."""
        if self._stopped or self._missing_since_s is None:
            return None
        cause = "" if self._failure is None else f" ({self._failure})"
        return Wait(
            ReasonCode.NOT_PRESENT,
            f"others may take this handle for dead: its presence node cannot be made yet{cause}",
            {} if self._failure is None else told_of(self._failure),
            self._missing_since_s,
        )

    def stop(self) -> None:
        """Keep it no longer: the client closes, and the node goes with its session."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._looking, self._making):
            if task is not None:
                task.cancel()

    def withdraw(self) -> None:
        """From now on nobody is here. Goes on by itself; idempotent."""
        if self._leaving is not None:
            return
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._leaving = self._loop.create_task(self._leave())
        if self._stores.sessions is not None:
            self._stores.sessions.keep(self._leaving)

    async def withdrawn(self, patience_s: float | None = None) -> None:
        """The store took it away, or was asked once and could not."""
        self.withdraw()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._asked.wait()

    async def _leave(self) -> None:
        try:
            if self._looking is not None and self._looking is not asyncio.current_task():
                self._looking.cancel()
            if self._making is not None:  # what it makes is there only once it has ended
                await asyncio.wait([self._making])
            for pause_s in (0.0, *(LATE_S if self._unsure_in is not None else ())):
                await asyncio.sleep(pause_s)
                await self._driver.run(withdraw(self._path, self._stores.chance, self._asked.set))
                self._asked.set()
        except DlogError as error:
            _log.info("%s goes with its session, which ends now: %s", self._path, error)
        finally:
            if self._making is not None:
                self._making.cancel()
            self._asked.set()

    # --- keeping it true

    def _check(self) -> None:
        sessions = self._stores.sessions
        if self._stopped or (sessions is not None and sessions.closed):
            return
        self._checks += 1
        if self._session is None or self._session.lost.is_set():
            self._misses()
            self._was_late = True
            self._made()
        elif self._looking is None or self._looking.done():
            is_due = self._was_late or self._checks % self._over_looks == 0
            if is_due or self._checks % LOOKS == 0:
                self._was_late = False
                self._looking = self._loop.create_task(self._look(is_due))
        self._timer = self._loop.call_later(CHECK_S, self._check)

    def _made(self) -> asyncio.Task[int]:
        if self._making is None or self._making.done():
            self._making = self._loop.create_task(self._make())
            self._making.add_done_callback(self._tell)
        return self._making

    def _tell(self, making: asyncio.Task[int]) -> None:
        if not making.cancelled() and (error := making.exception()) is not None:
            self._failure = error if isinstance(error, DlogError) else None
            _log.info("not present at %s: %s", self._path, error)

    def _misses(self) -> None:
        if self._missing_since_s is None:
            self._missing_since_s = self._stores.clock.monotonic_s()
            self._failure = None

    def _belongs_to(self, session: Session) -> None:
        """The node is there, and goes with this session."""
        self._session = session
        self._missing_since_s = None

    async def _make(self) -> int:
        try:
            return await self._create()
        except LeaseLost:  # between two steps: the next one is in another session
            return await self._create()

    async def _create(self) -> int:
        stores = self._stores
        meta = stores.meta
        if stores.sessions is None:
            session = await meta.session()
        else:
            ours, session = await stores.sessions.living()
            meta = ours or meta
        again = self._session is not None
        try:
            version = (await meta.create(self._path, self._value, ephemeral=True)).version
        except AlreadyExists:
            if not again or self._unsure_in is session:
                self._belongs_to(session)
                raise
            # Of the session before, which is about to go: look again.
            return (await meta.get(self._path)).version
        except DlogError as error:
            if error.outcome is Outcome.UNKNOWN:
                self._unsure_in = session
            raise
        self._belongs_to(session)
        if again:
            _log.info("present again at %s", self._path)
        return version

    async def _look(self, is_due: bool) -> None:
        """Is the node there, and, when that is due, is there anything left to be present for?"""
        try:
            if is_due and self._is_over is not None and await self._driver.run(self._is_over()):
                _log.info("present at %s no longer: the log is gone, or another's", self._path)
                self.withdraw()
                return
            await self._stores.meta.get(self._path)
        except NotFound:
            self._session = None
            self._misses()
        except DlogError as error:
            _log.debug("whether %s is there is not known: %s", self._path, error)
