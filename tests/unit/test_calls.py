"""Calls that do not outlive what they are made on."""

from __future__ import annotations

import asyncio

import pytest

from dlog.calls import Calls
from dlog.errors import ReaderClosed, Timeout


def new() -> Calls:
    return Calls(lambda: ReaderClosed("it was closed"))


async def test_what_a_call_comes_to_is_told() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 7

    async def too_late() -> None:
        raise Timeout("of its own")

    calls = new()
    assert await calls.run(answer()) == 7
    with pytest.raises(Timeout, match="of its own"):
        await calls.run(too_late())
    await calls.cut_short()


async def test_all_are_over_once_they_are_cut_short() -> None:
    calls, over = new(), []

    async def wait(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # what it has to put away takes its time
            over.append(number)

    running = [asyncio.create_task(calls.run(wait(number))) for number in range(3)]
    await asyncio.sleep(0)
    await calls.cut_short()
    assert over == [0, 1, 2]
    for each in running:
        with pytest.raises(ReaderClosed, match="it was closed"):
            await each
    await calls.cut_short()


async def test_whoever_is_cancelled_is_told_that() -> None:
    calls = new()
    running = asyncio.create_task(calls.run(asyncio.Event().wait()))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await calls.cut_short()
