"""How handles live that consume what others write: workers, followers of a document, readers of a
range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import dlog.client
from dlog.groups.heart import Aside
from dlog.reason import Reason
from dlog.streams.config.following import Plain
from tests.handles.faults import stores_of
from tests.handles.lives import LOG, TURN_S, Life, OnAStream


class Working(OnAStream):
    """What was processed and is in no checkpoint yet may come again, to a worker that was taken for
    dead."""

    WORKS_S = 1.0
    OPTIONS: Mapping[str, Any] = {}

    async def begin(self) -> None:
        await self.begin_stream()
        self._processed: set[bytes] = set()
        own = {"heart": "loop", "threads": 0, "flush_ms": 50, "name": "w", **self.OPTIONS}
        with patch.object(dlog.client, "_aside", self._aside):
            self.worker: Any = await self.client.open_worker("g", "s", self._process, **own)
        await self.log.append(self.owe(), key=b"k")

    async def _aside(self, client: Any) -> Aside:
        client._open_stores = lambda *, create: stores_of(self.sim.process, self.faults)
        return Aside(await client._stores(False), client, client.close)

    async def _process(self, batch: Any) -> None:
        values = [each for each in batch.values() if each not in self._processed]
        self.given(values)
        self._processed.update(values)

    async def turn(self) -> None:
        assert await self.worker.wait(TURN_S) is None, "it does not end"

    def why(self) -> Reason | None:
        return self.worker.why()

    async def end(self) -> None:
        await self.worker.close()
        await super().end()


class Checkpointing(Working):
    """Its processor waits until what it has done is kept."""

    OPTIONS: Mapping[str, Any] = {"checkpoints": "explicit"}

    async def begin(self) -> None:
        self._unsaved = False
        await super().begin()

    async def _process(self, batch: Any, tracker: Any) -> None:  # type: ignore[override]
        await super()._process(batch)
        self._unsaved = True
        await tracker.save()
        self._unsaved = False

    @property
    def is_well(self) -> bool:
        return not self.owed and not self._unsaved


class FollowingADocument(Life):
    async def begin(self) -> None:
        self.config = self.sim.connect().config("c")
        self._wanted = 0
        self.hot: Any = await self.client.config("c").follow(Plain("mine"))

    async def news(self) -> None:
        """The second one comes behind the first one's watch."""
        for _ in range(2):
            made = await self.config.set("mine", {"limit": self._wanted}, unchecked=True)
            self._wanted = made.version
            await self.sim.pass_time(0.05)

    @property
    def is_well(self) -> bool:
        return self.hot.version >= self._wanted

    async def turn(self) -> None:
        if self.is_well:
            await self.sim.pass_time(TURN_S)
        else:
            await self.hot.wait_for(self._wanted)

    def why(self) -> Reason | None:
        return self.hot.why()


class BeginningToFollow(FollowingADocument):
    """Another follower for each time. What it waits for comes once it was begun."""

    async def news(self) -> None:
        await self.hot.close()
        self.hot = await self.client.config("c").follow(Plain("mine"))
        await super().news()


class ReadingARange(Life):
    """Another one for each time."""

    async def begin(self) -> None:
        self.log = await self.sim.open_writer(LOG)
        self._all = [b"%d" % number for number in range(3)]
        for value in self._all:
            await self.log.append(value)
            await self.log.rotate()
        (self._range,) = await self.sim.connect().admin.plan_ranges(LOG)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._batches = self.client.read_range(self._range, read_ahead_bytes=1, read_run_bytes=1)

    async def news(self) -> None:
        self._begin_anew()
        self.owed += self._all

    async def turn(self) -> None:
        if not self.owed:
            await self.sim.pass_time(TURN_S)
            return
        batch = await anext(self._batches, None)
        assert batch is not None, "an end, where there is none"
        self.given(batch.values())
        if not self.owed:
            assert await anext(self._batches, None) is None

    def why(self) -> Reason | None:
        readers = [each for each in self.client._handles.values() if not each.closed]
        return readers[0].why() if readers else None


class ATaskOfSpark(ReadingARange):
    """What fails is begun anew, from the first message on."""

    async def turn(self) -> None:
        if not self.owed:
            await self.sim.pass_time(TURN_S)
            return
        self._begin_anew()
        came = [value async for batch in self._batches for value in batch.values()]
        assert came == self._all
        self.owed.clear()
