"""Calls of a handle that do not outlive it. Whoever closes the handle cuts them short, and waits
until they are over, before what they use is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dlog.errors import DlogError

Answer = TypeVar("Answer")


class Calls:
    """Those of one handle that run now."""

    def __init__(self, closed: Callable[[], DlogError]) -> None:
        """`closed` makes what a call is told that was cut short."""
        self._closed = closed
        self._running: dict[asyncio.Timeout, asyncio.Future[None]] = {}

    async def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(None) as scope:
                self._running[scope] = ended
                return await work
        except TimeoutError:
            if scope.expired():
                raise self._closed() from None
            raise
        finally:
            del self._running[scope]
            ended.set_result(None)

    async def cut_short(self) -> None:
        """Once this returns, none runs any more."""
        for scope in self._running:
            scope.reschedule(0.0)  # a time that is over
        await asyncio.gather(*self._running.values())
