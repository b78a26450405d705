"""Work that waits for a disk, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_background(step: Callable[[], T]) -> asyncio.Future[T]:
    """On a thread of the loop's pool. A program that ends closes all pools before it waits for its
    threads: for those that still work then, the step is done at once, on the loop."""
    loop = asyncio.get_running_loop()
    try:
        return loop.run_in_executor(None, step)
    except RuntimeError:  # the pool is closed
        done: asyncio.Future[T] = loop.create_future()
    try:
        done.set_result(step())
    except Exception as error:  # noqa: BLE001 - as a thread would have told it
        done.set_exception(error)
    return done
