"""An event loop on which time passes only when nothing else is left to do: real drivers run in it
for virtual hours within moments, and the same seed runs the same way. No sockets, no threads."""

from __future__ import annotations

import asyncio
import gc
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class _VirtualTime(selectors.DefaultSelector):
    """Where a loop would sleep, time jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everybody waits for somebody: nothing will ever happen"
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual_time = _VirtualTime()
        super().__init__(self._virtual_time)

    def time(self) -> float:
        return self._virtual_time.now_s

    def stand_still(self, seconds: float) -> None:
        """As a process that is stopped in the middle of a callback."""
        self._virtual_time.now_s += seconds


async def pass_time(seconds: float) -> None:
    """Let virtual time pass. Nobody really waits for it, so on any other loop it is refused."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "only virtual time passes at will"
    passed = loop.create_future()
    timer = loop.call_later(seconds, _settle, passed)
    try:
        await passed
    finally:
        timer.cancel()


def _settle(passed: asyncio.Future[None]) -> None:
    if not passed.done():
        passed.set_result(None)


class LoopClock:
    """The loop's time, as the clock that is handed around."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def wall_us(self) -> int:
        return int(self._loop.time() * 1e6)

    def monotonic_s(self) -> float:
        return self._loop.time()


def run_virtually(work: Coroutine[Any, Any, _Result]) -> _Result:
    """To its end. A task that is left behind, or that failed unheard, fails the run."""
    loop = VirtualLoop()
    unheard: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    try:
        result = loop.run_until_complete(work)
        left = asyncio.all_tasks(loop)
        assert not left, f"left behind: {left}"
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.close()
    gc.collect(0)  # what failed unheard says so when it goes
    assert not unheard, unheard
    return result
