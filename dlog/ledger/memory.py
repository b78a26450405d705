"""Ledgers in memory: the smallest honest implementation of the contract, with fencing.

A `MemoryLedgers` is what a cluster would be, each `MemoryLedgerStore` one client of it. Clients may
live on different event loops, so the world has a lock, held for a few list operations. Nothing is
confirmed in the call that submits it, and nothing is readable before it was published: a program
that works here has not come to rely on a kindness that the other backends do not have.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakSet

from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.errors import (
    ConfigError,
    DlogError,
    Fenced,
    ForkedHandle,
    NotFound,
    TooLarge,
    WriterClosed,
    as_broken,
    check,
)
from dlog.ledger.store import (
    AppenderListener,
    Buffer,
    ClosedLedger,
    LedgerInfo,
    LedgerSpec,
    LedgerState,
    check_digest,
)
from dlog.limits import LEDGER_ENTRY_BYTES_MAX

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


@dataclass(slots=True)
class _Ledger:
    spec: LedgerSpec
    made_us: int
    entries: list[bytes] = field(default_factory=list)  # the confirmed ones
    bytes: int = 0
    published: int = -1
    closed: ClosedLedger | None = None
    deleted: bool = False
    waiters: list[_Waiter] = field(default_factory=list)

    @property
    def readable(self) -> int:
        if self.deleted:
            return -1
        return self.published if self.closed is None else self.closed.last_entry

    @property
    def ended(self) -> bool:
        return self.deleted or self.closed is not None

    def close(self) -> ClosedLedger:
        if self.closed is None:
            self.closed = ClosedLedger(len(self.entries) - 1, self.bytes)
            self.wake()
        return self.closed

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for loop, waiter in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, waiter)


class MemoryLedgers:
    """What the stores of one name share. Every method is one atomic step."""

    _named: ClassVar[dict[str, MemoryLedgers]] = {}
    _named_lock: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def named(cls, name: str) -> MemoryLedgers:
        """The same world for the same name, as long as the process lives."""
        with cls._named_lock:
            return cls._named.setdefault(name, cls())

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._ledgers: dict[int, _Ledger] = {}
        self._next_id = 0

    def create(self, spec: LedgerSpec) -> int:
        with self._lock:
            ledger_id = self._next_id
            self._next_id += 1
            self._ledgers[ledger_id] = _Ledger(spec, self._clock.wall_us())
            return ledger_id

    def _ledger(self, ledger_id: int) -> _Ledger:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            raise NotFound(f"there is no ledger {ledger_id}", ledger_id=ledger_id)
        return ledger

    def info(self, ledger_id: int) -> LedgerInfo:
        with self._lock:
            ledger = self._ledger(ledger_id)
            state = LedgerState.OPEN if ledger.closed is None else LedgerState.CLOSED
            return LedgerInfo(ledger_id, state, ledger.closed, ledger.spec, ledger.made_us)

    def add(self, ledger_id: int, entries: list[bytes], last_confirmed: int) -> int:
        """The appender's run. Its last entry carries `last_confirmed`, which is readable from now
        on; the published entry is returned. `Fenced`."""
        with self._lock:
            ledger = self._open_ledger(ledger_id)
            ledger.entries += entries
            ledger.bytes += sum(map(len, entries))
            self._publish(ledger, last_confirmed)
            return ledger.published

    def publish(self, ledger_id: int, last_entry: int) -> None:
        with self._lock:
            self._publish(self._open_ledger(ledger_id), last_entry)

    def _open_ledger(self, ledger_id: int) -> _Ledger:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or ledger.closed is not None:
            raise Fenced(
                f"ledger {ledger_id} was recovered, closed or deleted by somebody else",
                ledger_id=ledger_id,
            )
        return ledger

    @staticmethod
    def _publish(ledger: _Ledger, last_entry: int) -> None:
        if last_entry > ledger.published:
            ledger.published = last_entry
            ledger.wake()

    def close(self, ledger_id: int) -> ClosedLedger:
        """At the last confirmed entry; of a closed ledger its end."""
        with self._lock:
            return self._ledger(ledger_id).close()

    def delete(self, ledger_id: int) -> None:
        with self._lock:
            ledger = self._ledgers.pop(ledger_id, None)
            if ledger is not None:
                ledger.deleted = True
                ledger.wake()

    def ids(self) -> list[int]:
        with self._lock:
            return sorted(self._ledgers)

    def readable(self, ledger_id: int) -> int:
        with self._lock:
            ledger = self._ledgers.get(ledger_id)
            return -1 if ledger is None else ledger.readable

    def entries(self, ledger_id: int, first_entry: int, last_entry: int) -> list[bytes]:
        with self._lock:
            ledger = self._ledger(ledger_id)
            if not 0 <= first_entry <= last_entry:
                raise ConfigError(f"no entries to read from {first_entry} to {last_entry}")
            if last_entry > ledger.readable:
                raise ConfigError(
                    f"entry {last_entry} is not readable; the last one is {ledger.readable}"
                )
            return ledger.entries[first_entry : last_entry + 1]

    def waiter_past(self, ledger_id: int, last_entry: int) -> asyncio.Future[None] | None:
        """Settled when something changes; None when there is nothing to wait for."""
        with self._lock:
            ledger = self._ledgers.get(ledger_id)
            if ledger is None or ledger.ended or ledger.readable > last_entry:
                return None
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            ledger.waiters = [kept for kept in ledger.waiters if not kept[1].done()]
            ledger.waiters.append((loop, waiter))
            return waiter


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class MemoryAppender:
    publish_is_free = True

    def __init__(self, world: MemoryLedgers, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self._world = world
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._listener: AppenderListener | None = None
        self._birth: asyncio.Future[None] | None = None
        self._waiting: list[bytes] = []
        self._carried = -1  # last confirmed when the newest waiting entry was submitted
        self._next_entry = 0
        self._last_confirmed = -1
        self._published = -1
        self._failure: DlogError | None = None
        self._closing = False
        self._abandoned = False
        self._closed: ClosedLedger | None = None

    def listen(self, listener: AppenderListener) -> None:
        if self._listener is not None or self._next_entry > 1:
            raise ConfigError("an appender has one listener, and it listens before the first entry")
        self._listener = listener

    async def birth(self, buffers: Sequence[Buffer]) -> None:
        self._check_usable()
        if self._next_entry > 0:
            raise ConfigError("the birth is entry 0: nothing is submitted before it")
        self._birth = self._loop.create_future()
        self._birth.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._put(buffers)
        await asyncio.shield(self._birth)

    def submit(self, buffers: Sequence[Buffer]) -> int:
        if self._listener is None:
            raise ConfigError("an appender has a listener before anything is submitted")
        self._check_usable()
        return self._put(buffers)

    def _check_usable(self) -> None:
        _check_process(self._pid)
        if self._closing or self._abandoned:
            raise WriterClosed(f"ledger {self.ledger_id} was closed", ledger_id=self.ledger_id)

    def _put(self, buffers: Sequence[Buffer]) -> int:
        entry = b"".join(buffers)
        if len(entry) > LEDGER_ENTRY_BYTES_MAX:
            raise TooLarge(
                f"an entry has at most {LEDGER_ENTRY_BYTES_MAX} bytes, not {len(entry)}",
                ledger_id=self.ledger_id,
            )
        entry_id = self._next_entry
        self._next_entry = entry_id + 1
        if self._failure is None:
            if not self._waiting:
                self._loop.call_soon(self._confirm)
            self._waiting.append(entry)
            self._carried = self._last_confirmed
        return entry_id

    def _confirm(self) -> None:
        run, self._waiting = self._waiting, []
        if self._closing or self._abandoned or self._failure is not None:
            return
        try:
            self._add(run)
        except Exception as error:  # noqa: BLE001 - fenced, or a defect: it ends, and says so
            self._fail(as_broken(error, f"ledger {self.ledger_id}", ledger_id=self.ledger_id))

    def _add(self, run: list[bytes]) -> None:
        published = self._world.add(self.ledger_id, run, self._carried)
        self._last_confirmed += len(run)
        if self._birth is not None and not self._birth.done():
            self._birth.set_result(None)
        if self._listener is not None:
            self._listener.on_confirmed(self.ledger_id, self._last_confirmed)
        self._tell_published(published)

    def _fail(self, error: DlogError) -> None:
        self._failure = error
        if self._birth is not None and not self._birth.done():
            self._birth.set_exception(error.again())
        if self._listener is not None:
            self._listener.on_failed(self.ledger_id, error)

    def publish(self) -> None:
        if self._abandoned or self._closing or self._failure is not None:
            return
        _check_process(self._pid)
        try:
            self._world.publish(self.ledger_id, self._last_confirmed)
        except Fenced as error:
            # Somebody closed it at or behind our last entry. A writer that waits to see it
            # published would wait for ever on a listener that hears nothing more.
            self._fail(error)
            return
        self._tell_published(self._last_confirmed)

    def _tell_published(self, last_entry: int) -> None:
        if last_entry > self._published:
            self._published = last_entry
            if self._listener is not None:
                self._listener.on_published(self.ledger_id, last_entry)

    async def close(self) -> ClosedLedger:
        _check_process(self._pid)
        if self._closed is not None:
            return self._closed
        if self._abandoned:
            raise WriterClosed(f"ledger {self.ledger_id} was abandoned", ledger_id=self.ledger_id)
        self._closing = True
        await asyncio.sleep(0)
        try:
            closed = self._world.close(self.ledger_id)
        except NotFound as error:
            raise Fenced(
                f"ledger {self.ledger_id} was deleted", ledger_id=self.ledger_id
            ) from error
        if closed.last_entry != self._last_confirmed:
            raise Fenced(
                f"ledger {self.ledger_id} was closed at entry {closed.last_entry} by somebody else",
                ledger_id=self.ledger_id,
            )
        self._closed = closed
        return closed

    def abandon(self) -> None:
        if os.getpid() == self._pid and not self._abandoned:
            self._abandoned = True
            if self._birth is not None and not self._birth.done():
                self._birth.set_exception(
                    WriterClosed(f"ledger {self.ledger_id} was abandoned", ledger_id=self.ledger_id)
                )


class MemoryReader:
    def __init__(self, world: MemoryLedgers, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self._world = world
        self._pid = os.getpid()
        self._closed = False

    def _check_usable(self) -> None:
        _check_process(self._pid)
        if self._closed:
            raise ConfigError(f"the reader of ledger {self.ledger_id} was closed")

    async def info(self) -> LedgerInfo:
        self._check_usable()
        return self._world.info(self.ledger_id)

    async def last_readable(self) -> int:
        self._check_usable()
        self._world.info(self.ledger_id)  # `NotFound`
        return self._world.readable(self.ledger_id)

    async def read(self, first_entry: int, last_entry: int, *, bytes_max: int) -> list[memoryview]:
        self._check_usable()
        await asyncio.sleep(0)
        found = self._world.entries(self.ledger_id, first_entry, last_entry)
        entries: list[memoryview] = []
        size = 0
        for entry in found:
            size += len(entry)
            if entries and size > bytes_max:
                break
            entries.append(memoryview(entry))
        check(len(entries) > 0, "a read returns at least one entry", first_entry, last_entry)
        return entries

    async def wait_past(self, last_entry: int, timeout_ms: float) -> int:
        self._check_usable()
        waiter = self._world.waiter_past(self.ledger_id, last_entry)
        if waiter is not None:
            timer = asyncio.get_running_loop().call_later(
                max(0.0, timeout_ms) / 1000, _settle, waiter
            )
            try:
                await waiter
            finally:
                timer.cancel()
        return self._world.readable(self.ledger_id)

    async def close(self) -> None:
        self._closed = True


class MemoryLedgerStore:
    serves_one_root = True

    def __init__(self, world: MemoryLedgers) -> None:
        self._world = world
        self._pid = os.getpid()
        self._closed = False
        self._appenders: WeakSet[MemoryAppender] = WeakSet()
        self._readers: WeakSet[MemoryReader] = WeakSet()

    async def _turn(self) -> None:
        """Each call yields to the loop before it acts, as a real store would."""
        _check_process(self._pid)
        if self._closed:
            raise ConfigError("the ledger store was closed")
        await asyncio.sleep(0)

    async def create(self, spec: LedgerSpec) -> MemoryAppender:
        await self._turn()
        appender = MemoryAppender(self._world, self._world.create(spec))
        self._appenders.add(appender)
        return appender

    async def open(
        self, ledger_id: int, *, digest: str | None = None, closed: ClosedLedger | None = None
    ) -> MemoryReader:
        await self._turn()
        check_digest(ledger_id, self._world.info(ledger_id).spec.digest, digest)
        reader = MemoryReader(self._world, ledger_id)
        self._readers.add(reader)
        return reader

    async def info(self, ledger_id: int, *, digest: str | None = None) -> LedgerInfo:
        await self._turn()
        info = self._world.info(ledger_id)
        check_digest(ledger_id, info.spec.digest, digest)
        return info

    async def recover(
        self,
        ledger_id: int,
        *,
        digest: str | None = None,
        fenced: Callable[[], None] | None = None,
    ) -> ClosedLedger:
        await self._turn()
        info = self._world.info(ledger_id)
        if info.closed is None:
            check_digest(ledger_id, info.spec.digest, digest)
        return self._world.close(ledger_id)

    async def delete(self, ledger_id: int) -> None:
        await self._turn()
        self._world.delete(ledger_id)

    async def scan_ids(self) -> AsyncIterator[int]:
        await self._turn()
        for ledger_id in self._world.ids():
            yield ledger_id

    async def close(self) -> None:
        if os.getpid() != self._pid or self._closed:
            return
        self._closed = True
        for appender in list(self._appenders):
            appender.abandon()
        for reader in list(self._readers):
            await reader.close()


def _check_process(pid: int) -> None:
    if os.getpid() != pid:
        raise ForkedHandle(f"this handle was opened by process {pid}, before a fork", pid=pid)
