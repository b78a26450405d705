"""What the checks of a MetaStore share: their registry, and words for what they expect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from dlog.errors import DlogError, NotFound, Outcome
from dlog.meta.store import MetaStore

Make = Callable[[], Awaitable[MetaStore]]
Lose = Callable[[MetaStore], Awaitable[None]]
Check = Callable[[Make], Awaitable[None]]
LossCheck = Callable[[Make, Lose], Awaitable[None]]

CHECKS: list[Check] = []
LOSS_CHECKS: list[LossCheck] = []

PATIENCE_S = 10.0


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


def loss_check(function: LossCheck) -> LossCheck:
    LOSS_CHECKS.append(function)
    return function


async def refused(call: Awaitable[Any], kind: type[DlogError]) -> DlogError:
    """The call ends in this error, which says that nothing happened."""
    try:
        answer = await call
    except kind as error:
        refusal = error
    else:
        raise AssertionError(f"answered {answer!r} instead of raising {kind.__name__}")
    assert refusal.outcome is Outcome.NOT_HAPPENED, f"{refusal!r} must be certain"
    return refusal


async def until(fact: Callable[[], Awaitable[bool]], what: str) -> None:
    """Ask again and again, for a bounded time, until it is so."""
    end_s = time.monotonic() + PATIENCE_S
    while not await fact():
        assert time.monotonic() < end_s, f"still not so after {PATIENCE_S} s: {what}"
        await asyncio.sleep(0.005)


async def exists(store: MetaStore, path: str) -> bool:
    await store.sync()
    try:
        await store.get(path)
    except NotFound:
        return False
    return True
