"""The driver of reads over links that are this test."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from dlog.ledger.bookkeeper.core.entry_read import BookieHabits
from dlog.ledger.bookkeeper.entry_fetch import EntryFetch
from dlog.wire.bookie_codes import Answer
from tests.sim.virtual_loop import LoopClock, VirtualLoop, pass_time, run_virtually
from tests.unit.ledger.bookkeeper.recovery_tools import DIGEST, LEDGER_ID, metadata, packet


class Links:
    """Each bookie answers once it is told to."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Any]] = []

    def data_now(self, bookie_id: str) -> Links:
        return self

    async def batch_read(self, *_: Any, **__: Any) -> Any:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]


def test_a_reader_that_stands_still_gives_up_nobody_who_answered() -> None:
    async def read() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        links: Any = Links()
        fetch = EntryFetch(
            LEDGER_ID,
            links=links,
            digest=DIGEST,
            habits=BookieHabits(),
            clock=LoopClock(loop),
            first_place=0,
        )
        reading = loop.create_task(fetch.read(metadata(), 0, 0, bytes_max=1 << 20))
        await pass_time(1.0)
        assert len(links.asked) == 3, "all of them, one after the other"
        loop.stand_still(30.0)
        await pass_time(0.6)
        answer = SimpleNamespace(answer=Answer.OK, entries=[memoryview(packet(0))])
        links.asked[0].set_result(answer)
        assert len(await reading) == 1
        await fetch.close()

    run_virtually(read())
