"""A writer in a process of its own, to be killed: `python -m integration.log.writing URL NAME`."""

from __future__ import annotations

import asyncio
import sys

from dlog import aio
from integration.log.availability import MESSAGES


async def main(url: str, name: str) -> None:
    async with aio.connect(url) as client, client.open_writer(name) as writer:
        await writer.append_many([b"%d" % number for number in range(MESSAGES)])
        print("ready", flush=True)
        while True:
            await writer.append(b"more")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
