"""Several waits as one: in order, or the first failure with nothing left running."""

from __future__ import annotations

import asyncio

import pytest

from dlog.together import together


async def _answer(value: int, turns: int) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


async def test_answers_come_in_order() -> None:
    assert await together(_answer(1, 5), _answer(2, 0)) == [1, 2]


async def test_nothing_runs_on_behind_a_failure() -> None:
    ended = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("waiter")

    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("the first")

    with pytest.raises(KeyError, match="the first"):
        await together(wait(), fail())
    assert ended == ["waiter"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_who_is_cancelled_leaves_nothing_behind() -> None:
    waits = asyncio.ensure_future(together(asyncio.Event().wait()))
    await asyncio.sleep(0)
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert asyncio.all_tasks() == {asyncio.current_task()}
