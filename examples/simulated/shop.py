"""Places each order once, whatever happens on the way.

An append that failed may have happened. Whoever opens the log for writing next ends that doubt:
from then on nothing of the old writer can come any more, and reading the log tells.
"""

from __future__ import annotations

import asyncio

import dlog
from dlog import aio

LOG = "orders"


async def place(url: str, order: bytes) -> None:
    while True:
        try:
            async with aio.open_writer(LOG, url=url) as log:
                if order not in await orders(url):
                    await log.append(order)
                return
        except dlog.DlogError as error:
            if error.retry is dlog.Retry.NEVER:
                raise
            await asyncio.sleep(0.1)


async def place_without_a_look(url: str, order: bytes) -> None:
    """Wrong: the append that failed may have happened."""
    while True:
        try:
            async with aio.open_writer(LOG, url=url) as log:
                await log.append(order)
                return
        except dlog.DlogError as error:
            if error.retry is dlog.Retry.NEVER:
                raise
            await asyncio.sleep(0.1)


async def orders(url: str) -> list[bytes | None]:
    async with aio.open_reader(LOG, url=url) as reader:
        return [message.value async for message in reader]
