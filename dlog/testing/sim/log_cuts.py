"""Short histories of truncation alone: the log has its segments from the start, written by a real
writer in a calm world and copied for each history, and what is drawn is who truncates, holds, reads
and collects it, and where they die. A tenth of the price of `log-life`, whose actors and oracles
these are; in some of them somebody still writes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dlog.testing.sim.abstract_ledgers import AbstractLedger, AbstractLedgers
from dlog.testing.sim.clients import Scene
from dlog.testing.sim.log_oracle import LogOracle
from dlog.testing.sim.log_swarm import LogWeather, draw_log_weather
from dlog.testing.sim.log_world import ONE_COPY, LogHistory, abstract_scene, settings
from dlog.testing.sim.log_writers import SimWriter
from dlog.testing.sim.metadata import SimMeta
from dlog.testing.sim.tape import Chance, of_seed
from dlog.testing.sim.world import World

MESSAGES_OF_A_SEGMENT = 2
SEGMENTS = (2, 1, 3, 5, 8)
WRITING_MS = 60_000.0  # virtual


@dataclass(frozen=True, slots=True)
class Shape:
    """What a log can be told by before anybody truncates it."""

    segments: int
    page_segments: int
    retention_bytes: int | None
    retention_age_s: int | None
    grace_s: int


@dataclass(frozen=True, slots=True)
class Past:
    """A log as its writer left it."""

    nodes: Sequence[tuple[str, bytes]]
    ledgers: Sequence[AbstractLedger]
    oracle: LogOracle


@functools.cache
def past_of(shape: Shape) -> Past:
    world = World(of_seed(shape.segments))
    world.is_calm = True
    weather = LogWeather(
        page_segments=shape.page_segments,
        retention_bytes=shape.retention_bytes,
        retention_age_s=shape.retention_age_s,
        grace_s=shape.grace_s,
        appends=MESSAGES_OF_A_SEGMENT * shape.segments,
    )
    with settings(world, weather):
        scene = abstract_scene(world, weather)
        history = LogHistory(scene)  # which knows the options of the log
        writer = SimWriter(history.scene, "w")
        writer.open(lambda: None)
        world.run(until_ms=WRITING_MS, done=lambda: writer.handle is not None)
        for number in range(shape.segments):
            for _ in range(MESSAGES_OF_A_SEGMENT):
                writer.submit(1)
                _resolve(world, writer)
            if number < shape.segments - 1:
                writer.ask_rotation()
                world.run(until_ms=world.now_ms + 500.0)
        writer.close()
        world.run(until_ms=WRITING_MS, done=lambda: writer.is_closed)
    assert writer.is_closed, "the past of a log came to no end"
    oracle = history.oracle
    paths = [path for path in scene.meta.paths() if oracle.is_of_the_log(path)]
    nodes = [(path, scene.meta.value(path) or b"") for path in paths]
    return Past(nodes, list(scene.ledgers.ledgers.values()), oracle)


def _resolve(world: World, writer: SimWriter) -> None:
    handle = writer.handle
    assert handle is not None
    world.run(until_ms=WRITING_MS, done=lambda: handle.resolved == len(handle.sent))


def scene_after(past: Past, world: World, weather: LogWeather) -> Scene:
    last_id = max(ledger.id for ledger in past.ledgers)
    manners = dataclasses.replace(weather.ledgers, first_id=last_id)
    meta = SimMeta(world, weather.meta)
    for path, value in past.nodes:
        meta.store(path, value)
    ledgers = AbstractLedgers(world, manners, meta)
    ledgers.ledgers = {each.id: dataclasses.replace(each) for each in past.ledgers}
    oracle = LogOracle(world, meta, ledgers)
    oracle.begin_as(past.oracle)
    return Scene(world, weather, meta, ledgers, oracle, ONE_COPY)


class CutHistory(LogHistory):
    def run(self) -> None:
        world, weather = self.world, self.weather
        at = self._some_time
        for i in range(weather.writers):
            world.after(at(), functools.partial(self._start_writer, f"w{i}", 0))
        self._begin_readers()
        self._begin_life()
        world.run(until_ms=self._span_ms)
        self._heal()

    def _heal(self) -> None:
        if self.writers or self.world.chance.hits(0.04, "somebody writes after all"):
            super()._heal()
            return
        self._end_faults()
        now = self.oracle.now
        assert now is not None
        self._check_end(now.uid)


def draw_cut_weather(chance: Chance) -> LogWeather:
    """Faults as anywhere; the work is somebody's at the other end."""
    weather = draw_log_weather(chance, life=1.0)
    return dataclasses.replace(
        weather,
        slow=min(weather.slow, 10.0),
        span=1.0,
        # Ends are few, and half of them shall meet a writer.
        writers=chance.pick(
            (0, 1) if weather.terminators else (0, 0, 0, 0, 0, 0, 0, 0, 0, 1),
            "writers of the log as it is",
        ),
        incarnations=1,
        standbys=0,
        removers=0,
        appends=chance.pick((1, 2), "appends more"),
        rotate_every=1,
        takeover="always",
        readers=chance.pick((1, 1, 2, 0), "readers of the log as it is"),
        truncations=chance.pick((1, 1, 2, 3), "truncations"),
        collectors=chance.pick((1, 0, 2), "collectors"),
        holders=chance.pick((0, 0, 1, 2), "holders"),
    )


def run_cut_history(chance: Chance, *, told: bool = False, **fixed: Any) -> World:
    world = World(chance, told=told)
    weather = draw_cut_weather(chance)
    segments = fixed.pop("segments", None) or chance.pick(SEGMENTS, "segments there are")
    if fixed:
        weather = weather.fixed(**fixed)
    past = past_of(
        Shape(
            segments,
            weather.page_segments,
            weather.retention_bytes,
            weather.retention_age_s,
            weather.grace_s,
        )
    )
    with settings(world, weather):
        CutHistory(scene_after(past, world, weather)).run()
    return world
