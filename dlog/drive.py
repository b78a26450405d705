"""The driver of procedures: performs effects on the two stores and feeds the answers back. It
decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dlog import trace
from dlog.awaited import NEVER_AWAITED, Awaited
from dlog.chance import Chance
from dlog.clock import SYSTEM_CLOCK, Clock
from dlog.effects import (
    Answer,
    BirthLedger,
    CloseLedger,
    CreateLedger,
    CreateNode,
    DeleteLedger,
    DeleteNode,
    Effect,
    LastReadable,
    LetGo,
    ListNodes,
    LookAtLedger,
    Pause,
    Procedure,
    ReadEntries,
    ReadNode,
    ReadRun,
    RecoverLedger,
    ReplaceNode,
    Together,
    WaitNode,
)
from dlog.errors import Broken, DlogError, Outcome, Timeout, Unavailable
from dlog.ledger.store import Appender, AppenderListener, LedgerReader, LedgerStore
from dlog.meta.layout import Layout
from dlog.meta.store import MetaStore, Session
from dlog.metrics import NO_METRICS, Metrics, catalogue
from dlog.together import together

# The effects that are calls of the ledger store, as metrics name them.
LEDGER_CALLS: dict[type[Effect], str] = {
    CreateLedger: "create",
    BirthLedger: "birth",
    CloseLedger: "close",
    RecoverLedger: "recover",
    DeleteLedger: "delete",
    LookAtLedger: "info",
    LastReadable: "last_readable",
    ReadRun: "read",
}
SMALL_RUN_BYTES = 64 << 10  # control entries: births and seams


class Driver:
    """Performs effects for one handle. Appenders that its procedures create are kept here, by
    ledger id."""

    def __init__(
        self,
        meta: MetaStore,
        ledgers: LedgerStore,
        listener: AppenderListener | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self.meta = meta
        self.ledgers = ledgers
        self.appenders: dict[int, Appender] = {}
        self.in_the_way: Unavailable | None = None  # what a procedure meets again and again
        self.awaited: dict[int, Awaited] = {}  # what is under way, the oldest first
        self.announce: Callable[[], Awaitable[int]] | None = None  # presence: makes and keeps it
        self._listener = listener
        self._clock = clock
        self._metrics = metrics
        self._asked = 0

    async def run(self, procedure: Procedure[Answer]) -> Answer:
        answer: Any = None
        error: DlogError | None = None
        try:
            while True:
                try:
                    effect = procedure.send(answer) if error is None else procedure.throw(error)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
                answer, error = None, None
                self._asked += 1
                number = self._asked
                if not isinstance(effect, NEVER_AWAITED):
                    self.awaited[number] = Awaited(effect, self._clock.monotonic_s())
                try:
                    doing = self._around if effect.point else self.perform
                    answer = await doing(effect)
                except DlogError as refused:
                    error = refused
                finally:
                    awaited = self.awaited.pop(number, None)
                if awaited is not None and self._metrics is not NO_METRICS:
                    self._measure(awaited, error)
                self._mind(effect, error)
        finally:
            procedure.close()

    def _mind(self, effect: Effect, error: DlogError | None) -> None:
        if isinstance(error, Unavailable):
            self.in_the_way = error
        elif error is None and not isinstance(effect, (ReadNode, Pause)):
            # Something was done. That a node can be read says nothing: often it still can.
            self.in_the_way = None

    def _measure(self, awaited: Awaited, error: DlogError | None) -> None:
        call = LEDGER_CALLS.get(type(awaited.effect))
        if call is None:
            return
        metrics, labels = self._metrics, {"call": call}
        metrics.count(catalogue.LEDGER_CALLS.name, 1, labels)
        took_s = self._clock.monotonic_s() - awaited.since_s
        metrics.observe(catalogue.LEDGER_CALL.name, took_s, labels)
        if error is not None:
            told = {**labels, "error": type(error).__name__}
            metrics.count(catalogue.LEDGER_ERRORS.name, 1, told)

    async def _around(self, effect: Effect) -> Any:
        trace.before(effect.point)
        answer = await self.perform(effect)
        trace.after(effect.point)
        return answer

    async def perform(self, effect: Effect) -> Any:
        match effect:
            case ReadNode(path=path, fresh=fresh):
                if fresh:
                    await self.meta.sync()
                return await self.meta.get(path)
            case ReplaceNode(path=path, value=value, version=version):
                return await self.meta.put(path, value, version)
            case CreateNode(ephemeral=True) if self.announce is not None:
                return await self.announce()
            case CreateNode(path=path, value=value, ephemeral=ephemeral):
                return (await self.meta.create(path, value, ephemeral=ephemeral)).version
            case DeleteNode(path=path, version=version):
                return await self.meta.delete(path, version)
            case ListNodes(path=path):
                return await self.meta.children(path)
            case WaitNode(path=path, timeout_ms=timeout_ms):
                async with self.meta.watch(path) as watch:
                    return await watch.wait(timeout_ms)
            case CreateLedger(spec=spec):
                appender = await self.ledgers.create(spec)
                self.appenders[appender.ledger_id] = appender
                if self._listener is not None:
                    appender.listen(self._listener)
                return appender.ledger_id
            case BirthLedger(ledger_id=ledger_id, buffers=buffers):
                return await self.appenders[ledger_id].birth(buffers)
            case RecoverLedger(ledger_id=ledger_id, digest=digest, fenced=fenced):
                return await self.ledgers.recover(ledger_id, digest=digest, fenced=fenced)
            case CloseLedger(ledger_id=ledger_id):
                return await self.appenders[ledger_id].close()
            case LookAtLedger(ledger_id=ledger_id, digest=digest):
                return await self.ledgers.info(ledger_id, digest=digest)
            case DeleteLedger(ledger_id=ledger_id):
                self.let_go(ledger_id)
                return await self.ledgers.delete(ledger_id)
            case LetGo(ledger_id=ledger_id):
                self.let_go(ledger_id)
            case ReadEntries():
                reader = await self.ledgers.open(
                    effect.ledger_id, digest=effect.digest, closed=effect.closed
                )
                return await _read_entries(reader, effect.entries, effect.bytes_max)
            case Pause(seconds=seconds):
                return await asyncio.sleep(seconds)
            case Together(procedures=procedures):
                return await self._together(procedures)
            case _:
                raise Broken(f"no driver for {type(effect).__name__}")

    async def _together(self, procedures: tuple[Procedure[Any], ...]) -> list[Any]:
        if not procedures:
            return []
        tasks = [asyncio.ensure_future(self.run(procedure)) for procedure in procedures]
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:  # only when we were cancelled ourselves is any of them still running
                task.cancel()
        return [task.result() for task in tasks]

    def let_go(self, ledger_id: int) -> None:
        """Abandon an appender of ours, if it is still held."""
        appender = self.appenders.pop(ledger_id, None)
        if appender is not None:
            appender.abandon()

    def let_all_go(self) -> None:
        for ledger_id in list(self.appenders):
            self.let_go(ledger_id)


def too_late(driver: Driver, what: str, log: str, timeout_ms: float) -> DlogError:
    """What is told when something took longer than it may: who is missing, if that was met."""
    missing = driver.in_the_way
    if missing is None:
        return Timeout(
            f"log {log!r} could not be {what} within {timeout_ms:g} ms",
            log=log,
            elapsed_ms=timeout_ms,
        )
    twin = missing.again()
    twin.outcome = Outcome.UNKNOWN  # an earlier step may have been taken
    twin.__cause__ = missing
    return twin


async def _read_entries(
    reader: LedgerReader, entries: Sequence[int], bytes_max: int
) -> list[bytes]:
    """And closes the reader. Neighbours come together, all others beside them."""
    runs: list[tuple[int, int]] = []
    for entry_id in sorted(set(entries)):
        if runs and runs[-1][1] == entry_id - 1:
            runs[-1] = (runs[-1][0], entry_id)
        else:
            runs.append((entry_id, entry_id))
    found: dict[int, bytes] = {}
    try:
        while runs:
            answers = await together(
                *(reader.read(first, last, bytes_max=bytes_max) for first, last in runs)
            )
            cut_short = []
            for (first, last), answer in zip(runs, answers, strict=True):
                found.update((each, bytes(raw)) for each, raw in enumerate(answer, first))
                if first + len(answer) <= last:  # by a large entry
                    cut_short.append((first + len(answer), last))
            runs = cut_short
    finally:
        await reader.close()
    return [found[entry_id] for entry_id in entries]


class Sessions:
    """The session that a client's presence stands in: its store's, and once that is lost, one of
    another store, opened for that alone. Belongs to one event loop."""

    def __init__(self, meta: MetaStore, reopen: Callable[[], MetaStore]) -> None:
        self._meta = meta
        self._reopen = reopen
        self._ours: MetaStore | None = None
        self._changing = asyncio.Lock()
        self._farewells: set[asyncio.Task[None]] = set()
        self._closed = False

    def keep(self, farewell: asyncio.Task[None]) -> None:
        """Somebody who was present goes; until our close, which ends what they were present in."""
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)

    @property
    def closed(self) -> bool:
        return self._closed

    async def living(self) -> tuple[MetaStore | None, Session]:
        """A session that is not known to be lost, and its store; None for the client's own. Fails
        as any call of a store does."""
        async with self._changing:
            session = await self._meta.session()
            if session.lost.is_set() and not self._closed:
                await self._close_ours()
                self._ours = self._meta = self._reopen()
                session = await self._meta.session()
            return self._ours, session

    async def close(self) -> None:
        self._closed = True
        farewells = list(self._farewells)
        for farewell in farewells:
            farewell.cancel()
        await asyncio.gather(*farewells, return_exceptions=True)
        async with self._changing:
            await self._close_ours()

    async def _close_ours(self) -> None:
        ours, self._ours = self._ours, None
        if ours is not None:
            await ours.close()


@dataclass(frozen=True, slots=True)
class Stores:
    """What a client hands to the handles it opens."""

    meta: MetaStore
    ledgers: LedgerStore
    layout: Layout
    clock: Clock
    chance: Chance
    sessions: Sessions | None = None  # None: whoever was present is not again
    metrics: Metrics = NO_METRICS


class Closeable(Protocol):
    async def close(self) -> None: ...
