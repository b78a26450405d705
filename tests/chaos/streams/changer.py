"""A program that changes the stream under everybody: splits, merges, pins, truncates what holds let
go, trims, collects, and, where the run wants it, removes the stream and makes it again. Killed at
any step it goes on with what it began."""

from __future__ import annotations

from collections import Counter
from typing import Any

from dlog.errors import Conflict, NotFound
from dlog.streams.document import ShardState
from tests.chaos.streams.journal import key_of
from tests.chaos.streams.scene import EXPECTED, GROUP, STREAM, Scene

OPEN_MAX = 6
LISTED_MAX = 60


class Changer:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.blocked: Counter[str] = Counter()

    async def run(self) -> None:
        scene = self.scene
        await self._insist(self.ensure)
        weights = {
            self.split: 4,
            self.merge: 3,
            self.pin: 2,
            self.unpin: 1,
            self.truncate: 6,
            self.trim: 3,
            self.collect: 2,
            self.clean_groups: 2,
            self.remake: 2 if scene.options.remakes else 0,
        }
        changes = list(weights)
        while not scene.is_over("stop"):
            await scene.pause(2 * scene.options.change_s)
            (change,) = scene.chance.choices(changes, list(weights.values()))
            if not scene.options.truncates and change in (self.truncate, self.trim):
                continue
            try:
                await change()
            except EXPECTED as error:
                scene.told(change.__name__, error)
                await self._insist(self.ensure)
        await self._insist(self.ensure)
        await self._insist(self.clean_groups)

    async def _insist(self, work: Any) -> None:
        while True:
            try:
                await work()
                return
            except EXPECTED as error:
                self.scene.told(work.__name__, error)
                await self.scene.pause(0.5)

    def _done(self, what: str, **fields: Any) -> None:
        self.scene.journal.note("changed", what=what, **fields)

    # --- the whole stream

    async def ensure(self) -> None:
        """The stream is there, none that we had begun to remove, and no group of an older one."""
        scene = self.scene
        uid = await scene.uid()
        removing = {line["uid"] for line in scene.journal.before() if line["op"] == "removing"}
        if uid in removing:
            await self._remove()
            uid = None
        if uid is None:
            options = scene.options
            await scene.client.create_stream(
                STREAM,
                shards=scene.chance.randint(1, 4),
                segment_bytes=scene.chance.choice((8_192, 65_536, 1 << 20)),
                deletion_grace_s=0,
                ensemble=options.ensemble,
                write_quorum=options.ensemble,
                ack_quorum=2,
                retention_bytes=options.retention_bytes or None,
            )
            uid = await scene.uid()
            self._done("made", uid=uid)
        await self.clean_groups()

    async def remake(self) -> None:
        uid = await self.scene.uid()
        if uid is None:
            return
        self.scene.journal.note("removing", uid=uid)
        await self._remove()
        await self.scene.pause(1)
        await self.ensure()

    async def _remove(self) -> None:
        try:
            await self.scene.stream.remove()
        except NotFound:
            pass  # in an earlier try
        self._done("removed")

    async def clean_groups(self) -> None:
        """Those of a stream that was removed: they are removed by hand, as they say."""
        scene = self.scene
        uid = await scene.uid()
        if uid is None:
            return
        for name, _ in await scene.client.groups(STREAM):
            group = scene.client.group(name, STREAM)
            try:
                if (await group.charter()).stream_uid == uid:
                    continue
                await group.remove()
                self._done("group removed", group=name)
                self.blocked.pop(name, None)
            except NotFound:
                continue
            except Conflict as error:
                self.blocked[name] += 1
                scene.journal.note(
                    "blocked", group=name, times=self.blocked[name], text=str(error)[:200]
                )
                if name == GROUP:
                    raise

    # --- shards

    async def _open(self) -> list[Any]:
        return [shard for shard in await self.scene.stream.shards() if shard.is_open]

    async def split(self) -> None:
        shards = await self.scene.stream.shards()
        is_open = [shard for shard in shards if shard.is_open]
        if len(is_open) >= OPEN_MAX or len(shards) >= LISTED_MAX:
            return await self.merge()
        shard = self.scene.chance.choice(is_open)
        parts = self.scene.chance.choice((2, 2, 3))
        made = await self.scene.stream.split(shard.number, parts=parts)
        self._done("split", shard=shard.number, into=[each.number for each in made])

    async def merge(self) -> None:
        is_open = sorted(await self._open(), key=lambda shard: shard.range.first_hash)
        if len(is_open) < 2:
            return
        at = self.scene.chance.randrange(len(is_open) - 1)
        first, second = is_open[at : at + 2]
        made = await self.scene.stream.merge(first.number, second.number)
        self._done("merge", shards=[first.number, second.number], into=made.number)

    async def pin(self) -> None:
        shard = self.scene.chance.choice(await self._open())
        key = key_of((1, self.scene.chance.randrange(60)))
        made = await self.scene.stream.pin(key or b"key 1", shard.number)
        self._done("pin", into=[each.number for each in made])

    async def unpin(self) -> None:
        pins = (await self.scene.stream.describe()).pins
        if pins:
            made = await self.scene.stream.unpin(self.scene.chance.choice(sorted(pins)))
            self._done("unpin", into=[each.number for each in made])

    async def truncate(self) -> None:
        """As far as holds let it: so only once the group is there, which is in need of all."""
        scene = self.scene
        uid = await scene.uid()
        if (await scene.client.group(GROUP, STREAM).charter()).stream_uid != uid:
            return
        if uid is None or not scene.group_is_there(uid):
            return  # its holds may not be made yet
        shards = list(await scene.stream.shards())
        ended = [shard for shard in shards if shard.state is ShardState.ENDED]
        for shard in scene.chance.sample(ended, min(len(ended), 4)) or shards[:1]:
            scene.journal.note("truncating", uid=uid, shard=shard.number)
            told = await scene.client.admin.truncate(shard.log, "latest")
            self._done("truncate", uid=uid, shard=shard.number, head=told.head_seq)
        if scene.chance.random() < 0.3:
            shard = scene.chance.choice(shards)
            scene.journal.note("truncating", uid=uid, shard=shard.number)
            told = await scene.client.admin.truncate(shard.log, "latest")
            self._done("truncate", uid=uid, shard=shard.number, head=told.head_seq)

    async def trim(self) -> None:
        gone = await self.scene.stream.trim()
        if gone:
            self._done("trim", shards=list(gone))

    async def collect(self) -> None:
        shards = await self.scene.stream.shards()
        for shard in self.scene.chance.sample(list(shards), min(3, len(shards))):
            await self.scene.client.admin.collect(shard.log)
        self._done("collect")


async def change(scene: Scene, _: str) -> None:
    await Changer(scene).run()
