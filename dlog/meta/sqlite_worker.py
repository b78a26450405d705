"""The one thread that works for a SQLite store: it owns the connection, one thing at a time.

Work is handed over by a queue and answered by `call_soon_threadsafe` on the caller's loop. A
`Job` is one call: it keeps its own deadline on the loop's side, so that a caller is never held up
by a busy worker, and it knows the moment up to which its write certainly did not happen. A `Vigil`
is one wait for a change; while there are any the thread polls `PRAGMA data_version`, and while
there are none it sleeps in the queue. (Something that hears of changes sooner, such as inotify on
the write-ahead log, would only have to `put(NUDGE)`.)

The thread is a daemon and holds the worker, never the store: a store that is dropped can be
collected, and says so.
"""

from __future__ import annotations

import asyncio
import enum
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from dlog.chance import Chance, backoff_s
from dlog.clock import Clock
from dlog.errors import Broken, DlogError, Outcome, Timeout, Unavailable, WriterClosed
from dlog.meta import sqlite_errors
from dlog.meta.sqlite_file import DatabaseFile
from dlog.meta.sqlite_sessions import SessionLocks
from dlog.meta.sqlite_tree import Sight, Tree

POLL_FIRST_S = 0.005  # a take-over that waits for a change should not wait for us
POLL_LAST_S = 0.050  # a quiet wait costs 20 looks of about 30 µs a second
POLL_GROWTH = 1.3
QUEUE_MAX = 10_000  # calls that wait for the thread; a second of its work
RETRY_LAST_S = 0.005  # a write transaction is as long as one fdatasync
GIVE_UP_EARLY_S = 0.05  # before the deadline: time to find out who is in the way, and to say so

T = TypeVar("T")


class _Phase(enum.Enum):
    WAITING = "waiting"  # certainly not happened yet
    ENTERED = "entered"  # may happen
    ABANDONED = "abandoned"  # the caller left before: never happens


class Abandoned(Exception):
    """Inside the worker only: nobody waits for this job any more."""


class Job(Generic[T]):
    """One call, from its caller's loop to the worker and back."""

    def __init__(
        self, worker: Worker, act: Callable[[Tree, Job[T]], T], *, writes: bool, timeout_ms: float
    ) -> None:
        self._worker = worker
        self._act = act
        self._writes = writes
        self._timeout_ms = timeout_ms
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[T] = self._loop.create_future()
        self._phase = _Phase.WAITING
        self._is_locked_out = False  # somebody else held the lock when the worker last tried
        self._began_s = worker.clock.monotonic_s()
        patience_s = timeout_ms / 1000
        self._give_up_s = self._began_s + patience_s - min(GIVE_UP_EARLY_S, patience_s / 4)

    # On the caller's loop.

    async def answer(self) -> T:
        timer = self._loop.call_later(self._timeout_ms / 1000, self._expire)
        try:
            self._worker.put(self)
            return await self._answer
        finally:
            timer.cancel()
            self._leave()

    def _expire(self) -> None:
        if self._answer.done():
            return
        certain = self._leave() or not self._writes
        path = self._worker.file.path
        if certain and self._is_locked_out:  # on a busy machine the worker may come too late to say
            self._answer.set_exception(sqlite_errors.locked_out(path, self._timeout_ms))
            return
        self._answer.set_exception(
            Timeout(
                f"no answer from {path} within {self._timeout_ms:g} ms",
                path=str(path),
                elapsed_ms=self._timeout_ms,
                outcome=Outcome.NOT_HAPPENED if certain else Outcome.UNKNOWN,
            )
        )

    def _leave(self) -> bool:
        """True when the job certainly never happens (or was only asked to read)."""
        with self._worker.turn_lock:
            if self._phase is _Phase.WAITING:
                self._phase = _Phase.ABANDONED
            return self._phase is _Phase.ABANDONED

    def _settle(self, result: T | None, error: DlogError | None) -> None:
        if self._answer.done():
            return
        if error is None:
            self._answer.set_result(result)  # type: ignore[arg-type]  # T may be None
        else:
            self._answer.set_exception(error)

    # On the worker's thread.

    def enter(self) -> None:
        with self._worker.turn_lock:
            if self._phase is _Phase.ABANDONED:
                raise Abandoned
            self._phase = _Phase.ENTERED
            self._is_locked_out = False

    def pause(self, attempt: int) -> None:
        if self._phase is _Phase.ABANDONED:
            raise Abandoned
        self._is_locked_out = True
        now_s = self._worker.clock.monotonic_s()
        if now_s >= self._give_up_s:
            raise sqlite_errors.locked_out(self._worker.file.path, (now_s - self._began_s) * 1000)
        self._worker.rest(attempt)

    def run(self, tree: Tree) -> None:
        if self._phase is _Phase.ABANDONED:
            return
        try:
            self._worker.file.open(self)
            result = self._act(tree, self)
        except Abandoned:
            return
        except DlogError as error:
            self.finish(None, error)
        except OSError as error:  # of a directory or a lock file: before anything was committed
            self.finish(None, sqlite_errors.denied_or_away(error, self._worker.file.path))
        else:
            self.finish(result, None)

    def finish(self, result: T | None, error: DlogError | None) -> None:
        call_on(self._loop, lambda: self._settle(result, error))


class Vigil:
    """One wait for a node to differ from `base`; the answer is what it differs to."""

    def __init__(self, path: str, base: Sight | None) -> None:
        self.path = path
        self.base = base  # None: what was there is not known, so anything differs
        self.stamp: tuple[int, int] | None = None  # of the last look
        self.over = False  # the caller has left
        self.answer: asyncio.Future[Sight | None] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()

    def finish(self, sight: Sight | None, error: DlogError | None) -> None:
        call_on(self._loop, lambda: self._settle(sight, error))

    def _settle(self, sight: Sight | None, error: DlogError | None) -> None:
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(sight)
        else:
            self.answer.set_exception(error)


class _Nudge(enum.Enum):
    NUDGE = "nudge"


NUDGE = _Nudge.NUDGE


class _InPassing:
    """The patience of a look that nobody asked for: none."""

    def pause(self, attempt: int) -> None:
        raise Abandoned

    def enter(self) -> None:
        raise Abandoned


_IN_PASSING = _InPassing()


class Worker:
    """The thread, its queue and its connection. Nothing starts before the first `put`."""

    def __init__(
        self,
        path: Path,
        sessions: SessionLocks,
        clock: Clock,
        chance: Chance,
        on_lost: Callable[[], None],
    ) -> None:
        self.file = DatabaseFile(path)
        self.clock = clock
        self.turn_lock = threading.Lock()
        self._sessions = sessions
        self._chance = chance
        self._items: queue.SimpleQueue[Job[Any] | Vigil | _Nudge] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._current: Job[Any] | None = None
        self._vigils: list[Vigil] = []
        self._pace_s = POLL_FIRST_S
        self._farewells: list[Callable[[], None]] | None = []  # None once they were said
        self._last_words: DlogError | None = None  # what late comers hear once the thread ended
        self._on_lost: Callable[[], None] | None = on_lost

    @property
    def started(self) -> bool:
        return self._thread is not None

    def put(self, item: Job[Any] | Vigil | _Nudge) -> None:
        if self._thread is None:
            self._start()
        if self._items.qsize() >= QUEUE_MAX:
            raise Unavailable(
                f"{QUEUE_MAX:,} calls wait for {self.file.path} already", path=str(self.file.path)
            )
        self._items.put(item)
        if self._last_words is not None:
            self._dismiss()  # whether we or the ending thread come first, no item stays behind

    def stop(self) -> None:
        """From any thread, also from a finalizer in the middle of anything: takes no lock."""
        self._stopping = True
        self._items.put(NUDGE)

    def call_at_end(self, farewell: Callable[[], None]) -> None:
        """`farewell` runs once, on the worker's thread, when all is closed; or here, if it is."""
        with self.turn_lock:
            if self._farewells is not None:
                self._farewells.append(farewell)
                return
        farewell()

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def rest(self, attempt: int) -> None:
        """Between two tries for a lock; short, because nothing interrupts it."""
        if self._stopping:
            raise WriterClosed("the metadata store was closed while the call waited for a lock")
        time.sleep(backoff_s(attempt, self._chance, base_s=0.0002, limit_s=RETRY_LAST_S))

    def _start(self) -> None:
        with self.turn_lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="dlog-meta-sqlite", daemon=True)
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        tree = Tree(self.file, self._sessions)
        try:
            while not self._stopping:
                item = self._next()
                if isinstance(item, Job):
                    self._current = item
                    item.run(tree)
                    self._current = None
                    self._mind_session()
                elif isinstance(item, Vigil):
                    self._vigils.append(item)
                    self._pace_s = POLL_FIRST_S
                if self._vigils:
                    self._look_around(tree)
                del item  # not kept while the thread sleeps: it may hold a megabyte
        finally:
            self._end()

    def _next(self) -> Job[Any] | Vigil | _Nudge | None:
        if not self._vigils:
            return self._items.get()
        try:
            return self._items.get(timeout=self._pace_s)
        except queue.Empty:
            self._pace_s = min(self._pace_s * POLL_GROWTH, POLL_LAST_S)
            return None

    def _look_around(self, tree: Tree) -> None:
        """Answer the vigils whose node changed. A death writes nothing, so nodes that could die
        are looked at every time."""
        self._vigils = [vigil for vigil in self._vigils if not vigil.over]
        if not self._vigils:
            return
        waiting = []
        try:
            self.file.open(_IN_PASSING)
            stamp = self.file.stamp(_IN_PASSING)
        except Abandoned:
            return
        except DlogError:
            stamp = None  # let everybody look for themselves: their call will name the trouble
        for vigil in self._vigils:
            if self._answered(vigil, stamp, tree):
                self._pace_s = POLL_FIRST_S
            else:
                waiting.append(vigil)
        self._vigils = waiting

    def _answered(self, vigil: Vigil, stamp: tuple[int, int] | None, tree: Tree) -> bool:
        base = vigil.base
        if stamp is None:
            vigil.finish(None, None)
            return True
        if base is not None and vigil.stamp == stamp and not base.sessions:
            return False
        try:
            sight = tree.look(_IN_PASSING, vigil.path)
        except Abandoned:
            return False
        except (DlogError, OSError):
            sight = None
        vigil.stamp = stamp
        if base is not None and sight == base:
            return False
        vigil.finish(sight, None)
        return True

    def _mind_session(self) -> None:
        if self._on_lost is not None and self._sessions.lost:
            self._on_lost()
            self._on_lost = None

    def _end(self) -> None:
        """Whatever ended the loop: nobody is left waiting, nothing is left open."""
        if self._stopping:
            self._last_words = WriterClosed("the metadata store is closed")
        else:
            self._last_words = Broken(f"the thread that worked for {self.file.path} ended")
        self._sessions.release()
        self.file.close()
        if self._current is not None:
            self._current.finish(None, self._last_words.again())
        for vigil in self._vigils:
            vigil.finish(None, self._last_words.again())
        self._dismiss()
        with self.turn_lock:
            farewells, self._farewells = self._farewells, None
        for farewell in farewells or ():
            farewell()

    def _dismiss(self) -> None:
        while self._last_words is not None:
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                break
            if not isinstance(item, _Nudge):
                item.finish(None, self._last_words.again())


def call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """From another thread."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():
            raise
        # The loop is gone, and with it everybody who waited there.
