"""Patience with others that a stall of our own does not use up.

A process that is stopped, or whose machine is busy, reads late what others said in time. So the
silence of a peer is measured in the time that this process was awake for: of a moment that is
looked at late, only a little counts. Limits that a caller sets are in plain time.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

from dlog.clock import Clock

_SLICES = 8  # of a timeout: a stall of ours counts as two of them at most


class AwakeClock:
    """A clock that skips stalls: between two looks at it pass at most `step_s`. Whoever measures
    with it looks at it more often than that."""

    def __init__(self, clock: Clock, step_s: float) -> None:
        self._clock = clock
        self._step_s = step_s
        self._looked_s = self._now_s = clock.monotonic_s()

    def wall_us(self) -> int:
        return self._clock.wall_us()

    def monotonic_s(self) -> float:
        before_s, self._looked_s = self._looked_s, self._clock.monotonic_s()
        self._now_s += min(self._looked_s - before_s, self._step_s)
        return self._now_s


class AwakeTimeout:
    """As `asyncio.timeout`, of a peer that has `seconds` of our attention to answer."""

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._slice_s = seconds / _SLICES
        self._scope = asyncio.timeout(None)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        self._schedule()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._scope.__aexit__(kind, error, trace)

    def _schedule(self) -> None:
        self._began_s = self._loop.time()
        self._timer = self._loop.call_later(min(self._slice_s, self._left_s), self._look)

    def _look(self) -> None:
        self._timer = None
        self._left_s -= min(self._loop.time() - self._began_s, 2 * self._slice_s)
        if self._left_s > 1e-6:
            self._schedule()
        else:
            self._scope.reschedule(self._loop.time())
