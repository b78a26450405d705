"""What the programs of a history of `streams-life` share, and what they may be told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dlog.errors import (
    AlreadyExists,
    ConfigError,
    Conflict,
    DlogError,
    Fenced,
    LeaseLost,
    NotFound,
    ReaderClosed,
    Timeout,
    Truncated,
    Unavailable,
    Unsupported,
    WriterClosed,
)
from dlog.testing.sim.meta_store import MetaTree
from dlog.testing.sim.simulation import PROCESSES
from dlog.testing.sim.streams_life_pairs import Features
from dlog.testing.sim.streams_life_process import SLEEPS_MS, Ledgers, LifeProcess
from dlog.testing.sim.streams_life_truth import TOLD, Truth
from dlog.testing.sim.streams_life_weather import LifeWeather
from dlog.testing.sim.world import World

# Whatever else is raised is a defect, of the product or of the judge.
EXPECTED = (
    AlreadyExists,
    ConfigError,
    Conflict,
    Fenced,
    LeaseLost,
    NotFound,
    ReaderClosed,
    Timeout,
    Truncated,
    Unavailable,
    Unsupported,
    WriterClosed,
)
STEPS_MAX = 40


class Scene:
    def __init__(self, world: World, weather: LifeWeather) -> None:
        self.world, self.weather = world, weather
        self.tree = MetaTree(world, weather.meta)
        self.ledgers = Ledgers(world, weather.ledgers)
        self.truth = Truth(world, self.ledgers)
        self.features = Features(world)
        self.processes: list[LifeProcess] = []
        self.tasks: list[tuple[LifeProcess, asyncio.Task[Any]]] = []
        self.unchecked: list[tuple[LifeProcess, asyncio.Task[Any]]] = []  # how these ended
        self.is_ending = False  # programs end when they are done
        self.are_readers_ending = False
        self.last_uid: str | None = None
        self.tree.audit = self.truth.on_write
        drop = self.tree._drop

        def dropped(path: str) -> None:
            drop(path)
            self.truth.on_drop(path)

        self.tree._drop = dropped  # type: ignore[method-assign]
        self.truth.on_made = self._on_made

    def _on_made(self, stream: Any) -> None:
        self.features.made(stream.uid, self.last_uid)
        self.last_uid = stream.uid

    def happened(self, feature: str, uid: str | None = None) -> None:
        if uid is None and self.truth.now is not None:
            uid = self.truth.now.uid
        self.features.happened(uid or self.last_uid, feature)

    def process(self, name: str, *, is_safe: bool = False) -> LifeProcess:
        """A new one, with its fate."""
        world, weather = self.world, self.weather
        process = LifeProcess(world, name, self.tree, self.ledgers)
        process.meta_ms = weather.meta_ms
        process.on_trouble = self._on_trouble
        PROCESSES[process.loop] = process
        self.processes.append(process)
        if not is_safe:
            chance = world.chance
            if chance.hits(weather.sleeps, f"{name} will sleep"):
                process.sleep_at(self._step(), chance.delay(SLEEPS_MS, "its sleep"))
            if chance.hits(weather.dies, f"{name} will die"):
                process.die_at(self._step())
        return process

    def _step(self) -> int:
        """Early ones more often: most procedures are short."""
        return 1 + int(STEPS_MAX * self.world.chance.random() ** 2)

    def _on_trouble(self, what: str) -> None:
        self.happened(what)

    def start(self, process: LifeProcess, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = process.start(self._guarded(process, work))
        self.tasks.append((process, task))
        self.unchecked.append((process, task))
        return task

    async def _guarded(self, process: LifeProcess, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except EXPECTED as error:
            self.world.note(f"{process.name} ends: {error!r}")
            raise

    def later(self, within_ms: float, what: Callable[[], None], *, after_ms: float = 0.0) -> None:
        delay_ms = after_ms + self.world.chance.random() * within_ms
        self.world.after(delay_ms, lambda: None if self.world.is_calm else what())

    def check_expected(self, who: str, error: DlogError) -> None:
        is_known = isinstance(error, EXPECTED)
        self.truth.require(is_known, TOLD, f"{who} is told {error!r}")
        if self.world.is_told:
            self.world.note(f"{who} is told {error!r}")

    async def pause(self, mean_ms: float) -> None:
        await asyncio.sleep((0.5 + self.world.chance.delay(mean_ms)) / 1000)
