"""Cancelling a coroutine at its k-th await, for every k.

There are two moments at which cancellation strikes an await: while it waits, and when what it waits
for has come but the task has not run yet. Code that is right for the one may be wrong for the
other, so each is tried.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

AWAITS_MAX = 400


class Moment(enum.Enum):
    WAITING = "waiting"
    WOKEN = "woken"


class _Stepper:
    """Awaits `work` and cancels the task that does so at its await number `at`, counted from 0."""

    def __init__(self, work: Awaitable[Any], at: int, moment: Moment) -> None:
        self._work = work
        self._at = at
        self._moment = moment

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        sent: Any = None
        error: BaseException | None = None
        count = 0
        while True:
            try:
                waits_for = steps.send(sent) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value
            if count == self._at:
                self._strike(waits_for)
            count += 1
            sent, error = None, None
            try:
                sent = yield waits_for
            except BaseException as thrown:
                error = thrown

    def _strike(self, waits_for: asyncio.Future[Any] | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        if waits_for is None or self._moment is Moment.WAITING:
            task.cancel()
        else:  # our callback is called before the task's own
            waits_for.add_done_callback(lambda _: task.cancel())


async def cancelled_at(work: Awaitable[Any], at: int, moment: Moment) -> bool:
    """False when there is no such await: the work came to its end, or to its own error."""

    async def step() -> None:
        await _Stepper(work, at, moment)

    task = asyncio.ensure_future(step())
    await asyncio.wait([task], timeout=20)
    assert task.done(), f"cancelling at await {at} had no effect"
    if task.cancelled():
        return True
    task.result()
    return False


async def at_every_await(
    moment: Moment, work: Callable[[int], Awaitable[Any]]
) -> AsyncIterator[int]:
    """Yields after each cancellation, and once more after the run that was not cancelled."""
    for at in range(AWAITS_MAX):
        struck = await cancelled_at(work(at), at, moment)
        yield at
        if not struck:
            return
    raise AssertionError(f"no end after {AWAITS_MAX} awaits")
