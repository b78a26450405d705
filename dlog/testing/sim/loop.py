"""An event loop of virtual time, one for each simulated process: real asyncio drivers live in it.

It has no sockets and no threads. A turn of the loop is an event of the world: it runs what is due,
in asyncio's order, and virtual time passes only between turns. So a loop can be *busy* (its turn
comes late, and finds timers and arrivals together), *frozen* like a stopped process, or dead.

What asyncio promises is kept: callbacks run in the order in which they were scheduled. What it does
not promise is drawn from the tape: how late a turn is, and in which order things that came from
outside meanwhile (bytes, replies) are handed in.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import math
import sys
import weakref
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

from dlog.testing.sim.world import World

T = TypeVar("T")

# Of a timer: it is never early, and whoever waits for the rest of a rounding error gets on.
_LATE_MS = 0.001
_BUSY_MS = 20.0

OnThread = Callable[[Callable[[], Any]], "asyncio.Future[Any]"]
Connect = Callable[[Callable[[], asyncio.Protocol], str, int], Awaitable[asyncio.Transport]]


def held_failures() -> list[asyncio.Future[Any]]:
    """Futures that failed, are still held, and whose failure was never retrieved. asyncio keeps no
    list of futures: a program may make one by `Future()`, `Task()` or `gather()`. The collector
    knows them; what is frozen was there before the history."""
    futures = [each for each in gc.get_objects() if issubclass(type(each), asyncio.Future)]
    return [each for each in futures if each._log_traceback]


class SimHandle(events.Handle):
    """As asyncio's, which asks its loop each time whether it is being debugged."""

    __slots__ = ()

    def __init__(
        self, callback: Any, args: Any, loop: asyncio.AbstractEventLoop, context: Any = None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class SimTimer(events.TimerHandle):
    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Any,
        args: Any,
        loop: asyncio.AbstractEventLoop,
        context: Any = None,
    ) -> None:
        SimHandle.__init__(self, callback, args, loop, context)  # type: ignore[arg-type]
        self._when = when
        self._scheduled = False


class SimLoop(asyncio.AbstractEventLoop):
    """`busy` is the rate of turns that come late, `connect` makes connections."""

    def __init__(self, world: World, *, busy: float = 0.0, shuffled: float = 0.0) -> None:
        self.world = world
        self.busy = busy
        self.shuffled = shuffled
        self.connect: Connect | None = None
        self.on_thread: OnThread | None = None  # what simulates other threads
        self.unheard: list[dict[str, Any]] = []  # what nobody caught
        self.turns = 0
        self._ready: deque[asyncio.Handle] = deque()
        self._arrived: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._serial = 0
        self._next_ms = math.inf  # when the world gives us our next turn
        self._is_running = False
        self._is_frozen = False
        self._is_closed = False
        self._tasks: list[weakref.ref[asyncio.Task[Any]]] = []
        self._asyncgens: weakref.WeakSet[AsyncGenerator[Any, Any]] = weakref.WeakSet()

    def __repr__(self) -> str:
        return f"<SimLoop at {self.world.now_ms:.3f} ms>"

    # --- turns

    def _wake(self, at_ms: float) -> None:
        if at_ms >= self._next_ms or self._is_running or self._is_frozen or self._is_closed:
            return
        if self.world.strikes(self.busy, "a loop is busy"):
            at_ms += self.world.chance.delay(_BUSY_MS, "its turn")
        if at_ms < self._next_ms:
            self._next_ms = at_ms
            self.world.at(at_ms, partial(self._turn_of, at_ms))

    def _turn_of(self, at_ms: float) -> None:
        """An earlier turn may have been asked for since; then this one is not ours."""
        if at_ms == self._next_ms and not self._is_frozen and not self._is_closed:
            self._next_ms = math.inf
            self._turn()
            self._wake_again()

    def _wake_again(self) -> None:
        if self._ready or self._arrived:
            self._wake(self.world.now_ms)
        elif self._timers:
            self._wake(max(self._timers[0][0], self.world.now_ms))

    def _turn(self) -> None:
        self.turns += 1
        ready, timers, now_ms = self._ready, self._timers, self.world.now_ms
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            if len(arrived) > 1 and self.world.strikes(self.shuffled, "arrivals change places"):
                self.world.chance.shuffle(arrived)
            ready.extend(arrived)
        while timers and (timers[0][0] <= now_ms or timers[0][2].cancelled()):
            ready.append(heapq.heappop(timers)[2])
        before, hooks = events._get_running_loop(), sys.get_asyncgen_hooks()
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=self._asyncgens.add, finalizer=self._finish_asyncgen)
        self._is_running = True
        try:
            self._run(len(ready))
        finally:
            self._is_running = False
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(before)

    def _run(self, count: int) -> None:
        ready = self._ready
        for _ in range(count):
            handle: Any = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio's loops
                    told = {"message": f"in {handle!r}", "exception": error, "handle": handle}
                    self.call_exception_handler(told)

    def _finish_asyncgen(self, asyncgen: AsyncGenerator[Any, Any]) -> None:
        self._asyncgens.discard(asyncgen)
        if not self._is_closed:
            self.call_soon(self.create_task, asyncgen.aclose())

    def arrive(self, what: Callable[[], None]) -> None:
        """From outside: bytes, a reply."""
        if not self._is_closed:
            self._arrived.append(SimHandle(what, (), self))
            self._wake(self.world.now_ms)

    def freeze(self) -> None:
        self._is_frozen = True
        self._next_ms = math.inf

    def thaw(self) -> None:
        self._is_frozen = False
        self._wake_again()

    def tasks(self) -> set[asyncio.Task[Any]]:
        """That have not ended. As `asyncio.all_tasks`, which looks at those of all loops."""
        return {task for task in self._known() if not task.done()}

    def failed_unheard(
        self, others: Iterable[asyncio.Future[Any]] = ()
    ) -> list[asyncio.Future[Any]]:
        """Tasks that raised, are still held, and were never awaited. `others` are failures that
        `held_failures` found: futures, and tasks that this loop did not make."""
        failed: dict[int, asyncio.Future[Any]] = {
            id(each): each for each in self._known() if each._log_traceback
        }
        failed |= {id(each): each for each in others if each.get_loop() is self}
        return list(failed.values())

    def _known(self) -> list[asyncio.Task[Any]]:
        known = [task() for task in self._tasks]
        return [task for task in known if task is not None]

    def left(self) -> list[str]:
        """What still runs or waits here; nothing, once everything was closed."""
        tasks = sorted(repr(task.get_coro()) for task in self.tasks())
        timers = [repr(timer) for _, _, timer in self._timers if not timer.cancelled()]
        return tasks + timers

    # --- asyncio's side

    def time(self) -> float:
        return self.world.now_ms / 1000

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = SimHandle(callback, args, self, context)
        self._ready.append(handle)
        if not self._is_running:
            self._wake(self.world.now_ms)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = SimTimer(when, callback, args, self, context)
        self._serial += 1
        due_ms = max(when * 1000, self.world.now_ms) + _LATE_MS
        heapq.heappush(self._timers, (due_ms, self._serial, timer))
        if not self._is_running:
            self._wake(due_ms)
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays where it is; its time finds it cancelled."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)  # type: ignore[arg-type]
        self._tasks.append(weakref.ref(task))
        return task

    def get_task_factory(self) -> None:
        return None

    get_debug = staticmethod(bool)  # it says no; each future asks

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.unheard.append(context)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.unheard.append(context)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, Any]:
        made: list[Any] = []

        def make() -> Any:
            made.append(protocol_factory())
            return made[0]

        if self.connect is None:
            raise OSError("this process has no network")
        transport = await self.connect(make, host, port)
        return transport, made[0]

    async def getaddrinfo(self, *_: Any, **__: Any) -> Any:
        raise OSError("a simulated process resolves no names: it has no network but the simulated")

    def run_in_executor(  # type: ignore[override]
        self, executor: object, call: Callable[..., Any], *args: Any
    ) -> Any:
        if self.on_thread is not None:
            return self.on_thread(partial(call, *args))
        raise RuntimeError("a simulated process has one thread; to_thread() needs others")

    async def shutdown_asyncgens(self) -> None:
        await asyncio.gather(*(each.aclose() for each in list(self._asyncgens)))

    def close(self) -> None:
        """Nothing runs here any more."""
        self._is_closed = True
        self._ready.clear()
        self._arrived.clear()
        self._timers.clear()
