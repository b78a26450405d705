"""How slow this machine is now: deadlines of waiting tests are stretched by it, at most by four.

A test waits for a fact until a deadline. The deadline suits a quiet machine; where other programs
take the processors, the same fact comes later and nothing is wrong. `slowness()` times a fixed
piece of work by the wall clock. `STRETCHED` keeps each factor above 1 that a wait used, and the run
prints the largest at its end, so that a regression cannot hide behind it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SLOWNESS_MAX = 4.0
QUIET_PROBE_S = 0.010  # the work below on a quiet core of the machine that the figures are of
PROBES = 5
_ROUNDS = 330_000

STRETCHED: list[float] = []


def _work() -> int:
    total = 0
    for number in range(_ROUNDS):
        total += number & 7
    return total


def slowness(clock: Callable[[], float] = time.perf_counter) -> float:
    """1.0 on a quiet machine, up to SLOWNESS_MAX on a busy or slow one."""
    took = []
    for _ in range(PROBES):
        began = clock()
        _work()
        took.append(clock() - began)
    return min(max(sum(took) / PROBES / QUIET_PROBE_S, 1.0), SLOWNESS_MAX)


def stretched(deadline_s: float) -> float:
    """The deadline for this machine as busy as it is now."""
    factor = slowness()
    if factor > 1.0:
        STRETCHED.append(factor)
    return deadline_s * factor


def within(took_s: float, bound_s: float) -> bool:
    """Whether something took less than its bound, on this machine as busy as it is now."""
    return took_s < bound_s or took_s < stretched(bound_s)


@asynccontextmanager
async def timeout(seconds: float) -> AsyncIterator[None]:
    """`asyncio.timeout`, but what takes too long has the deadline for this machine. What ends in
    time costs no measurement, which is 50 ms of a core."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.timeout(None) as scope:
        passed = loop.call_later(seconds, lambda: scope.reschedule(began_s + stretched(seconds)))
        try:
            yield
        finally:
            passed.cancel()


def waited(wait: Callable[[float], bool], seconds: float) -> bool:
    """Of a thread that waits by `threading.Event.wait` or the like: likewise."""
    return wait(seconds) or wait(stretched(seconds) - seconds)


class Deadline:
    """`passed()` is asked again and again. When the time is over the machine's speed is measured,
    once, and the deadline is moved accordingly: a wait that ends in time costs no measurement."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = seconds
        self._began_s = clock()
        self._end_s = self._began_s + seconds
        self._was_moved = False

    def passed(self) -> bool:
        if self._clock() < self._end_s:
            return False
        if not self._was_moved:
            self._was_moved = True
            self._end_s = self._began_s + stretched(self._seconds)
        return self._clock() >= self._end_s
