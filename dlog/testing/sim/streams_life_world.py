"""Histories of streams over their whole life: split, merged, pinned, truncated, retained, trimmed,
terminated, removed and made again, while producers, readers, groups and jobs come and go, and each
of them may sleep or die at each step.

The cores and the drivers are those of production, over simulated metadata and ledgers in memory, in
virtual time. See `streams_life_truth` for what must hold at each step. In the end all is well, and
everybody comes to an end; what is there is what was sent and not truncated; and when the stream is
removed nothing of it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from dlog import limits
from dlog.client import Client
from dlog.errors import DlogError, NotFound
from dlog.meta.log_meta import LogMeta
from dlog.streams.document import StreamMeta
from dlog.testing.sim.driver_world import settings
from dlog.testing.sim.garbage import forget_frames
from dlog.testing.sim.loop_process import silence
from dlog.testing.sim.simulation import PROCESSES, simulated_clients
from dlog.testing.sim.streams_life_changes import Changes, make, sweep
from dlog.testing.sim.streams_life_groups import GROUP, JOB, Groups, remove_group
from dlog.testing.sim.streams_life_process import LifeProcess, hooks_restored
from dlog.testing.sim.streams_life_producers import Senders
from dlog.testing.sim.streams_life_readers import Reading
from dlog.testing.sim.streams_life_rest import check_nothing_is_left, check_what_is_there
from dlog.testing.sim.streams_life_scene import Scene
from dlog.testing.sim.streams_life_truth import LEFT, STREAM, STUCK
from dlog.testing.sim.streams_life_weather import ENDS, LifeWeather, draw_life_weather
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import Violation, World, require

EVENTS_MAX = 400_000
HEAL_MS = 60_000.0  # virtual: within which everything comes to its end
LOOK_MS = 20.0
WAIT_MS = 5.0  # how often we look whether something is so
ENDS_AT = 0.7  # of its span
_TRIES = 20
_LOST = ("metadata: reply lost", "ledgers: reply lost")


class LifeHistory:
    def __init__(self, world: World, weather: LifeWeather) -> None:
        self.world, self.weather = world, weather
        self.scene = Scene(world, weather)
        self.truth = self.scene.truth
        self.groups = Groups(self.scene)
        self.changes = Changes(self.scene)
        self.senders = Senders(self.scene)
        self.readings: list[Reading] = []
        self._lost = 0

    def run(self) -> None:
        self._wait_for(self._make, "the stream is made")
        self._begin_all()
        self._pass_time(self.weather.span_ms)
        self._heal()
        self._end()
        self._wait_for(partial(check_what_is_there, self.scene), "what is there is read")
        self._wait_for(partial(sweep, self.scene), "what is over is swept")
        self._wait_for(partial(self._remove_all), "all is removed")
        check_nothing_is_left(self.scene)
        self._check_processes()

    async def _make(self, client: Client) -> None:
        await make(self.scene, client)

    def _begin_all(self) -> None:
        world, weather, scene = self.world, self.weather, self.scene
        for _ in range(weather.senders):
            scene.later(20.0, self.senders.begin)
        for number in range(weather.readers):
            start = weather.starts[number % len(weather.starts)]
            bounded = world.chance.hits(weather.bounded, "it has an end")
            reading = Reading(scene, number, start, bounded=bounded)
            self.readings.append(reading)
            scene.later(world.chance.pick((5.0, weather.span_ms), "a reader comes"), reading.begin)
        for number in range(weather.workers):
            spread_ms = world.chance.pick((5.0, weather.span_ms), "a worker comes")
            scene.later(spread_ms, partial(self.groups.begin, GROUP, number))
        if weather.job:
            scene.later(weather.span_ms, partial(self.groups.begin, JOB, 0))
        for kind in (*weather.changes, *["remove group"] * weather.group_removals):
            is_late = weather.ends_late and kind in ENDS
            after_ms = ENDS_AT * weather.span_ms if is_late else 0.0
            begin = partial(self.changes.begin, kind)
            scene.later(weather.span_ms - after_ms, begin, after_ms=after_ms)

    def _heal(self) -> None:
        self.world.note("all is well from here on")
        self.world.is_calm = True
        self.scene.tree.heal()
        for process in self.scene.processes:
            process.thaw()

    # --- the end

    def _end(self) -> None:
        scene, groups = self.scene, self.groups
        scene.is_ending = True
        if self.weather.workers and (
            not self._has_workers() or self.world.chance.hits(0.3, "a last worker joins")
        ):
            groups.begin(GROUP, 8, is_safe=True)
        if JOB in groups.now:
            groups.begin(JOB, 8, is_safe=True)
        others = [each for each in scene.tasks if not self._is_consumer(each[0])]
        self._wait_until(lambda: self._have_ended(others), "producers and changes end", self._who)
        done = lambda: not groups.missing()  # noqa: E731
        self._wait_until(done, "groups have all", lambda: str(groups.missing()[:5]))
        groups.is_closing = True
        scene.are_readers_ending = True
        self._wait_until(lambda: self._have_ended(scene.tasks), "everybody ends", self._who)
        self._check_tasks()
        for reading in self.readings:
            if not reading.is_over:
                reading.check_told()

    def _has_workers(self) -> bool:
        alive = [each for each, task in self.scene.tasks if each.is_alive and not task.done()]
        return any(each.name[0] == GROUP for each in alive)

    @staticmethod
    def _is_consumer(process: LifeProcess) -> bool:
        name = process.name
        return name[0] in (GROUP, JOB) or (name[0] == "r" and name[1].isdigit())

    @staticmethod
    def _have_ended(tasks: list[tuple[LifeProcess, asyncio.Task[Any]]]) -> bool:
        return all(task.done() for process, task in tasks if process.is_alive)

    def _check_tasks(self) -> None:
        """Each once, when it has ended; who is dead ends no more."""
        ended = [each for each in self.scene.unchecked if each[1].done() or not each[0].is_alive]
        for each in ended:
            self.scene.unchecked.remove(each)
            process, task = each
            if process.is_alive:
                require(not task.cancelled(), STUCK, "a program was cancelled by nobody", process)
                error = task.exception()
                if error is not None:
                    raise error

    def _who(self) -> str:
        return "; ".join(
            f"{process}: {_where(task)}"
            for process, task in self.scene.tasks
            if process.is_alive and not task.done()
        )

    async def _remove_all(self, client: Client) -> None:
        """Also groups that were removed: a worker that joined meanwhile, and left before it heard
        of it, leaves its leases behind, and a second removal takes them."""
        for name in dict.fromkeys(each.name for each in self.groups.all):
            await remove_group(self.scene, client, name)
        with contextlib.suppress(NotFound):
            await client.stream(STREAM).remove()

    def _check_processes(self) -> None:
        self._pass_time(LOOK_MS)
        for process in self.scene.processes:
            if process.is_alive:
                left = process.left()
                require(not left, LEFT, f"{process} closed everything, and left", *left[:5])
                process.is_done = True

    # --- waiting

    def _wait_for(self, work: Callable[[Client], Coroutine[Any, Any, Any]], what: str) -> None:
        """By a fresh client, which tries until it gets through."""
        process = self.scene.process("helper", is_safe=True)

        async def run() -> None:
            client = process.new_client()
            for attempt in range(_TRIES):
                try:
                    await work(client)
                    break
                except DlogError as error:
                    self.world.note(f"helper is told {error!r}")
                    if attempt + 1 == _TRIES or self.world.is_calm:
                        raise
                    await asyncio.sleep(0.01)
            await client.close()

        task = process.start(run())
        self._wait_until(task.done, what, lambda: _where(task))
        task.result()

    def _wait_until(
        self, fact: Callable[[], bool], what: str, why: Callable[[], str] = str
    ) -> None:
        until_ms = self.world.now_ms + HEAL_MS
        while not fact() and self.world.now_ms < until_ms:
            self._pass_time(WAIT_MS)
        if not fact():
            raise Violation(STUCK, f"not within {HEAL_MS:.0f} ms: {what} {why()}")

    def _pass_time(self, ms: float) -> None:
        world = self.world
        until_ms = world.now_ms + ms
        while world.now_ms < until_ms:
            slice_ms = min(world.now_ms + LOOK_MS, until_ms)
            world.run(until_ms=slice_ms)
            lost = sum(world.marks[each] for each in _LOST)
            if lost != self._lost:
                self._lost = lost
                self.scene.happened("lost reply")
            self._check_tasks()

    def dispose(self) -> None:
        self.world.end()
        for process in self.scene.processes:
            process.dispose()
            PROCESSES.pop(process.loop, None)


def _where(task: asyncio.Task[Any]) -> str:
    stack = task.get_stack(limit=1)
    return str(stack[-1]) if stack else repr(task)


_decoded: dict[tuple[type, bytes], Any] = {}
_DECODED_MAX = 5_000


def _once_per_value(kind: Any, decoder: Any) -> Any:
    """Metas are values, and most bytes are decoded again and again."""

    def from_bytes(raw: bytes, where: str) -> Any:
        meta = _decoded.get((kind, raw))
        if meta is None:
            if len(_decoded) >= _DECODED_MAX:
                _decoded.clear()
            meta = _decoded[kind, raw] = decoder(raw, where=where)
        return meta

    return from_bytes


@contextlib.contextmanager
def _small(weather: LifeWeather) -> Iterator[None]:
    """Few producers are remembered, if the weather says so; metas are decoded once."""
    kept = limits.PRODUCERS_MAX, limits.INHERITED_ROWS_MAX
    decoders = [(kind, vars(kind)["from_bytes"]) for kind in (LogMeta, StreamMeta)]
    if weather.forgets:
        limits.PRODUCERS_MAX, limits.INHERITED_ROWS_MAX = 2, 4
    for kind, _ in decoders:
        once = staticmethod(_once_per_value(kind, kind.from_bytes))
        setattr(kind, "from_bytes", once)  # noqa: B010 - a method
    try:
        yield
    finally:
        limits.PRODUCERS_MAX, limits.INHERITED_ROWS_MAX = kept
        for kind, decoder in decoders:
            setattr(kind, "from_bytes", decoder)  # noqa: B010 - a method


def run_life_history(chance: Chance, *, told: bool = False, **fixed: Any) -> World:
    """Raises `Violation` at the event that breaks a promise. `fixed` sets options of the weather
    instead of drawing them."""
    world = World(chance, told=told)
    world.events_max = chance.events_max or EVENTS_MAX
    weather = draw_life_weather(chance)
    weather.fix(**fixed)
    with (
        settings(world) as unheard,
        simulated_clients(world),
        _small(weather),
        hooks_restored(),
    ):
        history = LifeHistory(world, weather)
        leaves = True  # there is something that nobody is to hear of
        try:
            history.run()
            leaves = any(not process.is_done for process in history.scene.processes)
            if leaves:
                gc.collect(0)
        finally:
            with silence():
                heard = list(unheard)
                history.dispose()
                broken = sys.exc_info()[1]
                forget_frames(broken)
                del history
                if leaves:
                    gc.collect(1 if broken is None else 2)
                    unheard[:] = heard
        gc.collect(0)
        require(not unheard, "I25", "a failure or a leak was told to nobody", *unheard[:5])
    return world
