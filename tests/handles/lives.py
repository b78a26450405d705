"""How each kind of handle lives: opened on stores that may fail, beside a writer on stores that
never do. `turn` is one call, as a program makes it again and again; what it is owed, `news` makes.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dlog.client import Client
from dlog.reason import Reason
from dlog.testing.sim import Simulation
from tests.handles.faults import Faults, stores_of

TURN_S = 0.25
LOG = "orders"


class Life:
    """One handle under test; `owed` are the messages that it was not given yet."""

    WORKS_S = 0.0  # so long it is at work on what is new, and waits for nothing

    def __init__(self, sim: Simulation, faults: Faults) -> None:
        self.sim = sim
        self.faults = faults
        self.owed: list[bytes] = []
        self.said: list[bytes] = []  # all that ever was owed
        self.client: Client = sim.connect()
        self.client._open_stores = lambda *, create: stores_of(sim.process, faults)  # type: ignore[method-assign]
        self._number = 0

    def owe(self) -> bytes:
        value = b"%d" % self._number
        self._number += 1
        self.said.append(value)
        self.owed.append(value)
        return value

    def given(self, values: list[bytes]) -> None:
        assert values == self.owed[: len(values)], "each message once, in order"
        del self.owed[: len(values)]

    @property
    def is_well(self) -> bool:
        """It has done all that may be expected of it by now."""
        return not self.owed

    async def begin(self) -> None:
        raise NotImplementedError

    async def get_ready(self) -> None:
        """For the next round, while all is well."""

    async def news(self) -> None:
        """Something that needs every call that it makes."""
        raise NotImplementedError

    async def turn(self) -> None:
        raise NotImplementedError

    def why(self) -> Reason | None:
        raise NotImplementedError

    async def end(self) -> None:
        """Its stores are well by now."""
        await self.client.close()


class Following(Life):
    async def begin(self) -> None:
        self.log = await self.sim.open_writer(LOG)
        await self.log.append(self.owe())
        self.reader: Any = await self.client.open_reader(LOG, follow=True)

    async def news(self) -> None:
        await self.log.append(self.owe())
        await self.log.rotate()
        await self.log.append(self.owe())

    async def turn(self) -> None:
        self.given([each.value for each in await self.reader.read(timeout=TURN_S)])

    def why(self) -> Reason | None:
        return self.reader.why()


class ReadingToAnEnd(Following):
    """Of a log that is there already. It reads ahead no more than a message."""

    ROUNDS = 6

    async def begin(self) -> None:
        self.log = await self.sim.open_writer(LOG)
        for _ in range(self.ROUNDS):
            await super().news()
        self.reader = await self.client.open_reader(LOG, read_ahead_bytes=1, read_run_bytes=1)
        self._held, self.owed = self.owed, []

    async def news(self) -> None:
        """What was read ahead comes first."""
        self.owed, self._held = self._held[:4], self._held[4:]

    async def turn(self) -> None:
        if not self.owed:
            await self.sim.pass_time(TURN_S)
        else:
            self.given([each.value for each in await self.reader.read(1)])


class OnAStream(Life):
    """The shard of the key ends, and another one follows it."""

    async def begin_stream(self, **options: Any) -> None:
        await self.sim.connect().create_stream("s", **options)
        self.stream = self.sim.connect().stream("s")
        self.log = await self.stream.open_writer()

    async def news(self) -> None:
        await self.log.append(self.owe(), key=b"k")
        shards = [each for each in (await self.stream.describe()).shards if each.state == "open"]
        await self.stream.split(shards[0].number)
        await self.log.append(self.owe(), key=b"k")

    async def end(self) -> None:
        await self.log.close()
        await super().end()


class FollowingAStream(OnAStream):
    async def begin(self) -> None:
        await self.begin_stream(shards=2)
        self.reader = await self.client.stream("s").open_reader(follow=True)
        await self.log.append(self.owe(), key=b"k")

    async def turn(self) -> None:
        self.given([each.message.value for each in await self.reader.read(timeout=TURN_S)])

    def why(self) -> Reason | None:
        return next(iter(self.reader.why().values()), None)


class StandingBy(Life):
    async def begin(self) -> None:
        self.log = await self.sim.open_writer(LOG)
        await self.log.append(self.owe())
        self.standby: Any = await self.client.open_standby(LOG)

    async def news(self) -> None:
        """Its ledger gets too old."""
        await self.log.append(self.owe())
        await self.log.rotate()
        await self.log.append(self.owe())

    @property
    def is_well(self) -> bool:
        return not self.owed and self.standby.ready

    async def turn(self) -> None:
        try:
            async with asyncio.timeout(TURN_S):
                async for message in self.standby.messages():
                    self.given([message.value])
        except TimeoutError:
            pass

    def why(self) -> Reason | None:
        return self.standby.why() or self.standby.reader.why()


class TakingOver(StandingBy):
    """From a writer that lives; another standby for each time."""

    async def begin(self) -> None:
        await super().begin()
        self.won: Any = None
        self.wants = False

    async def get_ready(self) -> None:
        if self.won is not None:
            await self.won.close()
            await self.standby.close()
            self.log = await self.sim.open_writer(LOG)
            await self.log.append(b"another one")
            self.standby = await self.client.open_standby(LOG)

    async def news(self) -> None:
        self.wants = True

    @property
    def is_well(self) -> bool:
        return not self.wants

    async def turn(self) -> None:
        if self.wants:
            self.won = await self.standby.take_over()
            self.wants = False
        else:
            await self.sim.pass_time(TURN_S)
