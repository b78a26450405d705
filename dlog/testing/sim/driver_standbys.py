"""A program that stands by for the writer of a log: it reads along, takes over at once or when
nobody is there, writes as any other writer does, and leaves. Any of its calls may be cut short."""

from __future__ import annotations

import asyncio

from dlog.errors import DlogError, Handle
from dlog.options import TailMode, Takeover
from dlog.standby.standby import Standby
from dlog.testing.history import Event, Op, Phase
from dlog.testing.sim.driver_programs import LOG, Cancelled, WriterProgram, log_options
from dlog.writer.writer import Writer

TRIES_MAX = 4
_AGAIN_S = 0.05


class StandbyProgram(WriterProgram):
    async def run(self) -> None:
        name = self.handle
        try:
            standby = await self.call(self._standing())
        except (Cancelled, DlogError):
            return
        reading = asyncio.create_task(self._read_along(standby, f"{name}.r"))
        try:
            log = await self._become_writer(standby, name)
            if log is not None:
                try:
                    await self._work(log)
                finally:
                    await self._close(log)
                    await asyncio.gather(*self._waits)
        finally:
            if self.process.is_alive:
                await self._leave(standby)
                await reading

    async def _standing(self) -> Standby:
        tail: TailMode = self.world.chance.pick(("normal", "strict"), f"{self.handle} believes")
        return await self.client.open_standby(
            LOG, tail=tail, create=log_options(self.weather), owner=self.handle, **self.options()
        )

    async def _become_writer(self, standby: Standby, name: str) -> Writer | None:
        """Each try is a writer to be of its own."""
        policy: Takeover = self.world.chance.pick(("always", "if_dead", "wait"), "it takes over")
        await asyncio.sleep(self.world.chance.delay(400.0, "it stands by for") / 1000)
        for number in range(TRIES_MAX):
            self.handle = f"{name}t{number}"
            began = self.diary.note(Event(op=Op.OPEN, phase=Phase.INVOKE, handle=self.handle))
            try:
                if policy == "wait" and self.world.chance.hits(0.3, "it waits by itself"):
                    await self.call(standby.wait(self.timeout()))
                log = await self.call(standby.take_over(policy))
            except Cancelled:
                continue
            except DlogError as error:
                self.diary.end(began, error)
                if error.handle is Handle.DEAD and standby.closed:
                    return None
            else:
                self.world.mark("a standby took over")
                self.diary.note(
                    Event(op=Op.OPEN, phase=Phase.OK, handle=self.handle, epoch=log.epoch)
                )
                return log
            await asyncio.sleep(_AGAIN_S)
        return None

    async def _read_along(self, standby: Standby, handle: str) -> None:
        """Until the standby is closed, from wherever an error left it."""
        self.diary.note(Event(op=Op.READ, phase=Phase.INVOKE, handle=handle, seq=0))
        while not standby.closed:
            try:
                async for message in standby.messages():
                    self.diary.delivered(handle, message)
                    if self.world.chance.hits(0.02, "it stops in between"):
                        break
                await asyncio.sleep(_AGAIN_S)
            except DlogError as error:
                self.world.note(f"{handle} is told {error!r}")
                await asyncio.sleep(_AGAIN_S)
                try:
                    await standby.reader.seek(standby.position.next_seq)
                except DlogError as still:
                    self.world.note(f"{handle} is told {still!r}")

    async def _leave(self, standby: Standby) -> None:
        while True:
            try:
                await self.call(standby.close())
                return
            except Cancelled:
                continue  # it goes on; ask again
