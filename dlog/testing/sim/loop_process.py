"""A process whose programs are real asyncio code: its loop, its network, its clock, its stores.

It may be frozen, as by SIGSTOP, and thawed; it may die, and then nothing of it runs again: no
`finally`, no farewell. What was left behind by one that closed everything is told by `left`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar

from dlog.client import Client
from dlog.drive import Sessions, Stores
from dlog.ledger.bookkeeper.core.append_effects import AppendOptions
from dlog.ledger.bookkeeper.store import BookKeeperLedgerStore
from dlog.meta.attended import AttendedMetaStore
from dlog.meta.layout import Layout
from dlog.meta.store import MetaStore
from dlog.metrics import NO_METRICS, Metrics
from dlog.streams.health.bookies import BookieQuarantine
from dlog.testing.sim.loop import SimLoop
from dlog.testing.sim.meta_store import WALL_BASE_US, MetaTree, SimMetaStore
from dlog.testing.sim.tcp import TcpStack
from dlog.testing.sim.world import World

T = TypeVar("T")


class ProcessClock:
    """Virtual time. The wall clock is off by something that may jump."""

    def __init__(self, world: World, offset_us: int = 0) -> None:
        self._world = world
        self.offset_us = offset_us

    def wall_us(self) -> int:
        return WALL_BASE_US + self.offset_us + int(self._world.now_ms * 1000)

    def monotonic_s(self) -> float:
        return self._world.now_ms / 1000


class ProcessChance:
    """From the tape; a zero on it is the middle of a back-off, so that time goes on."""

    def __init__(self, world: World) -> None:
        self._world = world

    def fraction(self) -> float:
        return (self._world.chance.fraction() + 0.5) % 1.0

    def token(self) -> str:
        return self._world.chance.token()


class LoopProcess:
    """A client of the network. `stack` and `tree` are given by the cluster that it joins."""

    stack: TcpStack
    tree: MetaTree

    def __init__(
        self, world: World, name: str, *, busy: float = 0.0, shuffled: float = 0.0
    ) -> None:
        self.name = name
        self.world = world
        self.loop = SimLoop(world, busy=busy, shuffled=shuffled)  # type: ignore[abstract]
        self.clock = ProcessClock(world)
        self.chance = ProcessChance(world)
        self.is_alive = True
        self.append = AppendOptions()
        self.password = b"secret"
        self.meta_ms = 0.5
        self._metas: list[SimMetaStore] = []
        self._ledgers: list[BookKeeperLedgerStore] = []
        self._clients: list[Client] = []  # of one that was killed, they must not say farewell
        self._kept: list[asyncio.Task[Any]] = []

    def __repr__(self) -> str:
        return self.name

    def receive(self, what: Callable[[], None]) -> None:
        """By its kernel, which takes it also while the process is frozen."""
        if self.is_alive:
            what()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of this process, asked for from anywhere."""
        if not self.is_alive:
            work.close()
            raise RuntimeError(f"{self.name} is dead")
        return self.loop.create_task(work)

    def run_now(self, work: Coroutine[Any, Any, T]) -> T:
        """What needs no waiting, as if in a turn of the loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop)
        try:
            work.send(None)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        finally:
            asyncio._set_running_loop(before)
        work.close()
        raise RuntimeError("it waits")

    # --- stores

    def new_meta(self) -> SimMetaStore:
        name = f"{self.name}/{len(self._metas)}"
        meta = SimMetaStore(self.tree, self.loop, name, meta_ms=self.meta_ms)
        self._metas.append(meta)
        return meta

    def new_ledgers(self, meta: MetaStore, metrics: Metrics = NO_METRICS) -> BookKeeperLedgerStore:
        ledgers = BookKeeperLedgerStore(
            meta,
            password=self.password,
            append=self.append,
            health=BookieQuarantine(clock=self.clock, chance=self.chance, metrics=metrics),
            clock=self.clock,
            chance=self.chance,
            metrics=metrics,
        )
        self._ledgers.append(ledgers)
        return ledgers

    def new_stores(self, metrics: Metrics = NO_METRICS) -> Stores:
        meta = self.new_meta()
        attended = AttendedMetaStore(meta, self.clock, metrics)
        ledgers = self.new_ledgers(attended, metrics)
        sessions = Sessions(meta, self.new_meta)
        return Stores(
            attended, ledgers, Layout(), self.clock, self.chance, sessions, metrics=metrics
        )

    def new_client(self) -> Client:
        client = SimClient(self)
        self._clients.append(client)
        return client

    # --- life

    def freeze(self, frozen_ms: float) -> None:
        if self.is_alive:
            self.world.note(f"{self.name} is frozen for {frozen_ms:.0f} ms")
            self.world.mark("a process is frozen")
            self.loop.freeze()
            self.world.after(frozen_ms, self.thaw)

    def thaw(self) -> None:
        if self.is_alive:
            self.world.note(f"{self.name} wakes")
            self.loop.thaw()

    def kill(self, *, session_ms: float = 0.0) -> None:
        """-9. The metadata store notices after `session_ms`."""
        if not self.is_alive:
            return
        self.world.note(f"{self.name} dies")
        self.world.mark("a process dies")
        self.is_alive = False
        self._kept = sorted(self.loop.tasks(), key=lambda task: task.get_name())
        self.loop.close()
        self.stack.cut_off()
        self.world.after(session_ms, self._end_sessions)

    def _end_sessions(self) -> None:
        for meta in self._metas:
            self.tree.expire(meta)

    def left(self, others: Iterable[asyncio.Future[Any]] = ()) -> list[str]:
        """What a process that has closed everything still has; and what went wrong unheard."""
        return [
            *self.loop.left(),
            *map(repr, self.stack.open),
            *self.unheard(others),
        ]

    def unheard(self, others: Iterable[asyncio.Future[Any]] = ()) -> list[str]:
        """What went wrong, and nobody caught or awaited. Of a task that somebody still holds
        asyncio would tell when it is collected. `others`: see `SimLoop.failed_unheard`."""
        told = [f"unheard: {_told(each)}" for each in self.loop.unheard]
        failed = self.loop.failed_unheard(others)
        for each in failed:
            each._log_traceback = False  # told here
        held = [f"{each.exception()!r} in {_name_of(each)} of {self.name}" for each in failed]
        return [*told, *sorted(f"unheard: never awaited: {each}" for each in held)]

    def dispose(self) -> None:
        """Its memory goes; nobody hears of it."""
        self.is_alive = False
        self.loop.close()
        done: set[asyncio.Task[Any]] = set()
        # Code that ends may ask asyncio for a loop. A real loop would stay open behind it.
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self.loop)
        with silence(), contextlib.ExitStack() as after:
            after.callback(asyncio._set_running_loop, before)
            while left := {*self._kept, *self.loop.tasks()} - done:
                for task in left:  # to close one may begin others
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    work = task.get_coro()
                    if work is not None:
                        with contextlib.suppress(BaseException):
                            work.close()
                done |= left
        self._kept = []
        for ledgers in self._ledgers:
            ledgers._closed = True  # whoever still holds it, it does not complain any more


def _name_of(failed: asyncio.Future[Any]) -> str:
    return failed.get_name() if isinstance(failed, asyncio.Task) else "a future"


def _told(context: dict[str, Any]) -> str:
    error = context.get("exception")
    whose = context.get("task") or context.get("future") or context.get("handle")
    return f"{context.get('message')}: {error!r} of {whose!r}"


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Of drivers that are right to complain: what they say here is expected."""
    log = logging.getLogger("dlog")
    before = log.disabled, log.propagate, log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before[2])


class SimClient(Client):
    """A real client; its backend is the simulated cluster, whatever its URL says."""

    def __init__(self, process: LoopProcess, url: str = "memory:simulated") -> None:
        from dlog import uri

        super().__init__(uri.parse(url))
        self._process = process

    def _open_stores(self, *, create: bool) -> Stores:
        return self._process.new_stores()
