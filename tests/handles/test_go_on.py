"""Every cell of the table, on the real drivers in virtual time: a call of a store fails once, then
for 20 s, as `Unavailable` and as `Timeout`.

An error says that the handle is usable, and then the same handle goes on within 2 s, without a
verb. While it waits it has a reason. And nothing is asked without a pause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import dlog
from dlog.errors import DlogError, Handle, Retry
from dlog.testing.sim import Simulation, simulate
from tests.handles.faults import CALLS, Faults
from tests.handles.kinds import LIVES
from tests.handles.lives import TURN_S, Life
from tests.handles.table import ROWS, Does

LASTS_S = 20.0
GOES_ON_S = 2.0
ASKED_MAX = 2_000  # of one call in all that time, 44 s

ERRORS: dict[str, Callable[[], DlogError]] = {
    "unavailable": lambda: dlog.Unavailable("it is away"),
    "timeout": lambda: dlog.Timeout("it gave no answer"),
}

CELLS = [(way, call) for way in ROWS for call in CALLS if ROWS[way][call] is not Does.NEVER_ASKS]


def _in_its_tier(way: str, call: str) -> object:
    """What is spared need not be struck; a worker makes many calls, most of which fail it alike."""
    is_told = ROWS[way][call] is not Does.IS_SPARED
    is_worker = way in ("Tracker", "Worker")
    is_first = is_told and (not is_worker or call in ("meta.get", "meta.put", "ledger.read"))
    marks = [] if is_first else [pytest.mark.tier("test")]
    return pytest.param(way, call, marks=marks, id=f"{way} {call}")


@pytest.mark.parametrize(("way", "call"), [_in_its_tier(*cell) for cell in CELLS])
@simulate(histories=1, troubles="none")
async def test_a_handle_goes_on(sim: Simulation, way: str, call: str) -> None:
    faults = Faults(sim.pass_time)
    life = LIVES[way](sim, faults)
    await life.begin()
    await _until_well(life)
    struck = 0
    for name, error in ERRORS.items():
        for times in (1, None):
            sim.note(f"{call} fails: {name}, {'once' if times else 'for long'}")
            await life.get_ready()
            faults.begin(call, error, times)
            await life.news()
            told = await _live(life, GOES_ON_S if times else LASTS_S)
            struck += faults.struck
            faults.end()
            _check_told(told, ROWS[way][call], 1 if times else None)
            await _until_well(life, may_raise=ROWS[way][call] is Does.RAISES)
    await life.end()
    assert struck or ROWS[way][call] is Does.IS_SPARED, "it makes this call"
    assert max(faults.asked.values()) < ASKED_MAX, f"with pauses: {faults.asked}"


@pytest.mark.parametrize("way", ROWS)
@simulate(histories=1, troubles="none")
async def test_a_handle_makes_no_other_calls(sim: Simulation, way: str) -> None:
    """What a row leaves out need not be borne."""
    faults = Faults(sim.pass_time)
    life = LIVES[way](sim, faults)
    await life.begin()
    await _until_well(life)
    await life.news()
    await _until_well(life)
    await life.end()
    left_out = {call for call, does in ROWS[way].items() if does is Does.NEVER_ASKS}
    made = sorted(left_out & faults.asked.keys())
    assert made == [], made


async def _live(life: Life, seconds: float) -> list[DlogError]:
    """What it raised in that time. What it waits for, it says."""
    loop = asyncio.get_running_loop()
    over_s = loop.time() + seconds
    told: list[DlogError] = []
    says = _Says(life)
    while loop.time() < over_s:
        waiting = asyncio.ensure_future(life.turn())
        await asyncio.wait([waiting], timeout=TURN_S)
        if not waiting.done():
            says.check()
            await asyncio.wait([waiting], timeout=max(0.0, over_s - loop.time()))
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])
        elif (error := waiting.exception()) is None:
            says.check()
        elif isinstance(error, DlogError):
            told.append(error)
            await life.sim.pass_time(TURN_S)
        else:
            raise error
    return told


class _Says:
    """Whether a handle that is not well has a reason, or was at work since a moment ago."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._loop = asyncio.get_running_loop()
        self._since_s = self._loop.time()

    def check(self) -> None:
        life, now_s = self._life, self._loop.time()
        if life.is_well or life.why() is not None:
            self._since_s = now_s
        else:
            assert now_s - self._since_s < life.WORKS_S, "a handle that waits has a reason"


async def _until_well(life: Life, *, may_raise: bool = False) -> None:
    """It goes on in time. What failed before it went on may be told, once."""
    loop = asyncio.get_running_loop()
    late_s = loop.time() + GOES_ON_S
    while not life.is_well:
        assert loop.time() < late_s, f"it goes on within {GOES_ON_S} s: {life.owed} {life.why()}"
        try:
            await life.turn()
        except DlogError as error:
            _check_told([error], Does.RAISES if may_raise else Does.WAITS, 1)
            may_raise = False


def _check_told(told: list[DlogError], does: Does, most: int | None) -> None:
    assert does is Does.RAISES or not told, told
    assert most is None or len(told) <= most, told
    for error in told:
        assert error.handle is Handle.USABLE, repr(error)
        assert error.retry is Retry.NOW, repr(error)
