"""Figures gathered for a second and told together: on the append path they cost an addition each,
whatever a sink costs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

FLUSH_S = 1.0


class Flusher:
    """Belongs to the loop that it is made on."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """There is something to tell."""
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self.now)

    def now(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._flush()
