"""Reading ahead: drives the core's walk before the user asks, within a bound of bytes."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any, TypeVar

from dlog.drive import Driver, Stores
from dlog.effects import (
    Deliver,
    Effect,
    LastReadable,
    LookAtLedger,
    Procedure,
    ReadRun,
    WaitPast,
)
from dlog.errors import DlogError, Handle, as_broken
from dlog.ledger.store import LedgerReader, PrefersCopy
from dlog.options import ReaderOptions
from dlog.progress import Progress
from dlog.reader.core import ReaderCore, ReaderState
from dlog.reader.message import MessageBatch
from dlog.reader.segments import SegmentView
from dlog.reader.watch import ReaderWatch

_log = logging.getLogger("dlog.reader")

OPEN_LEDGERS_MAX = 8  # readers of ledgers kept open by one reader of a log

Found = TypeVar("Found")


class ReaderDriver(Driver):
    """The effects of reading the log of `view`. Keeps a few ledgers open, the most recently used
    ones."""

    def __init__(self, stores: Stores, view: SegmentView) -> None:
        super().__init__(stores.meta, stores.ledgers, clock=stores.clock, metrics=stores.metrics)
        self._view = view
        self.copy: int | None = None  # to read, of those that a ledger has; any if None
        self._open: dict[int, LedgerReader] = {}

    async def perform(self, effect: Effect) -> Any:
        match effect:
            case ReadRun(ledger_id=ledger_id, first_entry=first, last_entry=last, bytes_max=size):
                return await (await self._ledger(ledger_id)).read(first, last, bytes_max=size)
            case LastReadable(ledger_id=ledger_id):
                return await (await self._ledger(ledger_id)).last_readable()
            case LookAtLedger(ledger_id=ledger_id):
                return await (await self._ledger(ledger_id)).info()
            case WaitPast(ledger_id=ledger_id, last_entry=last, timeout_ms=timeout_ms, path=path):
                return await self._wait(ledger_id, last, timeout_ms, path)
            case _:
                return await super().perform(effect)

    def opened(self, ledger_id: int) -> LedgerReader | None:
        return self._open.get(ledger_id)

    async def _ledger(self, ledger_id: int) -> LedgerReader:
        reader = self._open.pop(ledger_id, None)
        if reader is None:
            reader = await self.ledgers.open(ledger_id, digest=self._view.digest)
            if self.copy is not None and isinstance(reader, PrefersCopy):
                reader.prefer(self.copy)
            if len(self._open) >= OPEN_LEDGERS_MAX:
                await self._open.pop(next(iter(self._open))).close()
        self._open[ledger_id] = reader
        return reader

    async def _wait(
        self, ledger_id: int, last: int, timeout_ms: float, path: str | None
    ) -> int | None:
        ledger = await self._ledger(ledger_id)
        if path is None:
            return await ledger.wait_past(last, timeout_ms)
        async with self.meta.watch(path) as watch:
            waits = [
                asyncio.ensure_future(ledger.wait_past(last, timeout_ms)),
                asyncio.ensure_future(watch.wait(timeout_ms)),
            ]
            try:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in done:
                    wait.result()  # one that failed is no news: who asked would ask at once
            finally:
                for wait in waits:
                    wait.cancel()
                await asyncio.gather(*waits, return_exceptions=True)
        return None

    async def close(self) -> None:
        readers, self._open = self._open, {}
        for reader in readers.values():
            await reader.close()


async def look(stores: Stores, view: SegmentView, procedure: Procedure[Found]) -> Found:
    """One procedure over the log of `view`, by a driver of its own."""
    driver = ReaderDriver(stores, view)
    try:
        return await driver.run(procedure)
    finally:
        await driver.close()


class Feed:
    """Reads ahead of whoever takes: one walk's deliveries, bounded in bytes, and how it ended."""

    def __init__(self, stores: Stores, core: ReaderCore, options: ReaderOptions) -> None:
        self.core = core
        self.driver = _FeedDriver(self, stores)
        self._options = options
        self._ready: deque[MessageBatch] = deque()
        self._bytes = 0
        self._progress = Progress()
        self._room: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._told = False  # its error was raised: the next call goes on
        self.watch: ReaderWatch | None = None  # of the reader that this feed is of

    def reconfigure(self, options: ReaderOptions) -> None:
        self._options = options
        self.core.reconfigure(options)
        if self._room is not None and not self._room.done():  # perhaps there is more room now
            self._room.set_result(None)

    def start(self) -> None:
        """Begin the core's walk, at the place where it is."""
        self.driver.copy = self.core.copy
        self._task = asyncio.get_running_loop().create_task(self.driver.run(self.core.walk()))
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if self._closing is not None:
            return
        if not task.cancelled():
            self._error = task.exception()
            if self._error is not None and not isinstance(self._error, DlogError):
                name = self.core.view.name
                _log.error("log %s: the reader broke", name, exc_info=self._error)
                self._error = as_broken(self._error, f"the reader of log {name!r}", log=name)
        self._ended = True
        self._progress.tell()

    async def deliver(self, batches: list[MessageBatch]) -> None:
        self._ready.extend(batches)
        self._bytes += sum(batch.bytes for batch in batches)
        if self.watch is not None:
            self.watch.read(batches, self._bytes)
        self._progress.tell()
        while self._bytes >= self._options.read_ahead_bytes:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    async def take(self, *, wait: bool = True) -> list[MessageBatch]:
        """All that is read and not yet taken, at least one batch; [] at the end (or, without
        `wait`, now). Raises what ended the walk; if the handle is still usable, the next call goes
        on where it stood."""
        if self._told and self._closing is None:
            self._told = self._ended = False
            self._error = None
            self.start()
        if wait:  # several may: each looks again whenever something comes, and at the end
            await self._progress.until(lambda: self._ready or self._ended)
        if not self._ready:
            if not self._ended:
                return []
            if isinstance(self._error, DlogError):
                self._told = self._error.handle is Handle.USABLE
                raise self._error.again()
            if self._error is not None:
                raise self._error
            return []
        batches = list(self._ready)
        self._ready.clear()
        self._bytes = 0
        if self.watch is not None:
            self.watch.taken()
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        return batches

    def stop_at(self, seq: int) -> None:
        """The end is there, or where it was if that is before. A walk that came so far and waits
        need not be woken: whoever takes is told."""
        core = self.core
        core.end_seq = seq if core.end_seq is None else min(core.end_seq, seq)
        if core.place.seq is not None and core.place.seq >= seq:
            self._ended = True
            self._progress.tell()

    @property
    def at_tail(self) -> bool:
        """Behind a segment that ended, not before it was looked for one that follows."""
        core = self.core
        waits = core.state in (ReaderState.TAILING, ReaderState.ENDED)
        if core.state is ReaderState.CROSSING:
            waits = core.blocked is not None
        return waits and core.trouble is None and not self._ready

    @property
    def has_ended(self) -> bool:
        """It came to where it ends: nothing more will come, and what it read may still lie here."""
        return self.core.state is ReaderState.ENDED

    @property
    def ahead_bytes(self) -> int:
        """Read and not taken."""
        return self._bytes

    @property
    def has_messages(self) -> bool:
        return bool(self._ready)

    @property
    def is_full(self) -> bool:
        """The walk rests until somebody takes."""
        return self._room is not None and not self._room.done()

    @property
    def error(self) -> DlogError | None:
        return self._error if isinstance(self._error, DlogError) else None

    @property
    def failed(self) -> bool:
        return self._error is not None

    async def close(self) -> None:
        """Whoever takes is told that this is the end. Cancelling abandons the wait only."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
            self._ended = True
            self._progress.tell()
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        task = self._task
        try:
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
                defect = None if task.cancelled() else task.exception()
                if not isinstance(defect, (DlogError, type(None))) and self._error is None:
                    task.result()  # it must be seen
        finally:
            await self.driver.close()

    def abandon(self) -> None:
        """Stop without waiting: for a reader that nobody holds any more."""
        if self.watch is not None:
            self.watch.stop()
        if self._task is not None:
            self._task.cancel()


class _FeedDriver(ReaderDriver):
    def __init__(self, feed: Feed, stores: Stores) -> None:
        super().__init__(stores, feed.core.view)
        self._feed = feed

    async def perform(self, effect: Effect) -> Any:
        watch = self._feed.watch
        if watch is not None:
            watch.goes_on(self._feed)
        if isinstance(effect, Deliver):
            return await self._feed.deliver(list(effect.batches))
        return await super().perform(effect)
