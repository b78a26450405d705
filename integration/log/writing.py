"""Writers in a process of their own, to be killed: `python -m integration.log.writing URL NAME…`"""

from __future__ import annotations

import asyncio
import sys

from dlog import aio
from integration.bookkeeper.fault_tools import pause
from integration.log.availability import MESSAGES


async def main(url: str, *names: str) -> None:
    async with aio.connect(url) as client:
        writers = [await client.open_writer(name) for name in names]
        for writer in writers:
            await writer.append_many([b"%d" % number for number in range(MESSAGES)])
        print("ready", flush=True)
        while True:
            await asyncio.gather(*(writer.append(b"more") for writer in writers))
            await pause(0.02)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
