"""What happens to the stream of `streams-life`: each change is the program of a process of its own,
which may sleep or die at each step of it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from dlog.client import Client
from dlog.errors import AlreadyExists, Conflict, DlogError, NotFound, Retry
from dlog.meta.listed import Point
from dlog.streams.document import Shard, ShardState
from dlog.streams.stream import Stream
from dlog.testing.sim.streams_life_groups import GROUP, remove_group
from dlog.testing.sim.streams_life_process import LifeProcess
from dlog.testing.sim.streams_life_scene import Scene
from dlog.testing.sim.streams_life_truth import NEVER, STREAM

TRIES = 4
PINNED = b"k1"


class Changes:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._begun = 0
        self._kinds: dict[str, Callable[[Client, Stream], Awaitable[None]]] = {
            "split": self._split,
            "merge": self._merge,
            "pin": self._pin,
            "unpin": self._unpin,
            "truncate": self._truncate,
            "collect": self._collect,
            "trim": self._trim,
            "terminate": self._terminate,
            "again": self._again,
            "remove group": self._remove_group,
        }

    def begin(self, kind: str) -> None:
        self._begun += 1
        process = self.scene.process(f"{kind}{self._begun}")
        self.scene.start(process, self._run(process, kind))

    async def _run(self, process: LifeProcess, kind: str) -> None:
        """As somebody at a shell, who tries a few times."""
        client = process.new_client()
        try:
            for _ in range(TRIES):
                try:
                    await self._kinds[kind](client, client.stream(STREAM))
                    return
                except DlogError as error:
                    self.scene.check_expected(process.name, error)
                    if error.retry is not Retry.NOW:
                        return
                    await self.scene.pause(5.0)
        finally:
            await client.close()

    def _pick(self, shards: list[Any], what: str) -> Any:
        return self.scene.world.chance.pick(shards, what) if shards else None

    async def _shards(self, stream: Stream) -> tuple[str, list[Shard]]:
        """And whose they are."""
        uid = "" if self.scene.truth.now is None else self.scene.truth.now.uid
        return uid, list(await stream.shards())

    # --- of shards

    async def _split(self, client: Client, stream: Stream) -> None:
        uid, shards = await self._shards(stream)
        chosen = self._pick([each for each in shards if each.is_open], "which shard")
        if chosen is not None:
            await stream.split(chosen.number)
            self.scene.happened("split", uid)

    async def _merge(self, client: Client, stream: Stream) -> None:
        uid, shards = await self._shards(stream)
        some = sorted((each for each in shards if each.is_open), key=lambda each: each.range)
        if len(some) < 2:
            await self._split(client, stream)
            return
        first = self._pick(list(range(len(some) - 1)), "which neighbours")
        await stream.merge(some[first].number, some[first + 1].number)
        self.scene.happened("merge", uid)

    async def _pin(self, client: Client, stream: Stream) -> None:
        uid, shards = await self._shards(stream)
        chosen = self._pick([each for each in shards if each.is_open], "which shard")
        if chosen is not None:
            await stream.pin(PINNED, chosen.number)
            self.scene.happened("pin", uid)

    async def _unpin(self, client: Client, stream: Stream) -> None:
        uid, _ = await self._shards(stream)
        try:
            await stream.unpin(PINNED)
            self.scene.happened("pin", uid)
        except NotFound:
            await self._pin(client, stream)

    # --- of messages

    async def _truncate(self, client: Client, stream: Stream) -> None:
        uid, shards = await self._shards(stream)
        ended = [each for each in shards if not each.is_open]
        chosen = self._pick([*shards, *ended], "which shard")
        if chosen is None:
            return
        before: Any = "latest"
        if self.scene.world.chance.hits(0.3, "a part of it"):
            before = (await client.admin.status(chosen.log)).next_seq // 2
        await client.admin.truncate(chosen.log, before)
        self.scene.happened("truncate", uid)

    async def _collect(self, client: Client, stream: Stream) -> None:
        uid, shards = await self._shards(stream)
        for shard in shards:
            try:
                found = await client.admin.collect(shard.log)
            except NotFound:
                continue  # not made yet
            if found.truncated and self.scene.weather.retention:
                self.scene.happened("retain", uid)

    async def _trim(self, client: Client, stream: Stream) -> None:
        uid, shards = await self._shards(stream)
        for shard in shards:
            if shard.state is ShardState.ENDED:
                await client.admin.truncate(shard.log, "latest")
        if await stream.trim():
            self.scene.happened("trim", uid)

    # --- of the whole

    async def _terminate(self, client: Client, stream: Stream) -> None:
        uid, _ = await self._shards(stream)
        await stream.terminate()
        self.scene.happened("terminate", uid)

    async def _again(self, client: Client, stream: Stream) -> None:
        try:
            await stream.remove()
        except NotFound:
            pass
        await self.scene.pause(2.0)
        await make(self.scene, client)

    async def _remove_group(self, client: Client, stream: Stream) -> None:
        await remove_group(self.scene, client, GROUP)


async def make(scene: Scene, client: Client) -> None:
    options: dict[str, Any] = {"retention_bytes": 0} if scene.weather.retention else {}
    try:
        await client.create_stream(
            STREAM, shards=scene.weather.shards, deletion_grace_s=0, **options
        )
    except AlreadyExists:
        pass


async def sweep(scene: Scene, client: Client) -> None:
    """By a fresh client, when all is well: what is truncated is collected, what is over is
    trimmed."""
    stream = client.stream(STREAM)
    now = scene.truth.now
    if now is None or now.removed != NEVER:
        return
    for shard in await stream.shards():
        log = scene.truth.logs.get(shard.log_uid)
        if log is None:
            continue
        if log.point != Point() or (scene.weather.retention and len(log.ledgers) > 1):
            with contextlib.suppress(NotFound):
                await client.admin.collect(shard.log)
    try:
        await stream.trim()
    except Conflict as error:
        scene.world.note(f"not trimmed: {error!r}")
