"""Telling histories: for each planted bug a seed whose history notices it.

A test of a planted bug begins with its telling history, so it seldom plays another one. The corpus
of a world is made of the telling histories of its planted bugs. Played without any planted bug, it
notices a real bug of the same kind. `python -m dlog.testing.sim plants --record` writes the file.
"""

from __future__ import annotations

import functools
import json
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dlog.errors import ConfigError
from dlog.testing.sim.planted import Plant, planted
from dlog.testing.sim.runs import (
    STALE,
    Finding,
    Hunt,
    collected_here,
    hunt,
    run_many,
    run_seed,
)
from dlog.testing.sim.worlds import WORLDS

FILE = Path(__file__).parent / "planted" / "telling.json"
CANDIDATES = 5
CHEAPER_S = 0.5  # of processor time, for a cheaper history than the first one
# A world whose telling histories take fewer events than this together keeps all of them.
EVENTS_KEPT_MAX = 800_000


class NoLongerTelling(UserWarning):
    """A recorded history does not notice its planted bug any more."""


@dataclass(frozen=True, slots=True)
class Telling:
    """A history that notices the planted bug `name`."""

    name: str
    world: str
    seed: int
    events: int  # of the history without the bug: what it costs
    fixed: dict[str, Any]
    by: str | None = None  # the telling history of another bug that notices this one, too

    @property
    def is_played(self) -> bool:
        """Is it part of the corpus?"""
        return self.by is None

    def line(self) -> str:
        told = {"name": self.name, "world": self.world, "seed": self.seed, "events": self.events}
        by = {} if self.by is None else {"by": self.by}
        return json.dumps({**told, **by, "fixed": self.fixed})


# --- the file


def load(path: Path | None = None) -> dict[str, Telling]:
    """By the name of the bug. A file that is not there is an error: no history proves nothing."""
    found = (_of(each) for each in json.loads((path or FILE).read_text()))
    return {each.name: each for each in found}


@functools.cache
def recorded() -> dict[str, Telling]:
    return load()


def save(tellings: Iterable[Telling], path: Path | None = None) -> None:
    path = path or FILE
    ordered = sorted(tellings, key=lambda each: (each.world, each.name))
    path.write_text("[\n" + ",\n".join(each.line() for each in ordered) + "\n]\n")
    recorded.cache_clear()


def _of(line: dict[str, Any]) -> Telling:
    line["fixed"] = {name: _untied(value) for name, value in line["fixed"].items()}
    return Telling(**line)


def _untied(value: Any) -> Any:
    """JSON has no tuples, and weather has no lists."""
    return tuple(map(_untied, value)) if isinstance(value, list) else value


def corpus(world: str) -> list[Telling]:
    """The histories of this world that are played without any bug."""
    if world not in WORLDS:
        raise ConfigError(f"no world {world!r}; known are {', '.join(WORLDS)}")
    return [each for each in recorded().values() if each.world == world and each.is_played]


def is_current(telling: Telling | None, plant: Plant) -> bool:
    """Was it recorded in the weather that the planted bug has now?"""
    return telling is not None and (telling.world, telling.fixed) == (plant.world, plant.fixed)


# --- playing


def play(telling: Telling, *, harder: dict[str, Any] | None = None) -> Finding | None:
    """What is wrong in this history. With the bug planted there should be something."""
    with collected_here():
        fixed = {**telling.fixed, **(harder or {})}
        return run_seed(telling.world, telling.seed, **fixed)[1]


def hunt_from_telling(plant: Plant, *, count: int) -> Hunt:
    """The recorded history first. If it does not notice the bug, others from seed 0 on."""
    telling = recorded().get(plant.name)
    hunted = replace(plant, fixed={**plant.fixed, **plant.harder})
    if telling is not None and telling.world == plant.world:
        found = hunt(hunted, first=telling.seed, count=1)
        if found.finding is not None:
            return found
        warnings.warn(
            NoLongerTelling(
                f"seed {telling.seed} does not notice {plant.name} any more; record another with "
                f"python -m dlog.testing.sim plants --record {plant.name}"
            ),
            stacklevel=2,
        )
    return hunt(hunted, count=count)


# --- recording


def find_telling(plant: Plant, *, seconds: float, first: int = 0) -> Telling | None:
    """The cheapest of the first few histories that notice the bug, found in about this much
    processor time. None if there is none."""
    seeds: list[int] = []
    fixed = {**plant.fixed, **plant.harder}
    began_s = time.process_time()
    ends_s = began_s + seconds
    with planted(plant):
        while len(seeds) < CANDIDATES and time.process_time() < ends_s:
            tally = run_many(
                plant.world,
                first,
                seconds=max(ends_s - time.process_time(), 0),
                stops=True,
                **fixed,
            )
            first += tally.histories
            seeds += [first - 1 for found in tally.findings if not isinstance(found.error, STALE)]
            if len(seeds) == 1 and tally.findings:
                ends_s = min(ends_s, time.process_time() + CHEAPER_S)
    candidates = [each for seed in seeds if (each := _healthy(plant, seed)) is not None]
    return min(candidates, key=lambda each: (each.events, each.seed), default=None)


def _healthy(plant: Plant, seed: int) -> Telling | None:
    """None if the history breaks a promise without the bug, too."""
    with collected_here():
        ended, finding = run_seed(plant.world, seed, **plant.fixed)
    if ended is None or finding is not None:
        return None
    return Telling(plant.name, plant.world, seed, ended.events, plant.fixed)


def reduce(tellings: dict[str, Telling], plants: dict[str, Plant]) -> Iterator[Telling]:
    """Set cover, the cheapest first: a history is left out of the corpus if one that is kept
    notices its bug. Worlds that are cheap keep all of theirs."""
    for world in sorted({each.world for each in tellings.values()}):
        here = [replace(each, by=None) for each in tellings.values() if each.world == world]
        if sum(each.events for each in here) <= EVENTS_KEPT_MAX:
            yield from here
            continue
        left = sorted(here, key=lambda each: (each.events, each.name))
        while left:
            kept, *left = left
            yield kept
            noticed = [each for each in left if _notices(kept, plants[each.name])]
            yield from (replace(each, by=kept.name) for each in noticed)
            left = [each for each in left if each not in noticed]


def _notices(telling: Telling, plant: Plant) -> bool:
    with planted(plant):
        finding = play(telling, harder=plant.harder)
    return finding is not None and not isinstance(finding.error, STALE)
