"""Running histories by the thousand, and what comes of it: a tally, findings that say how to see
them again, tapes that are kept."""

from __future__ import annotations

import gc
import json
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlog.testing.sim.garbage import collected_at_the_end, forget_frames
from dlog.testing.sim.planted import Plant, planted
from dlog.testing.sim.shrink import Shrunk, shrink
from dlog.testing.sim.tape import Chance, Tape, of_seed, of_tape
from dlog.testing.sim.world import ENDLESS, EVENTS_MAX, Violation, World
from dlog.testing.sim.worlds import WORLDS


@dataclass(slots=True)
class Finding:
    """A history that broke a promise."""

    world: str
    promise: str
    what: str
    values: list[float]
    seed: int | None = None
    error: Exception | None = None

    @property
    def repeat(self) -> str:
        which = "TAPE.json" if self.seed is None else str(self.seed)
        return f"python -m dlog.testing.sim tell {self.world} {which}"

    def __str__(self) -> str:
        seed = "" if self.seed is None else f"seed {self.seed}: "
        return f"{seed}{self.promise}: {self.what}\nrepeat it with: {self.repeat}"


def run_one(
    world: str, chance: Chance, *, told: bool = False, **fixed: Any
) -> tuple[World | None, Finding | None]:
    """The world as it ended, and what was wrong in it."""
    found: tuple[str, str, Exception]
    try:
        return WORLDS[world](chance, told=told, **fixed), None
    except Violation as violation:
        found = violation.promise, violation.what, violation
    except Exception as raised:  # noqa: BLE001 - whatever a core raises is a finding
        last = traceback.extract_tb(raised.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}: {last.line}"
        found = f"raised {type(raised).__name__}", f"{raised} ({where})", raised
    promise, what, error = found
    forget_frames(error)  # or the error would keep the whole history alive
    return chance.world, Finding(world, promise, what, list(chance.tape.values), error=error)


def run_seed(world: str, seed: int, **fixed: Any) -> tuple[World | None, Finding | None]:
    ended, finding = run_one(world, of_seed(seed), **fixed)
    if finding is not None:
        finding.seed = seed
    return ended, finding


@dataclass(slots=True)
class Tally:
    """Of many histories."""

    world: str
    histories: int = 0
    events: int = 0
    draws: int = 0
    took_s: float = 0.0
    marks: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    @property
    def per_minute(self) -> float:
        return 60 * self.histories / self.took_s if self.took_s else 0.0

    def check(self) -> None:
        """Raises the first finding, if there is any. Without a history nothing is proven."""
        if not self.histories:
            raise ValueError(f"no history of {self.world} was played: they prove nothing")
        for finding in self.findings:
            raise Violation(finding.promise, f"{finding.what}\n{finding}") from finding.error


FINDINGS_MAX = 50


def run_many(
    world: str,
    first: int = 0,
    count: int | None = None,
    *,
    seconds: float | None = None,
    at_least: int = 0,
    stops: bool = False,
    **fixed: Any,
) -> Tally:
    """So many histories, or as many as fit into the time; `stops` at the first finding."""
    with collected_here():
        return _run_many(world, first, count, seconds, at_least, stops, fixed)


@contextmanager
def collected_here() -> Iterator[None]:
    """Collects the garbage of the histories that are played inside, and of nothing else.

    A world is one knot of objects, garbage as a whole once its history is over, so the collector
    rests meanwhile."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        with collected_at_the_end():
            yield
    finally:
        if was_on:
            gc.enable()


def _run_many(
    world: str,
    first: int,
    count: int | None,
    seconds: float | None,
    at_least: int,
    stops: bool,
    fixed: dict[str, Any],
) -> Tally:
    tally = Tally(world)
    began_s = time.perf_counter()
    seed = first
    while count is None or seed < first + count:
        late = seconds is not None and time.perf_counter() - began_s >= seconds
        if late and seed - first >= at_least:
            break
        chance = of_seed(seed)
        ended, finding = run_one(world, chance, **fixed)
        tally.histories += 1
        tally.draws += chance.tape.drawn
        if ended is not None:
            tally.events += ended.events
            tally.marks.update(ended.marks)
            tally.points.update(ended.points)
        if finding is not None:
            finding.seed = seed
            tally.findings.append(finding)
            if stops or len(tally.findings) >= FINDINGS_MAX:
                break
        seed += 1
        ended = chance.world = None
        gc.collect(0)
    tally.took_s = time.perf_counter() - began_s
    return tally


# --- planted bugs

# A bug that does not fit the code any more raises one of these, and shows nothing.
STALE = (AttributeError, NameError, TypeError)


class StalePlant(Exception):
    """A planted bug raised where it was planted. That is noticed by any test, and proves none."""


@dataclass(slots=True)
class Hunt:
    """What became of a planted bug."""

    plant: Plant
    histories: int
    took_s: float
    finding: Finding | None


def hunt(
    plant: Plant, *, first: int = 0, count: int | None = None, seconds: float | None = None
) -> Hunt:
    with planted(plant):
        tally = run_many(plant.world, first, count, seconds=seconds, stops=True, **plant.fixed)
    finding = tally.findings[0] if tally.findings else None
    if finding is not None and isinstance(finding.error, STALE):
        raise StalePlant(f"{plant.name} does not fit the code any more: {finding}")
    return Hunt(plant, tally.histories, tally.took_s, finding)


# --- shrinking

_LONGER, _EVENTS_MIN = 2, 1_000


def shrink_tape(
    world: str,
    values: Sequence[float],
    *,
    seconds: float = 60.0,
    tries: int | None = None,
    **fixed: Any,
) -> Shrunk:
    """The same promise must break, and not later by far: where nothing takes any time, some
    histories go round for ever."""
    whole = of_tape(values)
    _, first = run_one(world, whole, **fixed)
    events_max = 0 if whole.world is None else _LONGER * whole.world.events + _EVENTS_MIN
    if first is None or first.promise == ENDLESS or not events_max:
        events_max = EVENTS_MAX

    def run(tape: Sequence[float]) -> tuple[str | None, int]:
        chance = of_tape(tape)
        chance.events_max = events_max
        _, finding = run_one(world, chance, **fixed)
        chance.world = None
        gc.collect(0)
        return (None if finding is None else finding.promise), chance.tape.drawn

    with collected_here():
        return shrink(values, run, seconds=seconds, tries=tries)


# --- tapes that are kept


@dataclass(slots=True)
class SavedTape:
    world: str
    values: list[float]
    promise: str | None  # that broke when it was saved
    note: str = ""
    fixed: dict[str, Any] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        saved = {
            "world": self.world,
            "promise": self.promise,
            "note": self.note,
            "fixed": self.fixed,
            "values": self.values,
        }
        path.write_text(json.dumps(saved, indent=None) + "\n")

    def chance(self, *, told: bool = False) -> Chance:
        return Chance(Tape(self.values), told=told)


def load_tape(path: Path) -> SavedTape:
    saved = json.loads(path.read_text())
    return SavedTape(
        saved["world"],
        [float(value) for value in saved["values"]],
        saved.get("promise"),
        saved.get("note", ""),
        saved.get("fixed", {}),
    )
