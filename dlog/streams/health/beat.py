"""The task beside a core: it calls the core when something is due or was told, and is there only
while there is anything to wait for."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from dlog.clock import Clock

_log = logging.getLogger("dlog.streams.health")

# Between two calls: what is due in less is due, as far as clocks can tell; and a clock may stop.
WAIT_S_MIN = 0.001
WAIT_S_MAX = 3600.0


class Beat:
    """`pulse` does what is due and says when it wants to be called again: at that time of the
    clock, or, at infinity, not before `wake`. While `is_busy` the task stays all the same."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        pulse: Callable[[], float],
        is_busy: Callable[[], bool],
        on_failure: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        self._name = name
        self._clock = clock
        self._pulse = pulse
        self._is_busy = is_busy
        self._on_failure = on_failure
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def wake(self) -> None:
        """Something was told. Never waits."""
        self._woken.set()
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)
            self._task.add_done_callback(self._on_ended)

    async def close(self) -> None:
        self._closed = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            due_s = self._pulse()
            if due_s == math.inf and not self._is_busy():
                return
            wait_s = min(max(due_s - self._clock.monotonic_s(), WAIT_S_MIN), WAIT_S_MAX)
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                pass

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            _log.error("%s has failed: %s", self._name, error, exc_info=error)
            self._closed = True
            self._on_failure(error)
        elif self._woken.is_set():
            self.wake()  # by something that came as it ended
