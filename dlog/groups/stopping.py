"""That a shard is being given up, and waiting for something else that ends then."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any


class Stopped(Exception):
    """The shard is being given up."""


class Stopping(asyncio.Event):
    def check(self) -> None:
        if self.is_set():
            raise Stopped

    async def sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait()
        self.check()

    async def cuts(self, work: Awaitable[Any]) -> Any:
        """What it gives, or `Stopped`: then it is cancelled."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise Stopped
        finally:
            for each in (task, stop):
                each.cancel()
            await asyncio.gather(task, stop, return_exceptions=True)
