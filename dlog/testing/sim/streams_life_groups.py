"""Groups and bounded jobs of `streams-life`: workers that come and go, and what their group has to
have processed, whatever was truncated, retained, trimmed or made again under it."""

from __future__ import annotations

from functools import partial
from typing import Any

from dlog.client import Client
from dlog.errors import ConfigError, DlogError, LeaseLost, NotFound
from dlog.groups.charter import Charter
from dlog.groups.places import GroupPlaces
from dlog.groups.worker import Worker
from dlog.meta.layout import Layout
from dlog.reader.message import MessageBatch
from dlog.testing.sim.streams_life_process import LifeProcess
from dlog.testing.sim.streams_life_scene import Scene
from dlog.testing.sim.streams_life_truth import HELD, NEVER, ORDER, STREAM, TOLD, UID, Name, Sent
from dlog.testing.sim.streams_life_weather import TIMEOUT_MS

GROUP, JOB = "g", "j"
_LIVES_MAX = 4


class GroupTruth:
    """One incarnation of a group: from its charter to its removal."""

    def __init__(self, name: str, charter: Charter, called: int, scene: Scene) -> None:
        self.name = name
        self.uid = charter.stream_uid
        self.is_job = charter.is_job
        self.is_latest = charter.begin is not None and not charter.is_job
        self.called = called
        self.opened = self.removed = NEVER
        self.done: set[Sent] = set()
        self.tokens: dict[str, int] = {}
        self._next: dict[str, int] = {}  # by log
        self._last: dict[bytes, int] = {}
        self._scene = scene

    @property
    def is_alive(self) -> bool:
        return self.removed == NEVER and not self._scene.truth.is_removed(self.uid)

    def is_wanted(self, sent: Sent) -> bool:
        if sent.gone <= self.opened:
            return False
        if self.is_job:
            return sent.acked < self.called
        return not self.is_latest or sent.added > self.opened

    def missing(self) -> list[Sent]:
        if self.opened == NEVER or not self.is_alive:
            return []
        every = self._scene.truth.of(self.uid)
        return [sent for sent in every if sent not in self.done and self.is_wanted(sent)]

    def on_truncated(self, gone: list[Sent]) -> None:
        if self.opened == NEVER or not self.is_alive:
            return
        lost = [sent for sent in gone if sent.uid == self.uid and sent not in self.done]
        lost = [sent for sent in lost if self.is_job is False or sent.acked < self.called]
        if self.is_latest:
            lost = [sent for sent in lost if sent.added > self.opened]
        truth = self._scene.truth
        truth.require(not lost, HELD, f"group {self.name} has yet to do what goes", *lost[:3])

    def on_message(self, log: str, token: int, value: bytes, seq: int) -> None:
        truth = self._scene.truth
        name = Name.of(value)
        truth.require(name.uid == self.uid, UID, f"group {self.name} of {self.uid} has {name}")
        if token < self.tokens.get(log, 0):
            raise LeaseLost("another worker was here")
        sent = truth.find(name)
        truth.require(sent is not None, TOLD, f"group {self.name} has {name}, which is not there")
        assert sent is not None
        at = self._next.get(log, 0)
        if seq < at:
            return
        self._next[log] = seq + 1
        last = self._last.get(sent.key, -1)
        told = f"group {self.name} has {sent} of {sent.key!r} behind {last}"
        truth.require(sent.added > last, ORDER, told)
        self._last[sent.key] = sent.added
        self.done.add(sent)
        missed = [
            each
            for each in truth.of(self.uid)
            if each.added < sent.added
            and (each.key == sent.key or each.log_uid == sent.log_uid)
            and each not in self.done
            and self.is_wanted(each)
            and self.opened != NEVER
        ]
        told = f"group {self.name} comes to {sent}, and did not have"
        truth.require(not missed, TOLD, told, *missed[:3])


class Groups:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.now: dict[str, GroupTruth] = {}
        self.all: list[GroupTruth] = []
        self.is_closing = False
        self._calls: dict[str, int] = {}  # the first call of a worker since there is no group
        self._lives: dict[str, int] = {}
        layout = Layout()
        self._charters = {GroupPlaces(layout, name, STREAM).charter: name for name in (GROUP, JOB)}
        scene.truth.on_other = self._on_node
        scene.truth.on_truncated.append(self._on_truncated)

    def _on_node(self, path: str, value: bytes | None) -> None:
        name = self._charters.get(path)
        if name is None:
            return
        if value is None:
            if name in self.now:
                self.now.pop(name).removed = self.scene.truth.tick()
            self._calls.pop(name, None)
        elif name not in self.now:
            charter = Charter.from_bytes(value, where=path)
            called = self._calls.get(name, self.scene.truth.moment)
            self.now[name] = GroupTruth(name, charter, called, self.scene)
            self.all.append(self.now[name])

    def _on_truncated(self, gone: list[Sent]) -> None:
        for each in self.all:
            each.on_truncated(gone)

    def missing(self) -> list[Sent]:
        return [sent for each in self.now.values() for sent in each.missing()]

    # --- workers

    def begin(self, group: str, number: int, *, is_safe: bool = False) -> None:
        scene = self.scene
        name = f"{group}{number}"
        life = self._lives.get(name, 0)
        self._lives[name] = life + 1
        process = scene.process(f"{name}{'abcdefgh'[life]}", is_safe=is_safe)
        on_trouble = process.on_trouble

        def trouble(what: str) -> None:
            on_trouble(what)
            if what == "death" and life + 1 < _LIVES_MAX:
                pause_ms = 1.0 + scene.world.chance.delay(30.0)
                scene.world.after(pause_ms, partial(self.begin, group, number))

        process.on_trouble = trouble
        scene.start(process, _Worker(self, group, process).run(number))


class _Worker:
    def __init__(self, groups: Groups, group: str, process: LifeProcess) -> None:
        self.groups = groups
        self.scene = groups.scene
        self.group = group
        self.process = process
        self.truth: GroupTruth | None = None
        self.is_job = group == JOB

    async def run(self, number: int) -> None:
        client = self.process.new_client()
        try:
            while not self.groups.is_closing:
                try:
                    if await self._live(client):
                        return
                except DlogError as error:
                    self.scene.check_expected(self.process.name, error)
                    if isinstance(error, ConfigError):
                        await self._remove(client, error)
                    if isinstance(error, NotFound) and self.scene.is_ending:
                        if self.scene.truth.now is None:
                            return
                    await self.scene.pause(10.0)
        finally:
            await client.close()

    async def _remove(self, client: Client, error: ConfigError) -> None:
        """The group is of a stream that was removed."""
        scene, group = self.scene, self.groups.now.get(self.group)
        is_old = group is None or scene.truth.is_removed(group.uid)
        scene.truth.require(is_old, TOLD, f"{self.process.name} is told {error!r}")
        await remove_group(scene, client, self.group)

    def _options(self) -> dict[str, Any]:
        return {
            "name": self.process.name,
            "heart": "loop",
            "threads": 0,
            "timeout_ms": TIMEOUT_MS,
            "flush_ms": 20,
            "hand_over_ms": TIMEOUT_MS,
            "retry_pause_ms": 10,
            "stop_at_end": self.is_job,
            "start": "earliest" if self.is_job else self.scene.weather.group_start,
        }

    async def _live(self, client: Client) -> bool:
        """True: it does not come again."""
        groups, truth = self.groups, self.scene.truth
        groups._calls.setdefault(self.group, truth.tick())
        self.truth = None
        worker = await client.open_worker(self.group, STREAM, self._process, **self._options())
        try:
            charter = worker._heart.charter
            found = groups.now.get(self.group)
            if charter is not None and found is not None and found.uid == charter.stream_uid:
                self.truth = found
                found.opened = min(found.opened, truth.tick())
                self.scene.happened("job" if self.is_job else "group", found.uid)
            return await self._watch(worker)
        finally:
            await worker.close()

    async def _watch(self, worker: Worker) -> bool:
        scene, chance = self.scene, self.scene.world.chance
        while not self.groups.is_closing:
            why = await worker.wait(timeout=0.02)
            if why is not None:
                return self._on_end(why)
            if (
                chance.hits(scene.weather.leaves / 10, "a worker leaves")
                and not scene.world.is_calm
            ):
                scene.world.mark("a worker leaves")
                await worker.close()
                await scene.pause(30.0)
                return False
        return True

    def _on_end(self, why: str) -> bool:
        scene, group = self.scene, self.truth
        scene.world.note(f"{self.process.name} ends: {why}")
        scene.world.mark(f"a worker ends: {why[:24]}")
        if why == "all shards are done":
            missing = [] if group is None else group.missing()
            told = f"job {self.group} says that all is done"
            scene.truth.require(self.is_job and not missing, TOLD, told, *missing[:3])
            return True
        is_gone = group is None or not group.is_alive
        known = is_gone or why == "another process goes by the same name"
        scene.truth.require(known, TOLD, f"{self.process.name} ended by itself: {why}")
        return self.is_job

    async def _process(self, batch: MessageBatch, tracker: Any) -> None:
        group = self.truth
        if group is None:
            group = self.truth = self.groups.now.get(self.group)
            if group is None:
                raise LeaseLost("the group was removed")
        log, token = tracker.shard.log, tracker.token
        group.tokens[log] = max(token, group.tokens.get(log, 0))
        await self.scene.pause(0.5)
        for message in batch.to_pylist():
            group.on_message(log, token, message.value or b"", message.seq)
        tracker.checkpoint()


async def remove_group(scene: Scene, client: Client, name: str) -> None:
    try:
        await client.group(name, STREAM).remove()
        scene.world.mark("a group is removed")
    except DlogError as error:
        scene.check_expected("who removes a group", error)
        scene.world.note(f"group {name} is not removed: {error!r}")
