"""Simulations for programs that use dlog: a test on the async API, run through many short histories
in virtual time, each in another world of trouble.

    from dlog.testing.sim import simulate

    @simulate(histories=200)
    async def test_orders(sim):
        log = await sim.open_writer("orders")
        await log.append(b"paid")
        await sim.trouble()
        async with dlog.aio.open_reader("orders") as reader: ...

Everything that the test opens, by whatever URL, is opened on simulated bookies; `asyncio` works as
it always does, only that no time is lost with waiting. A history that fails is made small: what is
reported is the shortest story that still fails in the same way. `--dlog-seed` and `--dlog-tape`
run it again (see `dlog.testing.pytest_plugin`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import re
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, get_args

from dlog.errors import ConfigError
from dlog.testing.sim import story
from dlog.testing.sim.shrink import Shrunk, shrink
from dlog.testing.sim.simulation import (
    BOOKIES,
    Simulation,
    Stuck,
    Test,
    Troubles,
    run_history,
)
from dlog.testing.sim.tape import Chance, of_seed, of_tape
from dlog.testing.sim.world import Violation, World

HISTORIES_DEFAULT = 100
SHRINK_S = 20.0
_TOLD_LINES_MAX = 80
_TOLD_DRAWS_MAX = 60


@dataclass(slots=True)
class Plan:
    """Which histories are run; the plugin's options, where they were given, go before a test's
    own."""

    histories: int | None = None
    seed: int = 0
    tape: str | None = None
    shrink_s: float = SHRINK_S

    def __post_init__(self) -> None:
        if self.histories is not None and self.histories < 1:
            raise ConfigError(f"histories={self.histories!r}: a number from 1 on")


PLAN = Plan()


class HistoryFailed(AssertionError):
    """A history in which the test failed, told. The cause is the test's own failure."""

    def __init__(self, told: str) -> None:
        super().__init__(told)
        self.dlog_story = told  # the plugin shows it in place of a traceback


def simulate(
    histories: int = HISTORIES_DEFAULT,
    *,
    troubles: Troubles = "bookies",
    bookies: int = BOOKIES,
) -> Callable[[Test], Callable[..., None]]:
    """Makes a test of an async function: its first parameter is the `Simulation`, others are
    pytest's fixtures. `troubles` that come by themselves: of bookies and connections, which dlog
    bears without an error; `"all"`: also the metadata store's, which programs get to see; `"none"`:
    only what the test asks for."""
    for name, number in (("histories", histories), ("bookies", bookies)):
        if type(number) is not int or number < 1:
            raise ConfigError(f"{name}={number!r}: a number from 1 on")
    if troubles not in get_args(Troubles):
        raise ConfigError(f"troubles={troubles!r}: one of {', '.join(get_args(Troubles))}")

    def make(test: Test) -> Callable[..., None]:
        parameters = list(inspect.signature(test).parameters.values())

        def run(*args: Any, **fixtures: Any) -> None:
            given = functools.partial(test, **fixtures)
            # Of a method, the object comes first.
            call = functools.partial(_bound, given, args) if args else given
            _run_all(call, _named(test), histories, troubles, bookies)

        run.__name__, run.__qualname__ = test.__name__, test.__qualname__
        run.__doc__, run.__module__ = test.__doc__, test.__module__
        run.__dict__.update(vars(test))  # pytest's marks
        is_method = bool(parameters) and parameters[0].name == "self"
        others = parameters[:1] + parameters[2:] if is_method else parameters[1:]
        run.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
        return run

    return make


def _bound(test: Test, args: Sequence[Any], sim: Simulation) -> Coroutine[Any, Any, None]:
    return test(*args, sim)


def _named(test: Test) -> str:
    path = Path(inspect.getfile(test))
    with contextlib.suppress(ValueError):
        path = path.relative_to(Path.cwd())
    return f"{path}::{test.__qualname__.replace('.', '::')}"


def _run_all(test: Test, name: str, histories: int, troubles: Troubles, bookies: int) -> None:
    def run(chance: Chance, told: bool) -> tuple[World, BaseException | None]:
        return run_history(test, chance, told=told, troubles=troubles, bookies=bookies)

    if PLAN.tape is not None:
        values = read_tape(PLAN.tape)
        _, error = run(of_tape(values), False)
        if error is not None:
            raise HistoryFailed(_report(name, "the given tape", values, run, None)) from error
        return
    count = histories if PLAN.histories is None else PLAN.histories
    for seed in range(PLAN.seed, PLAN.seed + count):
        chance = of_seed(seed)
        _, error = run(chance, False)
        if error is None:
            continue
        if isinstance(error, (KeyboardInterrupt, SystemExit)) or _is_skip(error):
            raise error
        shrunk = shrink(chance.tape.values, _shrinker(run), seconds=PLAN.shrink_s)
        where = f"history {seed - PLAN.seed + 1} of {count} (seed {seed})"
        told = _report(name, where, shrunk.values, run, (seed, len(chance.tape.values), shrunk))
        raise HistoryFailed(told) from error


Run = Callable[[Chance, bool], tuple[World, BaseException | None]]


def _shrinker(run: Run) -> Callable[[Sequence[float]], tuple[str | None, int]]:
    def verdict(values: Sequence[float]) -> tuple[str | None, int]:
        chance = of_tape(values)
        _, error = run(chance, False)
        return (None if error is None else _fault(error)), chance.tape.drawn

    return verdict


# --- what is told of a failure


def read_tape(text: str) -> list[float]:
    """`12:0.5,40:0.9` (all others are zeros), or a file of JSON with the values."""
    if text.endswith(".json"):
        saved = json.loads(Path(text).read_text())
        return list(saved["values"] if isinstance(saved, dict) else saved)
    draws: dict[int, float] = {}
    for each in filter(None, text.split(",")):
        at, _, value = each.partition(":")
        if re.fullmatch(r"\d+", at) is None or not _is_a_draw(value):
            raise ConfigError(
                f"tape {text!r}: {each!r} is not DRAW:VALUE, a value from 0 to below 1"
            )
        draws[int(at)] = float(value)
    return [draws.get(at, 0.0) for at in range(max(draws, default=-1) + 1)]


def _is_a_draw(value: str) -> bool:
    try:
        return 0.0 <= float(value) < 1.0
    except ValueError:
        return False


def tape_text(values: Sequence[float]) -> str:
    """As it can be given again; a long one is kept in a file."""
    if sum(value > 0.0 for value in values) > _TOLD_DRAWS_MAX:
        with NamedTemporaryFile("w", prefix="dlog-tape-", suffix=".json", delete=False) as file:
            json.dump({"values": list(values)}, file)
        return file.name
    return ",".join(f"{at}:{value!r}" for at, value in enumerate(values) if value > 0.0)


def _report(
    name: str,
    where: str,
    values: Sequence[float],
    run: Run,
    how: tuple[int, int, Shrunk] | None,
) -> str:
    chance = of_tape(values, told=True)
    world, error = run(chance, True)
    assert error is not None
    lines = [f"{name} failed in {where}.", "", *_what(error), ""]
    if how is not None:
        _, drawn, shrunk = how
        lines += [
            f"What it takes: {shrunk.nonzero} of {drawn} draws "
            f"(found by {shrunk.tries} more histories in {shrunk.took_s:.1f} s)"
        ]
    draws = chance.story[:_TOLD_DRAWS_MAX]
    more = len(chance.story) - len(draws)
    lines += [story.table(draws), *([f"… and {more} more"] if more else []), "", "What happened"]
    notes = story.chart(world).splitlines()
    if len(notes) > _TOLD_LINES_MAX:
        notes = [*notes[:20], "…", *notes[-(_TOLD_LINES_MAX - 20) :]]
    lines += [*notes, "", "Run it again"]
    if how is not None:
        lines += [f"  pytest {name} --dlog-seed {how[0]} --dlog-histories 1"]
    lines += [f"  pytest {name} --dlog-tape '{tape_text(values)}'"]
    return "\n".join(lines)


def _what(error: BaseException) -> list[str]:
    """A promise of dlog, or the test's own failure with the lines of the test."""
    if isinstance(error, Violation):
        return [f"A promise did not hold: {error}"]
    frames = _own_frames(_stack(error))
    told = "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])
    return told.rstrip().splitlines()


_LIBRARY = str(Path(__file__).parents[2])


def _own_frames(stack: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Of the test and the programs it runs."""
    library = str(Path(asyncio.__file__).parent)
    own = [each for each in stack if not each.filename.startswith((_LIBRARY, library))]
    return own or list(stack)[-3:]


def _stack(error: BaseException) -> list[traceback.FrameSummary]:
    return error.stack if isinstance(error, Stuck) else traceback.extract_tb(error.__traceback__)


def _fault(error: BaseException) -> str:
    """By which a failure is known again."""
    if isinstance(error, Violation):
        return error.promise
    frames = _own_frames(_stack(error))
    at = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{at}"


def _is_skip(error: BaseException) -> bool:
    """pytest's own: a skip, an xfail."""
    outcomes = sys.modules.get("_pytest.outcomes")
    return outcomes is not None and isinstance(error, outcomes.OutcomeException)
