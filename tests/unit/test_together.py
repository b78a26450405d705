"""Several waits as one: in order, or the first failure with nothing left running."""

from __future__ import annotations

import asyncio

import pytest

from dlog.together import some_at_once, together


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


async def test_no_more_than_so_many_are_on_their_way() -> None:
    under_way, most = 0, 0

    async def ask(item: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return 10 * item

    assert await some_at_once(3, ask, range(8)) == [10 * item for item in range(8)]
    assert most == 3
    assert await some_at_once(3, ask, []) == []
