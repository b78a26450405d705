"""Several waits as one. `asyncio.gather` lets the others run on when one has failed, so that they
outlive whoever asked, and the close of what they ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def together(*works: Awaitable[Any]) -> list[Any]:
    """The answers of all, in order; or the first failure, with none of them left running."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
