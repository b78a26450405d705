"""How handles that write live. They owe each message its id; what the log holds in the end, a
client tells whose stores never fail.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dlog.reason import Reason
from tests.handles.lives import LOG, TURN_S, Life


class Writing(Life):
    """Messages before a rotation, and behind it."""

    async def begin(self) -> None:
        self.log: Any = await self.client.open_writer(LOG)
        self._tickets: list[Any] = []
        self._wants = False
        await self._submit()

    async def _submit(self) -> None:
        self._tickets.append(await self.log.submit(self.owe()))

    async def news(self) -> None:
        await self._submit()
        self._wants = True

    @property
    def is_well(self) -> bool:
        return not self.owed and not self._wants

    async def turn(self) -> None:
        if self._wants:
            await self.log.rotate()
            self._wants = False
            await self._submit()
        elif self.owed:
            await self._tickets[0]
            del self._tickets[0]
            self.given(self.owed[:1])
        else:
            await self.sim.pass_time(TURN_S)

    def why(self) -> Reason | None:
        return self.log.why()

    async def end(self) -> None:
        """Nothing is lost, and nothing is there twice."""
        await super().end()
        async with await self.sim.open_reader(LOG) as reader:
            assert [each.value async for each in reader] == self.said


class Healing(Writing):
    """Somebody who is not the log's next writer ends its ledger, again and again."""

    async def news(self) -> None:
        ledger_id = self.log._engine.core.current.ledger_id
        stores = self.sim.process.new_stores()
        await stores.ledgers.recover(ledger_id)
        await stores.ledgers.close()
        await stores.meta.close()
        await self._submit()


class HandingOver(Writing):
    """Another writer for each time."""

    async def get_ready(self) -> None:
        if self.log.closed:
            self.log = await self.client.open_writer(LOG)

    async def turn(self) -> None:
        if not self._wants:
            await super().turn()
            return
        if self.log.closed:  # whoever gave up the wait waits again
            await self.log.close()
        else:
            await self.log.hand_over()
        about = await self.sim.connect().admin.describe(LOG)
        assert about.writer is None
        self._wants = False


class WritingAStream(Life):
    """The shard of the key ends, and another one follows it."""

    async def begin(self) -> None:
        await self.sim.connect().create_stream("s")
        self.stream = self.sim.connect().stream("s")
        self.log: Any = await self.client.stream("s").open_writer()
        self._tickets: list[Any] = []
        await self._submit()

    async def _submit(self) -> None:
        submitting = self.log.submit(self.owe(), key=b"k")
        self._tickets.append(asyncio.ensure_future(_acknowledged(submitting)))
        await asyncio.sleep(0)

    async def news(self) -> None:
        await self._submit()
        await self.stream.split(self.log.shard_of(b"k"))
        await self._submit()
        await self._submit()

    async def turn(self) -> None:
        if not self.owed:
            await self.sim.pass_time(TURN_S)
            return
        await asyncio.wait(self._tickets[:1])
        while self._tickets and self._tickets[0].done():
            self._tickets.pop(0).result()
            self.given(self.owed[:1])

    def why(self) -> Reason | None:
        return next(iter(self.log.why().values()), None)

    async def end(self) -> None:
        await super().end()
        async with await self.stream.open_reader() as reader:
            assert [each.message.value async for each in reader] == self.said


async def _acknowledged(submitting: Any) -> Any:
    return await (await submitting)


class FillingASegment(Life):
    """Another segment for each time; what it owes is that it is closed, with all that it took."""

    async def begin(self) -> None:
        self.log = await self.sim.open_writer(LOG)
        self.segment: Any = None
        self._wants = False
        await self.get_ready()

    async def get_ready(self) -> None:
        if self.segment is None or self.segment.closed:
            self.segment = await self.client.admin.open_segment(LOG, job="j")
            await self._fill()

    async def _fill(self) -> None:
        await self.segment.append_many([self.owe()])

    async def news(self) -> None:
        self._wants = True

    @property
    def is_well(self) -> bool:
        return not self._wants

    async def turn(self) -> None:
        if not self._wants:
            await self.sim.pass_time(TURN_S)
            return
        filled = await self.segment.close()
        assert filled.messages == len(self.owed)
        self.owed.clear()
        self._wants = False
        await self._settle(filled)

    async def _settle(self, filled: Any) -> None:
        """Its own client needs its segment no more."""
        async with self.sim.connect() as client:
            await client.admin.discard_segments([filled])

    def why(self) -> Reason | None:
        return self.segment.why()


class FillingNothing(FillingASegment):
    """A segment without messages is deleted."""

    async def _fill(self) -> None:
        pass


class GivingASegmentUp(FillingASegment):
    async def turn(self) -> None:
        if self._wants:
            await self.segment.abort()
            self.owed.clear()
            self._wants = False
        else:
            await self.sim.pass_time(TURN_S)

    @property
    def is_well(self) -> bool:
        return super().is_well and self._is_gone()

    def _is_gone(self) -> bool:
        return not self.segment.closed or self.segment._filling.is_over
