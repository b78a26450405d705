"""What the modules about histories share: how many of them are played, and planted bugs.

Counts and seeds are fixed, so a slow machine does the same work as a fast one. For long runs by
hand, DLOG_SIM_SECONDS plays for at least so long, and DLOG_SIM_FIRST begins at another seed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dlog.testing.sim import users
from dlog.testing.sim.corpus import hunt_from_telling
from dlog.testing.sim.planted import Plant
from dlog.testing.sim.runs import Hunt, Tally, run_many

FIRST = int(os.environ.get("DLOG_SIM_FIRST", "0"))
SECONDS = float(os.environ.get("DLOG_SIM_SECONDS", "0"))
FULL_TIMEOUT_S = 1_200
SLICE_S = 12.0
MORE = 50  # histories at a time, until what must happen has happened

# A recorded history that does not tell any more is named among the warnings of the run.
names_what_no_longer_tells = pytest.mark.filterwarnings(
    "default::dlog.testing.sim.corpus.NoLongerTelling"
)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Histories of neighbouring seeds."""

    first: int
    count: int

    def __str__(self) -> str:
        return f"{self.first}-{self.first + self.count - 1}"


def stretches(middle: int, long: int, *, per_minute: int) -> pytest.MarkDecorator:
    """Runs the test with a `stretch` of histories: the first `middle` ones in the tier test, and in
    the tier full `long` more, in slices of about SLICE_S. A quiet core plays `per_minute`."""
    timeout = pytest.mark.timeout(FULL_TIMEOUT_S + 2 * SECONDS)
    usual = (pytest.mark.tier("test"), timeout)
    size = max(middle, round(per_minute * SLICE_S / 60))
    full = (pytest.mark.tier("full", seconds=60 * size / per_minute), timeout)
    params = [pytest.param(Stretch(FIRST, middle), marks=usual, id=str(Stretch(FIRST, middle)))]
    for first in range(FIRST + middle, FIRST + middle + long, size):
        part = Stretch(first, size)
        params.append(pytest.param(part, marks=full, id=str(part)))
    return pytest.mark.parametrize("stretch", params)


def counts(middle: int, long: int, *, seconds: float) -> pytest.MarkDecorator:
    """Runs the test with `count` histories: the middle count each time, and in full the long one,
    which takes so many seconds."""
    full = (pytest.mark.tier("full", seconds=seconds), pytest.mark.timeout(FULL_TIMEOUT_S))
    usual = (pytest.mark.tier("test"), pytest.mark.timeout(180))
    return pytest.mark.parametrize(
        "count", [pytest.param(middle, marks=usual), pytest.param(long, marks=full)]
    )


def play(world: str, stretch: Stretch, **fixed: Any) -> Tally:
    """These histories of the world. Raises if one of them breaks a promise."""
    first, count = stretch.first, stretch.count
    if SECONDS:
        tally = run_many(world, first, seconds=SECONDS, at_least=count, **fixed)
    else:
        tally = run_many(world, first, count, **fixed)
    print(f"{tally.histories} histories of {world}, {tally.per_minute:,.0f} a minute")
    tally.check()
    return tally


def play_and_meet(
    world: str, stretch: Stretch, facts: Iterable[str], points: Iterable[str] = (), *, within: int
) -> None:
    """These histories. All of these facts must happen in them, and all of these crash points be
    reached. As long as some are missing, more histories are played behind them, `within` in all: if
    that is not enough, they are too tame."""
    wanted = [*facts, *points]
    assert wanted, "nothing has to happen"
    tally = play(world, stretch)
    met = tally.marks + tally.points
    while (missing := [each for each in wanted if not met[each]]) and tally.histories < within:
        count = min(MORE, within - tally.histories)
        more = play(world, Stretch(stretch.first + tally.histories, count))
        met += more.marks + more.points
        tally.histories += more.histories
    assert not missing, f"none of {tally.histories} histories met {missing}"


def noticed(plant: Plant, *, count: int) -> Hunt:
    """Fails unless the planted bug is noticed within `count` histories behind the recorded one.
    One that does not fit its surroundings any more raises `StalePlant`."""
    found = hunt_from_telling(plant, count=count)
    assert found.finding is not None, f"{found.histories} histories"
    return found


@contextmanager
def fails_as_it_is() -> Iterator[None]:
    """A story must fail in here. What it takes is not looked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(users, "PLAN", replace(users.PLAN, shrink_s=0.0))
        with pytest.raises(users.HistoryFailed):
            yield
