"""A handle that does not get on says so by itself: one warning when a wait has lasted for too long,
one when it is over, and a count by reason.

It looks from time to time, by a timer, so that a thousand handles have no task each. What a wait is
and since when it lasts, the handle says; waits that are nobody's trouble (`AT_REST`) are no stalls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from dlog.clock import Clock
from dlog.reason import AT_REST, Wait, time_text

LOOKS = 4  # in the time after which a wait is a stall
LOOK_S_MIN, LOOK_S_MAX = 0.02, 5.0


class StallWatch:
    def __init__(
        self,
        who: str,
        look: Callable[[], Wait | None],
        *,
        after_ms: int,
        clock: Clock,
        log: logging.Logger,
        on_change: Callable[[Wait | None], None] = lambda wait: None,
    ) -> None:
        """`on_change` hears of the wait when it becomes a stall, and None when that is over. With
        `after_ms` 0 nothing is watched."""
        self._who = who
        self._look = look
        self._after_s = after_ms / 1000
        self._clock = clock
        self._log = log
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._watches = self._stopped = False
        self._since_s: float | None = None  # of the stall that is under way

    def start(self) -> None:
        self._watches = not self._stopped
        if self._after_s > 0 and self._timer is None:
            self._schedule()

    def reconfigure(self, after_ms: int) -> None:
        """While it is watched: what lasts longer than this from now on."""
        self._after_s = after_ms / 1000
        if not self._watches:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.start()
        if self._after_s == 0 and self._since_s is not None:
            self._since_s = None
            self._on_change(None)

    def stop(self) -> None:
        """Idempotent; from any state."""
        self._watches, self._stopped = False, True
        if self._timer is not None:
            self._timer.cancel()
        if self._since_s is not None:
            self._since_s = None
            self._on_change(None)

    def _schedule(self) -> None:
        step_s = min(max(self._after_s / LOOKS, LOOK_S_MIN), LOOK_S_MAX)
        self._timer = self._loop.call_later(step_s, self._tick)

    def _tick(self) -> None:
        self._schedule()
        self.look()

    def look(self) -> None:
        wait = self._look()
        now_s = self._clock.monotonic_s()
        since_s = self._stalled_since(wait, now_s)
        if since_s is None:
            if self._since_s is not None:
                lasted = time_text(now_s - self._since_s)
                self._since_s = None
                self._log.warning("%s goes on, after %s", self._who, lasted)
                self._on_change(None)
        elif self._since_s is None:
            assert wait is not None
            self._since_s = since_s
            reason = wait.told(now_s=now_s, now_us=self._clock.wall_us())
            self._log.warning(
                "%s stands still for %s: %s (%s)",
                self._who,
                time_text(now_s - since_s),
                reason,
                reason.code.value,
                extra={"reason": reason},
            )
            self._on_change(wait)

    def _stalled_since(self, wait: Wait | None, now_s: float) -> float | None:
        if wait is None or wait.code in AT_REST or wait.since_s is None:
            return None
        return wait.since_s if now_s - wait.since_s >= self._after_s else None
