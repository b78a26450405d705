"""A simulation for programs that use dlog: its logs, its processes, its trouble, and one
history."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import math
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Literal

from dlog import uri
from dlog.client import Client
from dlog.drive import Stores
from dlog.errors import ConfigError, DlogError, Retry
from dlog.ids import MessageId
from dlog.reader.reader import Reader
from dlog.standby.standby import Standby
from dlog.testing.sim.driver_swarm import draw_driver_weather
from dlog.testing.sim.driver_world import settings
from dlog.testing.sim.garbage import collected_at_the_end, forget_frames
from dlog.testing.sim.loop import held_failures
from dlog.testing.sim.loop_cluster import Climate, LoopCluster
from dlog.testing.sim.loop_process import LoopProcess, silence
from dlog.testing.sim.metadata import MetaManners
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import Violation, World
from dlog.writer.writer import Writer

Troubles = Literal["none", "bookies", "all"]
Test = Callable[..., Coroutine[Any, Any, None]]

BOOKIES = 5
VIRTUAL_S_MAX = 3_600.0
_LASTS_MS = 1_500.0
_EVENTS_MAX = 2_000_000


class Stuck(AssertionError):
    """The test waits for something that never comes; `stack` says where."""

    def __init__(self, stack: list[traceback.FrameSummary]) -> None:
        super().__init__("it waits for something that never comes")
        self.stack = stack


class Elsewhere:
    """Work that runs in a process of its own."""

    def __init__(self, sim: Simulation, process: LoopProcess, task: asyncio.Task[Any]) -> None:
        self._sim = sim
        self._process = process
        self._task = task

    @property
    def name(self) -> str:
        return self._process.name

    def freeze(self, seconds: float) -> None:
        """As if stopped, or asleep: it takes no part for so long, and does not know."""
        self._process.freeze(_ms(seconds))

    def kill(self) -> None:
        """Nothing of it runs again: no `finally`, no farewell."""
        self._process.kill(session_ms=self._sim.world.chance.delay(_LASTS_MS))

    async def result(self) -> Any:
        """What it returned or raised, once it has. `RuntimeError` if it was killed."""
        while not self._task.done():
            if not self._process.is_alive:
                raise RuntimeError(f"{self.name} was killed")
            await asyncio.sleep(0.001)
        return self._task.result()


class Simulation:
    """What a test is given: the way to logs, to trouble, and to processes of its own."""

    url = "memory:simulated"

    def __init__(self, world: World, troubles: Troubles, bookies: int, names: list[str]) -> None:
        self.world = world
        self.chance = world.chance
        climate = Climate() if troubles == "none" else _climate(world.chance, troubles)
        self.cluster = LoopCluster(world, bookies, climate)
        self.process = self._new_process("test")
        self._clients: list[Client] = []
        self._handles: list[Writer | Reader | Standby] = []  # a test that fails drops them
        self._names = names  # of logs that somebody opened for writing
        self._rivals = 0
        self._troubles = troubles

    # --- the way to logs

    def connect(self) -> Client:
        client = Client(uri.parse(self.url))
        self._clients.append(client)
        return client

    async def open_writer(self, name: str, **options: Any) -> Writer:
        """With a client of its own, which the simulation closes."""
        log = await self.connect().open_writer(name, **options)
        self._handles.append(log)
        return log

    async def open_reader(self, name: str, **options: Any) -> Reader:
        reader = await self.connect().open_reader(name, **options)
        self._handles.append(reader)
        return reader

    async def open_standby(self, name: str, **options: Any) -> Standby:
        standby = await self.connect().open_standby(name, **options)
        self._handles.append(standby)
        return standby

    async def pass_time(self, seconds: float) -> None:
        """Virtual, as all time here is: nobody really waits."""
        await asyncio.sleep(_ms(seconds) / 1000)

    def note(self, text: str) -> None:
        """A line of the story."""
        self.world.note(text)

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> Elsewhere:
        """In a process of its own, which can be frozen and killed."""
        process = self._new_process(name)
        return Elsewhere(self, process, process.start(work))

    # --- trouble

    async def trouble(self) -> None:
        """Something, or nothing, as the history has it: a takeover, a lost or slow bookie, broken
        connections, metadata that gives no answer, a sleep of this process."""
        troubles: list[Callable[[], Awaitable[None]]] = [
            self.nothing,
            self.break_connections,
            self.slow_bookie,
            self.stop_bookie,
            self.lose_bookie,
            self.oversleep,
            *(functools.partial(self.take_over, name) for name in self._names),
            *([self.lose_replies] if self._troubles == "all" else []),
        ]
        value = self.chance.random()
        chosen = troubles[int(value * len(troubles))]
        self._tell_draw(value, chosen)
        if self.cluster.is_well or chosen not in (self.stop_bookie, self.lose_bookie):
            await chosen()

    async def nothing(self) -> None:
        await asyncio.sleep(0)

    async def take_over(self, name: str, *values: bytes) -> None:
        """Another process opens the log for writing, appends `values`, and closes it again."""
        self._rivals += 1
        rival = f"rival{self._rivals}"

        async def win() -> None:
            async with Client(uri.parse(self.url)) as client:
                while True:
                    try:
                        log = await client.open_writer(name, owner=rival)
                        break
                    except DlogError as error:
                        if error.retry is Retry.NEVER:
                            raise
                        await asyncio.sleep(0.1)
                async with log:
                    for value in values:
                        await log.append(value)

        self.world.note(f"{rival} takes {name} over")
        await self.start(win(), name=rival).result()

    async def lose_bookie(self, seconds: float = _LASTS_MS / 1000) -> None:
        """It is killed, and comes back after a while."""
        lasts_ms, server = _ms(seconds), self._bookie()
        self.cluster.kill(server)
        self.world.after(lasts_ms, lambda: self.cluster.start(server))

    async def stop_bookie(self, seconds: float = _LASTS_MS / 1000) -> None:
        """It answers nothing for a while, and then everything."""
        lasts_ms, server = _ms(seconds), self._bookie()
        server.stop()
        self.world.after(lasts_ms, server.go_on)

    async def slow_bookie(self, factor: float = 100.0, seconds: float = _LASTS_MS / 1000) -> None:
        lasts_ms = _ms(seconds)
        if not factor >= 1.0:
            raise ConfigError(f"factor={factor!r}: a number from 1 on, by which it is slower")
        server = self._bookie()
        self.world.note(f"{server.bookie_id} is {factor:g} times slower")
        server.slow = factor

        def recover() -> None:
            server.slow = 1.0

        self.world.after(lasts_ms, recover)

    async def break_connections(self) -> None:
        """All of this process."""
        self.world.note("test loses its connections")
        for bookie_id in self.cluster.servers:
            self.cluster.network.reset(self.process, bookie_id)

    async def lose_replies(self, seconds: float = 0.2) -> None:
        """Of the metadata store, for a while: what was asked for may have been done."""
        lasts_ms = _ms(seconds)
        self.world.note("replies of the metadata store get lost")
        manners = self.cluster.climate.meta
        before, manners.reply_lost = manners.reply_lost, 0.5

        def recover() -> None:
            manners.reply_lost = before

        self.world.after(lasts_ms, recover)

    async def oversleep(self, seconds: float = 0.5) -> None:
        """This process is stopped, as a laptop that is shut; it does not notice by itself."""
        self.process.freeze(_ms(seconds))
        await asyncio.sleep(0)

    def heal(self) -> None:
        """From here on all is well."""
        self.cluster.heal()

    # --- inside

    def _new_process(self, name: str) -> LoopProcess:
        process = self.cluster.process(name)
        PROCESSES[process.loop] = process
        return process

    def _bookie(self) -> Any:
        servers = list(self.cluster.servers.values())
        return servers[int(self.chance.random() * len(servers))]

    def _tell_draw(self, value: float, chosen: Callable[[], Awaitable[None]]) -> None:
        name = getattr(chosen, "__name__", "take_over").replace("_", " ")
        if value > 0.0 and name != "nothing":
            self.chance.tell(value, f"trouble: {name}")

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """The test, and whatever it leaves open is closed. All is well by then, so a close that
        fails tells of an append that failed and that the test did not wait for."""
        failure: BaseException | None = None
        try:
            await work
        except GeneratorExit:
            raise  # the history is over
        except BaseException as error:  # noqa: BLE001 - raised below; also a skip of pytest
            failure = error
        self.heal()
        for client in self._clients:
            try:
                await client.close()
            except DlogError as error:
                failure = failure or error
        if failure is not None:
            raise failure


def _ms(seconds: float) -> float:
    """Zero is allowed: a benign history draws it."""
    if not 0.0 <= seconds < math.inf:
        raise ConfigError(f"seconds={seconds!r}: a number from 0 on")
    return seconds * 1000


def run_history(
    test: Test,
    chance: Chance,
    *,
    told: bool = False,
    troubles: Troubles = "bookies",
    bookies: int = BOOKIES,
) -> tuple[World, BaseException | None]:
    """One, to its end. What was wrong with it is given back."""
    world = World(chance, told=told)
    world.events_max = _EVENTS_MAX
    error: BaseException | None = None
    with collected_at_the_end(), settings(world) as unheard, simulated_clients(world) as names:
        sim = Simulation(world, troubles, bookies, names)
        task = sim.process.start(sim.run(test(sim)))
        try:
            world.run(until_ms=VIRTUAL_S_MAX * 1000, done=task.done)
            error = _end_of(task)
            if error is None:
                _check_left(sim, unheard)
        except (Violation, AssertionError) as violation:
            error = violation
        finally:
            with silence():
                sim.cluster.dispose()
                for process in sim.cluster.processes:
                    PROCESSES.pop(process.loop, None)
                forget_frames(error)
                del sim, task, process
                gc.collect(1)  # what the first look kept is older by now
    return world, error


def _end_of(task: asyncio.Task[None]) -> BaseException | None:
    if not task.done():
        return Stuck(_stack_of(task))
    if task.cancelled():
        return asyncio.CancelledError("the test was cancelled, by nobody of the simulation")
    return task.exception()


def _check_left(sim: Simulation, unheard: list[str]) -> None:
    sim.world.run(until_ms=sim.world.now_ms + 1_000.0)
    gc.collect(0)
    # What a process did before it was killed tells nothing.
    alive = [each for each in sim.cluster.processes if each.is_alive]
    held = held_failures()
    left = sim.process.left(held) if sim.process in alive else []
    others = [each for each in alive if each is not sim.process]
    unheard += [told for each in others for told in each.unheard(held)]
    if left or unheard:
        raise Violation("left behind", "; ".join([*left, *unheard][:5]))


# --- clients that know nothing of it

PROCESSES: dict[Any, LoopProcess] = {}


@contextlib.contextmanager
def simulated_clients(world: World) -> Iterator[list[str]]:
    """Whatever is opened on the loop of a simulated process is opened in its world; and when the
    story is told, it tells what programs asked for. Gives the names of the logs that are
    written."""

    def open_stores(self: Client, *, create: bool) -> Stores:
        process = PROCESSES.get(asyncio.get_running_loop())
        if process is None:
            raise RuntimeError(
                "a simulated test opens logs by the async API, dlog.aio: another thread, as that "
                "of the sync API, is not simulated"
            )
        return process.new_stores(self._metrics)

    names: list[str] = []
    open_writer = Client.open_writer

    def know(self: Client, name: str, **options: Any) -> Any:
        if name not in names:
            names.append(name)
        return open_writer(self, name, **options)

    patches: list[tuple[Any, str, Any]] = [
        (Client, "_open_stores", open_stores),
        (Client, "open_writer", know),
    ]
    if world.is_told:
        patches += [
            (kind, name, _told(getattr(kind, name), name.strip("_").replace("_", " ")))
            for kind, names in _TOLD.items()
            for name in names
        ]
    before = [(kind, name, getattr(kind, name)) for kind, name, _ in patches]
    try:
        for kind, name, value in patches:
            setattr(kind, name, value)
        yield names
    finally:
        for kind, name, value in before:
            setattr(kind, name, value)


_TOLD: dict[Any, tuple[str, ...]] = {
    Client: ("_open_writer", "_open_reader", "_open_standby"),
    Writer: ("append", "submit", "append_many", "flush", "rotate", "hand_over", "close"),
    Reader: ("seek", "read", "_fill", "close"),
    Standby: ("wait", "take_over", "close"),
}


_INSIDE: set[Any] = set()  # tasks in a call that tells itself: what it calls does not


def _told(call: Callable[..., Coroutine[Any, Any, Any]], what: str) -> Any:
    """The same call, and two lines of the story: how it began, and how it ended."""
    what = {"fill": "read on"}.get(what, what)
    inside = _INSIDE

    async def telling(self: Any, *args: Any, **options: Any) -> Any:
        process, task = PROCESSES.get(asyncio.get_running_loop()), asyncio.current_task()
        if process is None or task in inside:
            return await call(self, *args, **options)
        inside.add(task)
        about = f" {args[0]!r}" if args and isinstance(args[0], (bytes, str, int)) else ""
        note = process.world.note
        note(f"{process.name}: {what}{about[:60]}")
        try:
            result = await call(self, *args, **options)
        except BaseException as error:
            note(f"{process.name}: {what}{about[:60]} failed: {error!r}")
            raise
        finally:
            inside.discard(task)
        if isinstance(result, (MessageId, bool)) and result is not True:
            note(f"{process.name}: {what}{about[:60]} done: {result}")
        return result

    return telling


def _climate(chance: Chance, troubles: Troubles) -> Climate:
    """As wild as the histories of dlog itself; metadata keeps quiet unless all is asked for."""
    climate = draw_driver_weather(chance).climate
    climate.trouble.one_at_a_time = True
    climate.trouble.lasts_ms = min(climate.trouble.lasts_ms, _LASTS_MS)
    if troubles == "bookies":
        climate.meta = MetaManners()
        climate.trouble.read_only_ms = float("inf")
    return climate


def _stack_of(task: asyncio.Task[Any]) -> list[traceback.FrameSummary]:
    frames = []
    work: Any = task.get_coro()
    while work is not None and (frame := getattr(work, "cr_frame", None)) is not None:
        code = frame.f_code
        frames.append(traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name))
        work = work.cr_await
    return frames
