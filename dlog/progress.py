"""Waiting for a fact of a handle: whoever waits looks again after everything that happens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Progress:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._watchers: list[asyncio.Future[None]] = []

    def tell(self) -> None:
        """Something happened."""
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def until(self, fact: Callable[[], object]) -> None:
        """Raises what looking raises."""
        while not fact():
            watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watchers.append(watcher)
            await watcher
