"""Readers of `streams-life`: from the beginning, the end, a time, or from where they stood; on and
on, or to the end. Each sees all from where it began, in order in each key, or is told what not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from dlog.client import Client
from dlog.errors import ConfigError, DlogError, NotFound, Truncated
from dlog.streams.places import StreamPosition
from dlog.streams.reader import StreamReader
from dlog.testing.sim.streams_life_process import LifeProcess
from dlog.testing.sim.streams_life_scene import Scene
from dlog.testing.sim.streams_life_truth import NEVER, ORDER, STREAM, TOLD, UID, Name, Sent

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LIVES_MAX = 3
_FEATURES = {"earliest": "reader", "latest": "latest", "time": "by time"}


class Reading:
    """One way through one stream, by one program after the other."""

    def __init__(self, scene: Scene, number: int, start: str, *, bounded: bool) -> None:
        self.scene = scene
        self.name = f"r{number}"
        self.start = start
        self.is_bounded = bounded
        self.uid: str | None = None
        self.called = self.opened = NEVER
        self.since_us = 0
        self.seen: set[Sent] = set()
        self.last: dict[bytes, int] = {}  # by key: when it was added
        self.saved: tuple[str, dict[bytes, int]] | None = None
        self.jumps = False
        self.is_over = False  # it ended, or the stream did
        self.lives = 0

    def __repr__(self) -> str:
        return f"{self.name} from {self.start!r}"

    # --- what it is to see

    def is_wanted(self, sent: Sent) -> bool:
        if sent.gone <= self.opened:
            return False
        if self.is_bounded and sent.acked >= self.called:
            return False
        if self.start == "latest":
            return sent.added > self.opened and not self.is_bounded
        return self.start != "time" or sent.time_us >= self.since_us

    def missing(self) -> list[Sent]:
        if self.uid is None or self.opened == NEVER or self.is_over:
            return []
        return [
            sent
            for sent in self.scene.truth.of(self.uid)
            if sent.gone == NEVER and sent not in self.seen and self.is_wanted(sent)
        ]

    def check_told(self) -> None:
        """Of all that it did not see."""
        if self.uid is None or self.opened == NEVER or self.jumps:
            return
        for sent in self.scene.truth.of(self.uid):
            if sent not in self.seen and self.is_wanted(sent) and self._is_past(sent):
                self._require(False, TOLD, f"does not see {sent}, and is not told")

    def _is_past(self, sent: Sent) -> bool:
        """It stands behind it, so it would never hear of it."""
        if self.is_over:
            return True
        if self.saved is None or self.uid is None:
            return False
        at = StreamPosition.parse(self.saved[0])
        shards = self.scene.truth.streams[self.uid].shards
        number = next(n for n, shard in shards.items() if shard.log_uid == sent.log_uid)
        if number in at.shards:
            return at.shards[number].next_seq > sent.seq
        begun = {*at.shards, *at.done}
        while begun:
            if number in begun:
                return True
            begun = {parent for each in begun for parent in shards[each].parents}
        return False

    def _on_message(self, value: bytes, log_seq: int) -> None:
        truth = self.scene.truth
        name = Name.of(value)
        self._require(name.uid == self.uid, UID, f"is handed {name}")
        sent = truth.find(name)
        self._require(sent is not None, TOLD, f"is handed {name}, which is not there")
        assert sent is not None
        self._require(sent.seq == log_seq, TOLD, f"is handed {sent} as seq {log_seq}")
        last = self.last.get(sent.key, -1)
        self._require(sent.added > last, ORDER, f"is handed {sent} of {sent.key!r} behind {last}")
        self.last[sent.key] = sent.added
        self.seen.add(sent)
        if self.jumps:
            missed = []
        else:
            missed = [
                each
                for each in truth.of(name.uid)
                if each.added < sent.added
                and (each.key == sent.key or each.log_uid == sent.log_uid)
                and each not in self.seen
                and self.is_wanted(each)
            ]
        self._require(not missed, TOLD, f"comes to {sent}, and did not see", *missed[:3])

    def _require(self, held: bool, promise: str, what: str, *about: object) -> None:
        if not held:
            self.scene.truth.require(False, promise, f"{self!r} {what}", *about)

    # --- its programs

    def begin(self) -> None:
        scene, number = self.scene, self.lives
        self.lives += 1
        process = scene.process(f"{self.name}{'abcdefgh'[number]}")
        on_trouble = process.on_trouble

        def trouble(what: str) -> None:
            on_trouble(what)
            if what == "death":
                if self.lives < _LIVES_MAX and self.saved is not None:
                    scene.world.after(1.0 + scene.world.chance.delay(20.0), self.begin)
                else:
                    self.is_over = True

        process.on_trouble = trouble
        scene.start(process, self._run(process))

    async def _run(self, process: LifeProcess) -> None:
        client = process.new_client()
        try:
            while not self._may_end():
                try:
                    if await self._session(process, client):
                        break
                except DlogError as error:
                    self.scene.check_expected(process.name, error)
                    if self._ends(error):
                        self.is_over = True
                        break
                    await self.scene.pause(5.0)
        finally:
            await client.close()

    def _may_end(self) -> bool:
        scene = self.scene
        if self.is_over:
            return True
        if scene.are_readers_ending:
            return self.uid is None or not self.missing()
        return False

    def _ends(self, error: DlogError) -> bool:
        """Is it over for good? Else it goes on in a new session."""
        scene = self.scene
        if isinstance(error, Truncated):
            self._require(not self.jumps, TOLD, f"jumps, and is told {error!r}")
            scene.world.mark("a reader is told what it missed")
            self.jumps = True
            return False
        if isinstance(error, (NotFound, ConfigError)) and self.uid is not None:
            is_removed = scene.truth.is_removed(self.uid)
            self._require(is_removed, TOLD, f"is told {error!r}, and the stream is there")
            scene.world.mark("a reader is told of a removal")
            return True
        if isinstance(error, NotFound):
            return scene.is_ending and scene.truth.now is None
        self._require(not isinstance(error, ConfigError), TOLD, f"is told {error!r}")
        return False

    async def _session(self, process: LifeProcess, client: Client) -> bool:
        """True at the end of one that has an end."""
        scene, truth = self.scene, self.scene.truth
        called = truth.tick()
        reader = await client.stream(STREAM).open_reader(**self._options(process))
        try:
            uid = reader._order.meta.uid  # type: ignore[union-attr]
            self._require(self.uid in (None, uid), UID, f"goes on in {uid}")
            if self.uid is None:
                self.uid, self.called, self.opened = uid, called, truth.tick()
                scene.happened(_FEATURES[self.start], uid)
                if self.is_bounded:
                    scene.world.mark("a bounded reading")
            self._save(reader)
            return await self._read(reader)
        finally:
            await reader.close()

    def _options(self, process: LifeProcess) -> dict[str, Any]:
        weather, chance = self.scene.weather, self.scene.world.chance
        options: dict[str, Any] = {
            "follow": not self.is_bounded,
            "order": weather.order,
            "patience_ms": 5,
            "on_truncated": "jump" if self.jumps else "raise",
        }
        if self.saved is not None:  # what was seen behind it will be seen again
            self.last = dict(self.saved[1])
            return {**options, "start": StreamPosition.parse(self.saved[0])}
        if self.start != "time":
            return {**options, "start": self.start}
        back_us = int(chance.random() * weather.span_ms * 500)
        self.since_us = process.clock.wall_us() - back_us
        return {**options, "start": _EPOCH + timedelta(microseconds=self.since_us)}

    def _save(self, reader: StreamReader) -> None:
        self.saved = (reader.position.to_text(), dict(self.last))

    async def _read(self, reader: StreamReader) -> bool:
        scene, chance = self.scene, self.scene.world.chance
        while not self._may_end():
            timeout = chance.pick((0.03, 0.005, 0.0), "a read waits")
            found = await reader.read(1 + int(chance.random() * 4), timeout=timeout)
            for each in found:
                self._on_message(each.message.value or b"", each.message.seq)
            if found:
                if chance.hits(0.7, "the place is saved") or self.is_bounded:
                    self._save(reader)
            elif self.is_bounded and reader.at_tail:
                await self._check_end(reader)
                return True
            if timeout == 0.0 or scene.world.is_calm:
                await scene.pause(3.0)
            if not self.is_bounded and chance.hits(scene.weather.saves / 4, "it is opened again"):
                self._save(reader)
                scene.world.mark("a reader goes on from where it stood")
                await scene.pause(10.0)
                return False
        self._save(reader)
        return True

    async def _check_end(self, reader: StreamReader) -> None:
        """All that was acknowledged before it was opened was handed out."""
        self.is_over = True
        self.check_told()
