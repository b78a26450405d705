"""Those who read: workers of the group, bounded jobs, and a reader that follows and saves its
place. Each writes down what it was given before it says that it is done with it."""

from __future__ import annotations

import asyncio
from typing import Any

import dlog
from dlog import aio
from dlog.errors import ConfigError, NotFound, Truncated
from tests.chaos.streams.journal import packed, read_value
from tests.chaos.streams.scene import EXPECTED, GROUP, JOB, STREAM, TIMEOUT_MS, Scene

JOB_PATIENCE_S = 20.0


def told_of(messages: list[Any]) -> dict[str, Any]:
    """What is written down of messages of one shard."""
    found = [read_value(message.value) for message in messages]
    uids = sorted({uid for uid, _ in found})
    first = messages[0].seq
    assert [m.seq for m in messages] == list(range(first, first + len(messages)))
    return {"uids": uids, "first": first, "m": packed(name for _, name in found)}


class Processor:
    """Of one shard. Saves its checkpoint now and then, else only takes it."""

    scene: Scene
    group: str

    def initialize(self, shard: dlog.ShardInfo) -> None:
        start = 0 if shard.start is None else shard.start.next_seq
        self.scene.journal.note(
            "begin", group=self.group, shard=shard.number, token=shard.token, start=start
        )

    async def process(self, batch: dlog.MessageBatch, tracker: dlog.Tracker) -> None:
        journal, chance = self.scene.journal, self.scene.chance
        messages = batch.to_pylist()
        shard, token = tracker.shard.number, tracker.token
        journal.note("did", group=self.group, shard=shard, token=token, **told_of(messages))
        if chance.random() < 0.003:
            await self.scene.pause(0.5)
        if chance.random() < 0.03:
            await tracker.save()
            kept = messages[-1].seq + 1
            uids = [read_value(messages[-1].value)[0]]
            journal.note("kept", group=self.group, shard=shard, token=token, upto=kept, uids=uids)
        else:
            tracker.checkpoint()


def processor_of(scene_: Scene, group_: str) -> type[Processor]:
    class Made(Processor):
        scene = scene_
        group = group_

    return Made


async def work(scene: Scene, name: str) -> None:
    """One life after the other: it leaves in order now and then, and comes again."""
    while not scene.is_over("end"):
        try:
            worker = await scene.client.open_worker(
                GROUP,
                STREAM,
                processor_of(scene, GROUP),
                name=name,
                timeout_ms=TIMEOUT_MS,
                leases=scene.options.leases,
            )
        except EXPECTED as error:
            scene.told("work", error)
            await scene.pause(0.5)
            continue
        scene.journal.note("joined", group=GROUP, uid=await uid_of_group(scene))
        stays_s = 1e9 if scene.chance.random() < 0.6 else scene.chance.uniform(1, 8)
        why = await worker_ended(scene, worker, stays_s)
        await worker.close()
        scene.journal.note("left", group=GROUP, why=why)
        await scene.pause(0.5)


async def uid_of_group(scene: Scene) -> str | None:
    try:
        return (await scene.client.group(GROUP, STREAM).charter()).stream_uid
    except EXPECTED as error:
        scene.told("charter", error)
        return None


async def worker_ended(scene: Scene, worker: aio.Worker, stays_s: float) -> str:
    loop = asyncio.get_running_loop()
    leaves_s = loop.time() + stays_s
    while loop.time() < leaves_s or scene.is_over("stop"):
        try:
            why = await worker.wait(0.25)
        except EXPECTED as error:
            scene.told("wait", error)
            return type(error).__name__
        if why is not None:
            return why
        if worker.failed:
            scene.journal.note("failed", shards=dict(worker.failed))
            return "shards failed"
        if scene.is_over("end"):
            return "the run ended"
    return "it was time"


async def do_jobs(scene: Scene, _: str) -> None:
    """Bounded jobs, one after the other; one that was killed is gone on with under its name."""
    begun = [line["group"] for line in scene.journal.before() if line["op"] == "job"]
    ended = {line["group"] for line in scene.journal.before() if line["op"] == "job_over"}
    number = len(set(begun))
    while True:
        unfinished = [name for name in begun if name not in ended]
        if not unfinished:
            if scene.is_over("stop"):
                return
            await scene.pause(3)
            unfinished = [f"{JOB}{number}"]
            number += 1
        name = unfinished[0]
        begun.append(name)
        await one_job(scene, name)
        ended.add(name)


async def one_job(scene: Scene, name: str) -> None:
    loop = asyncio.get_running_loop()
    uid = await scene.uid()
    scene.journal.note("job", group=name, uid=uid)
    why = "not opened"
    late_s = loop.time() + JOB_PATIENCE_S
    while loop.time() < late_s:
        try:
            worker = await scene.client.open_worker(
                name,
                STREAM,
                processor_of(scene, name),
                name="jobber",
                timeout_ms=TIMEOUT_MS,
                leases=scene.options.leases,
                stop_at_end=True,
            )
        except (NotFound, ConfigError) as error:  # the stream is another one by now
            why = str(error)
            break
        except EXPECTED as error:
            scene.told("job", error)
            await scene.pause(0.5)
            continue
        scene.journal.note("job_open", group=name)
        try:
            why = await worker.wait(JOB_PATIENCE_S * 2) or "stuck"
        except EXPECTED as error:
            why = f"{type(error).__name__}: {error}"
        if why == "stuck":
            scene.journal.note("job_stuck", group=name, why=str(worker.why()))
        await worker.close()
        break
    uid_after = await scene.uid()
    scene.journal.note("job_over", group=name, why=why, uid=uid, after=uid_after)


class Follower:
    """A reader that follows. Its place is in the line that says what it was given, so it goes on
    behind exactly that."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.saved: str | None = None
        self.jumps = False  # it was told that it missed something, and goes on behind that
        for line in scene.journal.before():
            if line["op"] == "read":
                self.saved, self.jumps = line["pos"], False
            elif line["op"] == "anew":
                self.saved, self.jumps = None, False
            elif line["op"] == "missed":
                self.jumps = True

    async def run(self) -> None:
        scene = self.scene
        while not scene.is_over("end"):
            try:
                await self._read()
            except Truncated as error:
                scene.journal.note("missed", uid=uid_in(self.saved), text=str(error)[:300])
                self.jumps = True
            except (NotFound, ConfigError) as error:
                scene.told("follow", error)
                now = await scene.uid()
                if self.saved is not None and now not in (None, uid_in(self.saved)):
                    scene.journal.note("anew", uid=now, before=uid_in(self.saved))
                    self.saved, self.jumps = None, False
            except EXPECTED as error:
                scene.told("follow", error)
            await scene.pause(0.3)

    async def _read(self) -> None:
        scene = self.scene
        start: Any = "earliest"
        if self.saved is not None:
            start = dlog.StreamPosition.parse(self.saved)
        leaves = scene.chance.randint(5, 400)
        async with scene.stream.open_reader(
            start=start,
            follow=True,
            order=scene.chance.choice(("arrival", "arrival", "time")),
            patience_ms=200,
            on_truncated="jump" if self.jumps else "raise",
        ) as reader:
            scene.journal.note("reading", uid=reader.position.stream_uid, jumps=self.jumps)
            while leaves > 0 and not scene.is_over("end"):
                if not await self._read_some(reader):
                    await scene.pause(0.05)
                    continue
                leaves -= 1
                if self.jumps:  # it is behind what was gone, or comes back here
                    self.jumps = False
                    return

    async def _read_some(self, reader: aio.StreamReader) -> bool:
        """A few reads, each of as much as is at hand, and one line of all of them."""
        chance = self.scene.chance
        found: list[Any] = []
        try:
            for _ in range(chance.choice((1, 20, 200))):
                timeout_s = 0.0 if found else chance.choice((0.0, 0.05, 0.3))
                some = await reader.read(chance.choice((1, 1000)), timeout=timeout_s)
                if not some:
                    break
                found += some
        finally:
            if found:
                self._note(reader, found)
        return bool(found)

    def _note(self, reader: aio.StreamReader, found: list[Any]) -> None:
        position = reader.position
        self.saved = position.to_text()
        runs: list[tuple[int, list[Any]]] = []
        for shard, message in found:
            if runs and runs[-1][0] == shard and runs[-1][1][-1].seq + 1 == message.seq:
                runs[-1][1].append(message)
            else:
                runs.append((shard, [message]))
        told = [{"shard": shard, **told_of(messages)} for shard, messages in runs]
        self.scene.journal.note("read", uid=position.stream_uid, runs=told, pos=self.saved)


async def follow(scene: Scene, _: str) -> None:
    await Follower(scene).run()


def uid_in(saved: str | None) -> str | None:
    return None if saved is None else dlog.StreamPosition.parse(saved).stream_uid
