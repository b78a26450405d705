"""A process that workers live in: a loop for the program of the user, one more for each heart, and
threads; clocks that are hours off and run apart; a way to metadata that may be cut.

The user's loop alone may be *blocked*, as by a program that computes on it; a *frozen* process
stands still as a whole. A plain function on a thread takes its time, and has its effects at the end
of it: nobody can cut it short.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

from dlog.errors import DlogError, Unavailable
from dlog.groups import worker as worker_driver
from dlog.groups.homes import ThreadHome
from dlog.testing.sim.loop_cluster import LoopCluster
from dlog.testing.sim.loop_process import LoopProcess, ProcessClock
from dlog.testing.sim.meta_store import SimMetaStore
from dlog.testing.sim.simulation import PROCESSES
from dlog.testing.sim.world import World

_CUT_MS = 20.0  # until a request of one that is cut off has failed


class SkewedClock(ProcessClock):
    """Its wall is off by hours, its monotonic time began somewhere and runs a little apart."""

    def __init__(self, world: World, offset_us: int, began_s: float, drift: float) -> None:
        super().__init__(world, offset_us)
        self._began_s, self._pace = began_s, 1.0 + drift

    def monotonic_s(self) -> float:
        return self._began_s + self._pace * super().monotonic_s()


class CutMetaStore(SimMetaStore):
    """Of a process that may be cut off, while all others reach the store."""

    owner: WorkerProcess

    async def _ask(self, ask: Callable[[Callable[[Any, DlogError | None], None]], None]) -> Any:
        if self.owner.is_cut:
            await asyncio.sleep(_CUT_MS / 1000)
            raise Unavailable("cut off from the metadata store")
        return await super()._ask(ask)

    def receive(self, what: Callable[[], None]) -> None:
        if not self.owner.is_cut:
            super().receive(what)
        elif not _is_hint(what):
            self._loop.arrive(what)  # what was on its way, or has an end of its own


def _is_hint(what: Callable[[], None]) -> bool:
    return isinstance(getattr(what, "__self__", None), asyncio.Event)


class _Part(LoopProcess):
    """One loop of it, with a network and stores of its own."""

    whole: WorkerProcess

    def new_meta(self) -> SimMetaStore:
        name = f"{self.name}/{len(self._metas)}"
        meta = CutMetaStore(self.tree, self.loop, name, meta_ms=self.meta_ms)
        meta.owner = self.whole
        self._metas.append(meta)
        return meta


class WorkerProcess:
    def __init__(self, cluster: LoopCluster, name: str, clock: ProcessClock) -> None:
        self.name = name
        self.world = cluster.world
        self.is_cut = self.is_frozen = False
        self.is_blocked = False
        self.thread_ms = 5.0  # the mean of what a plain function takes
        self.last_trouble_ms = 0.0
        """When it was last kept from renewing: frozen, or cut off."""
        self.hearts: list[SimThreadHome] = []
        self._cluster = cluster
        self._clock = clock
        self._parts: list[_Part] = []
        self._held: list[Callable[[], None]] = []  # of threads, while it is frozen
        self.main = self.new_part(name)
        self.main.loop.on_thread = self._on_thread

    def __repr__(self) -> str:
        return self.name

    def new_part(self, name: str) -> LoopProcess:
        part = self._cluster.process(name, kind=_Part)
        assert isinstance(part, _Part)
        part.whole, part.clock = self, self._clock
        self._parts.append(part)
        PROCESSES[part.loop] = part
        return part

    @property
    def is_alive(self) -> bool:
        return self.main.is_alive

    def now_s(self) -> float:
        return self._clock.monotonic_s()

    def jump(self, by_us: int) -> None:
        """Of its wall clock."""
        self._clock.offset_us += by_us

    # --- what befalls it

    def freeze(self, frozen_ms: float) -> None:
        if not self.is_alive or self.is_frozen:
            return
        self.world.note(f"{self.name} is frozen for {frozen_ms:.0f} ms")
        self.world.mark("a process is frozen")
        self.is_frozen = True
        for part in self._parts:
            part.loop.freeze()
        self.world.after(frozen_ms, self.thaw)

    def thaw(self) -> None:
        if not self.is_alive or not self.is_frozen:
            return
        self.world.note(f"{self.name} wakes")
        self.is_frozen = False
        self.last_trouble_ms = self.world.now_ms
        for part in self._parts:
            if part is not self.main or not self.is_blocked:
                part.loop.thaw()
        held, self._held = self._held, []
        for each in held:
            self.world.after(0.0, each)

    def block(self, blocked_ms: float) -> None:
        """The loop of the user takes no turn; hearts beat on."""
        if not self.is_alive or self.is_blocked:
            return
        self.world.note(f"the loop of {self.name} is blocked for {blocked_ms:.0f} ms")
        self.world.mark("a loop is blocked")
        self.is_blocked = True
        self.main.loop.freeze()
        self.world.after(blocked_ms, self._unblock)

    def _unblock(self) -> None:
        self.is_blocked = False
        if self.is_alive and not self.is_frozen:
            self.main.loop.thaw()

    def cut(self, for_ms: float) -> None:
        if self.is_alive and not self.is_cut:
            self.world.note(f"{self.name} is cut off from metadata for {for_ms:.0f} ms")
            self.world.mark("a worker is cut off")
            self.is_cut = True
            self.world.after(for_ms, self.mend)

    def mend(self) -> None:
        if self.is_cut:
            self.is_cut = False
            self.last_trouble_ms = self.world.now_ms

    def heal(self) -> None:
        self.mend()
        self.thaw()

    def kill(self) -> None:
        if not self.is_alive:
            return
        session_ms = self.world.chance.delay(1_000.0)
        for part in self._parts:
            part.kill(session_ms=session_ms)

    def left(self) -> list[str]:
        return [what for part in self._parts for what in part.left()]

    # --- threads

    def _on_thread(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        loop = self.main.loop
        answered: asyncio.Future[Any] = loop.create_future()
        _tell_begin(call)

        def finish() -> None:
            if not self.is_alive:
                return
            if self.is_frozen:
                self._held.append(finish)
                return
            try:
                result, error = call(), None
            except Exception as raised:  # noqa: BLE001 - it is told to who waits
                result, error = None, raised
            loop.arrive(lambda: _answer(answered, result, error))

        self.world.after(0.01 + self.world.chance.delay(self.thread_ms), finish)
        return answered


def _tell_begin(call: Any) -> None:
    """To the program whose method `Threads` was asked to run: below two partials, one of a
    context."""
    inner: Any = call.args[-1] if call.args else None
    method: Any = getattr(inner, "func", None)
    begin = getattr(getattr(method, "__self__", None), "on_thread", None)
    if begin is not None:
        begin(method.__name__, *inner.args)


def _answer(answered: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if answered.done():
        return
    if error is None:
        answered.set_result(result)
    else:
        answered.set_exception(error)


class SimThreadHome(ThreadHome):
    """A heart's thread: another loop of the same process, which beats while the user's is
    blocked. What is asked of it when it has ended is nothing, as of the real one."""

    def __init__(self) -> None:
        super().__init__()
        part = PROCESSES[asyncio.get_running_loop()]
        assert isinstance(part, _Part)
        self._process = part.whole
        self._over: Future[None] = Future()
        self._process.hearts.append(self)

    def start(self, beat: Coroutine[Any, Any, None]) -> None:
        process = self._process
        part = process.new_part(f"{process.name}/heart{len(process.hearts)}")
        self._loop = part.loop
        if process.is_frozen:
            part.loop.freeze()
        part.loop.create_task(self._beat(beat))

    async def _beat(self, beat: Coroutine[Any, Any, None]) -> None:
        """As `_run` does around the loop."""
        loop = asyncio.get_running_loop()
        try:
            await beat
        finally:
            self._is_over = True
            await asyncio.sleep(0)
            left = asyncio.all_tasks(loop) - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:
                await asyncio.gather(*left, return_exceptions=True)
            self._over.set_result(None)

    @property
    def is_alive(self) -> bool:
        return self._loop is not None and not self._over.done()

    def call(self, what: Callable[[], None]) -> None:
        if not self._over.done():
            super().call(what)

    async def join(self) -> None:
        await asyncio.wrap_future(self._over)


@contextlib.contextmanager
def simulated_hearts() -> Iterator[None]:
    """Hearts that ask for a thread get a loop of their process."""
    before = vars(worker_driver)["ThreadHome"]
    setattr(worker_driver, "ThreadHome", SimThreadHome)  # noqa: B010 - it is no export
    try:
        yield
    finally:
        setattr(worker_driver, "ThreadHome", before)  # noqa: B010
