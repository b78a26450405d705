"""A process of the world `streams-life`: a loop of virtual time, the simulated metadata, and
ledgers in memory that all processes share.

Ledgers answer late, fail, and lose their replies, as metadata does. A process may fall asleep or
die at each step: before a request leaves it, or while the request is on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import sys
from asyncio import events
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dlog.errors import ConfigError, Fenced, Outcome, Timeout, Unavailable
from dlog.ledger.memory import MemoryAppender, MemoryLedgers, MemoryLedgerStore
from dlog.ledger.store import ClosedLedger, LedgerSpec
from dlog.meta.store import MetaStore
from dlog.metrics import NO_METRICS, Metrics
from dlog.testing.sim.loop import SimHandle, SimLoop
from dlog.testing.sim.loop_process import LoopProcess, ProcessClock
from dlog.testing.sim.meta_store import Ask, MetaTree, SimMetaStore
from dlog.testing.sim.world import World

SLEEPS_MS = 60.0  # the mean
SESSION_MS = 100.0
TURNS_MAX = 64


@dataclass(slots=True)
class LedgerManners:
    """How the ledgers of one history behave. Rates are per request; 0 is off."""

    ledger_ms: float = 0.3
    append_ms: float = 0.5
    slow: float = 0.0  # appends that take 20 times as long
    refused: float = 0.0
    reply_lost: float = 0.0


class Ledgers(MemoryLedgers):
    """Tells the judge what is stored and deleted."""

    def __init__(self, world: World, manners: LedgerManners) -> None:
        super().__init__(ProcessClock(world))
        self.world = world
        self.manners = manners
        self.on_add: Callable[[int, int, list[bytes]], None] = lambda *_: None
        self.on_delete: Callable[[int], None] = lambda _: None

    def add(self, ledger_id: int, entries: list[bytes], last_confirmed: int) -> int:
        known = self._ledgers.get(ledger_id)
        first = 0 if known is None else len(known.entries)
        published = super().add(ledger_id, entries, last_confirmed)
        self.on_add(ledger_id, first, entries)
        return published

    def delete(self, ledger_id: int) -> None:
        if ledger_id in self._ledgers:
            self.on_delete(ledger_id)
        super().delete(ledger_id)


class _NoNetwork:
    open: tuple[Any, ...] = ()

    def cut_off(self) -> None:
        pass


class _Loop(SimLoop):
    """Takes its turns at one moment in one event, and what arrives in the event that brings it, for
    speed."""

    world: World
    hooked: ClassVar[_Loop | None] = None  # whose hooks for asynchronous generators are set

    def arrive(self, what: Callable[[], None]) -> None:
        if self._is_closed:
            return
        self._arrived.append(SimHandle(what, (), self))
        if self._is_frozen or events._get_running_loop() is not None:
            self._wake(self.world.now_ms)
        else:
            self._turn()
            self._wake_again()

    def _turn(self) -> None:
        ready, timers, now_ms = self._ready, self._timers, self.world.now_ms
        self.turns += 1
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            ready.extend(arrived)
        while timers and (timers[0][0] <= now_ms or timers[0][2]._cancelled):
            ready.append(heapq.heappop(timers)[2])
        if not ready:
            return
        before = events._get_running_loop()
        events._set_running_loop(self)
        if _Loop.hooked is not self:
            _Loop.hooked = self
            sys.set_asyncgen_hooks(self._asyncgens.add, self._finish_asyncgen)
        self._is_running = True
        left = TURNS_MAX
        try:
            while ready and left and not self._is_frozen:
                left -= 1
                self._run(len(ready))
        finally:
            self._is_running = False
            events._set_running_loop(before)


@contextlib.contextmanager
def hooks_restored() -> Iterator[None]:
    """Loops leave their hooks set behind a turn; behind a history they are the old ones."""
    hooks = sys.get_asyncgen_hooks()
    try:
        yield
    finally:
        _Loop.hooked = None
        sys.set_asyncgen_hooks(*hooks)


class LifeProcess(LoopProcess):
    """`sleeps_at` and `dies_at` count its requests, from 1."""

    def __init__(self, world: World, name: str, tree: MetaTree, ledgers: Ledgers) -> None:
        super().__init__(world, name)
        self.loop = _Loop(world)  # type: ignore[abstract]
        self.tree = tree
        self.stack = _NoNetwork()  # type: ignore[assignment]
        self.memory = ledgers
        self.steps = 0
        self.sleeps_at = self.dies_at = 0
        self.sleeps_ms = SLEEPS_MS
        self.on_trouble: Callable[[str], None] = lambda what: None
        self.is_frozen = False
        self.is_done = False  # closed everything: nothing of it is left

    def sleep_at(self, steps: int, for_ms: float) -> None:
        """At that request from now on."""
        self.sleeps_at, self.sleeps_ms = self.steps + steps, for_ms

    def die_at(self, steps: int) -> None:
        self.dies_at = self.steps + steps

    def takes_step(self) -> bool:
        """Before each request: is there trouble at this one? Then `trouble` is to be awaited."""
        self.steps += 1
        return self.steps in (self.sleeps_at, self.dies_at) and not self.world.is_calm

    async def trouble(self) -> None:
        if self.steps == self.dies_at:
            self.loop.freeze()
            self.world.after(0.0, self.die)
            self.on_trouble("death")
        elif not self.is_frozen:
            self.freeze(self.sleeps_ms)
            self.on_trouble("sleep")
        if self.world.chance.hits(0.5, "before the request leaves"):
            await asyncio.sleep(0)

    def die(self) -> None:
        self.kill(session_ms=self.world.chance.delay(SESSION_MS))

    def freeze(self, frozen_ms: float) -> None:
        if self.is_alive and not self.is_frozen:
            self.is_frozen = True
            super().freeze(frozen_ms)

    def thaw(self) -> None:
        if self.is_frozen:
            self.is_frozen = False
            super().thaw()

    def dispose(self) -> None:
        if self.is_alive and self.is_done:
            self.loop.close()
        else:
            super().dispose()

    def new_meta(self) -> SimMetaStore:
        name = f"{self.name}/{len(self._metas)}"
        meta = _SteppingMeta(self.tree, self.loop, name, meta_ms=self.meta_ms)
        meta.owner = self
        self._metas.append(meta)
        return meta

    def new_ledgers(self, meta: MetaStore, metrics: Metrics = NO_METRICS) -> Any:
        return _SteppingLedgers(self)


class _SteppingMeta(SimMetaStore):
    owner: LifeProcess

    def _ask(self, ask: Ask) -> Coroutine[Any, Any, Any]:
        return self._ask_in_trouble(ask) if self.owner.takes_step() else super()._ask(ask)

    async def _ask_in_trouble(self, ask: Ask) -> Any:
        await self.owner.trouble()
        return await super()._ask(ask)

    async def sync(self) -> None:
        """In no time: what is read behind it takes its time, and is as old as this at most."""
        if self.owner.takes_step():
            await self.owner.trouble()
        self.check_open()
        self.synced = self._tree.serial


class _SteppingLedgers(MemoryLedgerStore):
    """Each call takes its time, and may fail, before it acts or behind it."""

    def __init__(self, process: LifeProcess) -> None:
        super().__init__(process.memory)
        self._process = process

    async def _turn(self) -> None:
        if self._closed:
            raise ConfigError("the ledger store was closed")
        process, manners = self._process, self._process.memory.manners
        if process.takes_step():
            await process.trouble()
        ms = manners.ledger_ms
        await asyncio.sleep((0.01 + process.world.chance.delay(ms)) / 1000)
        if process.world.strikes(manners.refused, "ledgers: refused"):
            raise Unavailable("the ledgers are away")

    async def _told(self, work: Awaitable[Any]) -> Any:
        found = await work
        process = self._process
        if process.world.strikes(process.memory.manners.reply_lost, "ledgers: reply lost"):
            raise Timeout("no reply in time", outcome=Outcome.UNKNOWN)
        return found

    async def create(self, spec: LedgerSpec) -> MemoryAppender:
        await self._turn()
        appender = LateAppender(self._process, self._world.create(spec))
        self._appenders.add(appender)
        return appender

    async def recover(self, ledger_id: int, **how: Any) -> ClosedLedger:
        found: ClosedLedger = await self._told(super().recover(ledger_id, **how))
        return found

    async def delete(self, ledger_id: int) -> None:
        await self._told(super().delete(ledger_id))


class LateAppender(MemoryAppender):
    """A run of entries is on its way to the ledger, and lands there whatever becomes of its
    process; the answer is on its way back."""

    def __init__(self, process: LifeProcess, ledger_id: int) -> None:
        super().__init__(process.memory, ledger_id)
        self._process = process
        self._sent: asyncio.Future[None] | None = None

    def _confirm(self) -> None:
        if self._sent is not None or not self._waiting:
            return
        if self._closing or self._abandoned or self._failure is not None:
            self._waiting = []
            return
        run, self._waiting = self._waiting, []
        carried, process, chance = self._carried, self._process, self._process.world.chance
        manners = process.memory.manners
        mean_ms = manners.append_ms
        if process.world.strikes(manners.slow, "ledgers: an append is slow"):
            mean_ms *= 20
        self._sent = process.loop.create_future()

        def land() -> None:
            published, error = -1, None
            try:
                published = process.memory.add(self.ledger_id, run, carried)
            except Fenced as fenced:
                error = fenced
            process.world.after(
                chance.delay(manners.append_ms),
                lambda: process.receive(
                    lambda: process.loop.arrive(lambda: self._landed(run, published, error))
                ),
            )

        process.world.after(0.01 + chance.delay(mean_ms), land)

    def _landed(self, run: Sequence[bytes], published: int, error: Fenced | None) -> None:
        sent, self._sent = self._sent, None
        if sent is not None and not sent.done():
            sent.set_result(None)
        if self._abandoned:
            return
        if error is not None:
            self._fail(error)
            return
        self._last_confirmed += len(run)
        if self._birth is not None and not self._birth.done():
            self._birth.set_result(None)
        if self._listener is not None:
            self._listener.on_confirmed(self.ledger_id, self._last_confirmed)
        self._tell_published(published)
        self._confirm()

    async def close(self) -> ClosedLedger:
        self._closing = True
        if self._sent is not None:
            await asyncio.wait([self._sent])
        return await super().close()
