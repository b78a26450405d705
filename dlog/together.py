"""Several waits as one. `asyncio.gather` lets the others run on when one has failed, so that they
outlive whoever asked, and the close of what they ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

_Item = TypeVar("_Item")


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


async def some_at_once(
    at_once: int, ask: Callable[[_Item], Awaitable[Any]], items: Iterable[_Item]
) -> list[Any]:
    """The answer to each, in order, with no more than so many on their way."""
    answers: list[Any] = []
    left = iter(items)
    while some := list(islice(left, at_once)):
        answers += await together(*map(ask, some))
    return answers
