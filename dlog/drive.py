"""The driver of procedures: performs effects on the two stores and feeds the answers back. It
decides nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Protocol

from dlog import trace
from dlog.chance import Chance
from dlog.clock import Clock
from dlog.effects import (
    Answer,
    BirthLedger,
    CloseLedger,
    CreateLedger,
    CreateNode,
    DeleteLedger,
    DeleteNode,
    Effect,
    ListNodes,
    Pause,
    Procedure,
    ReadEntries,
    ReadNode,
    RecoverLedger,
    ReplaceNode,
    Together,
    WaitNode,
)
from dlog.errors import Broken, DlogError, Unavailable
from dlog.ledger.store import Appender, AppenderListener, LedgerStore
from dlog.meta.layout import Layout
from dlog.meta.store import MetaStore


class Driver:
    """Performs effects for one handle. Appenders that its procedures create are kept here, by
    ledger id."""

    def __init__(
        self, meta: MetaStore, ledgers: LedgerStore, listener: AppenderListener | None = None
    ) -> None:
        self.meta = meta
        self.ledgers = ledgers
        self.appenders: dict[int, Appender] = {}
        self.in_the_way: Unavailable | None = None  # what a procedure meets again and again
        self._listener = listener

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
                try:
                    answer = await self._around(effect)
                except DlogError as refused:
                    error = refused
                self._mind(effect, error)
        finally:
            procedure.close()

    def _mind(self, effect: Effect, error: DlogError | None) -> None:
        if isinstance(error, Unavailable):
            self.in_the_way = error
        elif error is None and not isinstance(effect, (ReadNode, Pause)):
            # Something was done. That a node can be read says nothing: often it still can.
            self.in_the_way = None

    async def _around(self, effect: Effect) -> Any:
        if not effect.point:
            return await self.perform(effect)
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
            case RecoverLedger(ledger_id=ledger_id):
                return await self.ledgers.recover(ledger_id)
            case CloseLedger(ledger_id=ledger_id):
                return await self.appenders[ledger_id].close()
            case DeleteLedger(ledger_id=ledger_id):
                self.let_go(ledger_id)
                return await self.ledgers.delete(ledger_id)
            case ReadEntries(ledger_id=ledger_id, entries=entries):
                return await self._read_entries(ledger_id, entries)
            case Pause(seconds=seconds):
                return await asyncio.sleep(seconds)
            case Together(procedures=procedures):
                return await self._together(procedures)
            case _:
                raise Broken(f"no driver for {type(effect).__name__}")

    async def _read_entries(self, ledger_id: int, entries: tuple[int, ...]) -> list[bytes]:
        reader = await self.ledgers.open(ledger_id)
        try:
            return [bytes((await reader.read(e, e, bytes_max=1))[0]) for e in entries]
        finally:
            await reader.close()

    async def _together(self, procedures: tuple[Procedure[Any], ...]) -> list[Any]:
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


@dataclass(frozen=True, slots=True)
class Stores:
    """What a client hands to the handles it opens."""

    meta: MetaStore
    ledgers: LedgerStore
    layout: Layout
    clock: Clock
    chance: Chance


class Closeable(Protocol):
    async def close(self) -> None: ...
