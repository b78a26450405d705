"""What is true in a history of `streams-life`, as the metadata and the ledgers themselves show it.

Each message says of which stream (by its uid), which producer and which number it is. The truth
hears every write of a node and every entry that a ledger takes, and requires at once what must hold
of each: nobody touches a stream of another uid, no number is taken twice, nothing is deleted that
was not truncated, and nothing is truncated that a group has yet to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dlog.meta.layout import Layout, unescape
from dlog.meta.listed import Point
from dlog.meta.log_meta import LogMeta, LogState
from dlog.streams.document import Shard, StreamMeta, StreamState
from dlog.testing.sim.streams_life_process import Ledgers
from dlog.testing.sim.world import Violation, World, require
from dlog.wire.control import Birth, ControlKind, Seam
from dlog.wire.decode import decode

STREAM = "s"
# Promises of docs/INVARIANTS.md; UID is the one on whose stream it is.
UID, NUMBERS, KEPT, TOLD, HELD, ORDER = "I31", "I31", "I19", "I18", "I19", "I30"
LEFT, STUCK, ACKED = "I26", "I27", "I31"
NEVER = 1 << 60


class Judge:
    """Drivers take what is raised for failures of theirs, and try again: so the first violation is
    kept, and ends the history."""

    world: World
    violation: Violation | None = None

    def require(self, held: bool, promise: str, what: str, *about: object) -> None:
        if not held:
            try:
                require(held, promise, what, *about)
            except Violation as violation:
                if self.violation is None:
                    self.violation = violation
                    self.world.after(0.0, self._end)
                raise

    def _end(self) -> None:
        if self.violation is not None:
            raise self.violation


@dataclass(eq=False, slots=True)
class Sent:
    """A message as a ledger has it. Moments count facts, so that no two are the same."""

    uid: str
    producer: int
    number: int
    key: bytes
    log_uid: str
    id: tuple[int, int, int]
    seq: int
    time_us: int
    added: int
    gone: int = NEVER  # when it was truncated
    acked: int = NEVER  # when its producer was told

    def __repr__(self) -> str:
        return f"{self.producer}:{self.number} of {self.uid[-2:]} at {self.id} seq {self.seq}"


class Name(NamedTuple):
    uid: str
    producer: int
    number: int

    @classmethod
    def of(cls, value: bytes | None) -> Name:
        uid, producer, number = (value or b"").decode().split("/")
        return cls(uid, int(producer), int(number))

    def to_bytes(self) -> bytes:
        return f"{self.uid}/{self.producer}/{self.number}".encode()


@dataclass(eq=False, slots=True)
class _Ledger:
    log_uid: str = ""
    base_seq: int = 0
    is_listed: bool = False
    messages: list[Sent] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Log:
    uid: str
    name: str
    stream: str
    state: LogState = LogState.OPEN
    point: Point = field(default_factory=Point)
    ledgers: list[int] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class StreamTruth:
    """One incarnation of the name."""

    uid: str
    meta: StreamMeta
    made: int
    messages: dict[tuple[int, int], Sent] = field(default_factory=dict)
    removed: int = NEVER  # when its removal was decided
    is_gone: bool = False
    shards: dict[int, Shard] = field(default_factory=dict)  # all that it ever had

    @property
    def is_open(self) -> bool:
        return self.meta.state is StreamState.OPEN

    def shard_of(self, log_uid: str) -> Shard | None:
        return next((s for s in self.meta.shards if s.log_uid == log_uid), None)


class Truth(Judge):
    def __init__(self, world: World, ledgers: Ledgers) -> None:
        self.world = world
        self.moment = 0
        self.streams: dict[str, StreamTruth] = {}
        self.now: StreamTruth | None = None  # whose node stands under the name
        self.logs: dict[str, _Log] = {}  # by uid
        self.on_truncated: list[Callable[[list[Sent]], None]] = []
        self.on_made: Callable[[StreamTruth], None] = lambda stream: None
        self.on_other: Callable[[str, bytes | None], None] = lambda path, value: None
        self._ledgers: dict[int, _Ledger] = {}
        layout = Layout()
        self._stream_path = layout.stream(STREAM)
        self._logs_at = f"{layout.logs}/"
        ledgers.on_add, ledgers.on_delete = self.on_add, self.on_delete

    def tick(self) -> int:
        self.moment += 1
        return self.moment

    # --- metadata

    def on_write(self, path: str, value: bytes) -> None:
        if path == self._stream_path:
            self._on_stream(StreamMeta.from_bytes(value, where=path))
        elif path.startswith(self._logs_at):
            node = path[len(self._logs_at) :]
            if "/" not in node and value:
                self._on_log(unescape(node), LogMeta.from_bytes(value, where=path))
        self.on_other(path, value)

    def on_drop(self, path: str) -> None:
        if path == self._stream_path and self.now is not None:
            stream, self.now = self.now, None
            is_removing = stream.meta.state is StreamState.DELETING
            self.require(
                is_removing, UID, "a stream that nobody removes loses its node", stream.uid
            )
            stream.is_gone = True
        self.on_other(path, None)

    def _on_stream(self, meta: StreamMeta) -> None:
        before, moment = self.now, self.tick()
        if before is None or before.uid != meta.uid:
            self.require(before is None, UID, "a stream stands in the place of another one")
            self.require(meta.uid not in self.streams, UID, "a removed stream came back", meta.uid)
            self.now = self.streams[meta.uid] = StreamTruth(meta.uid, meta, moment)
            self.now.shards.update((shard.number, shard) for shard in meta.shards)
            self.on_made(self.now)
            return
        old, before.meta = before.meta, meta
        before.shards.update((shard.number, shard) for shard in meta.shards)
        if meta.state is StreamState.DELETING and before.removed == NEVER:
            before.removed = moment
        for shard in old.shards:
            if not meta.has(shard.number):
                self._on_trimmed(shard)

    def _on_trimmed(self, shard: Shard) -> None:
        log = self.logs.get(shard.log_uid)
        left = [] if log is None else [each for each in self._of_log(log) if each.gone == NEVER]
        self.require(
            not left, KEPT, f"shard {shard.number} is trimmed, and has messages", *left[:3]
        )

    def _on_log(self, name: str, meta: LogMeta) -> None:
        log = self.logs.get(meta.uid)
        if log is None:
            log = self.logs[meta.uid] = _Log(meta.uid, name, meta.stream or "")
        for segment in meta.segments:
            ledger = self._ledgers.get(segment.ledger_id)
            if ledger is not None and not ledger.is_listed:
                ledger.is_listed = True
                log.ledgers.append(segment.ledger_id)
                for sent in ledger.messages:
                    self._taken(sent)
        was, log.state = log.state, meta.state
        shard = None if self.now is None else self.now.shard_of(meta.uid)
        if self.now is not None and shard is not None and was is not meta.state:
            is_open = shard.is_open and self.now.is_open
            if meta.state is LogState.TERMINATED:
                self.require(not is_open, UID, f"the log of open shard {shard.number} is ended")
            if meta.is_removed:
                is_removing = self.now.meta.state is StreamState.DELETING
                self.require(is_removing, UID, f"the log of listed shard {shard.number} is removed")
        if meta.truncate_before != log.point and not meta.is_removed:
            log.point = log.point.joined(meta.truncate_before)
            self._truncate(log)

    def _truncate(self, log: _Log) -> None:
        moment, gone = self.tick(), []
        for sent in self._of_log(log):
            if sent.gone == NEVER and log.point.is_past(sent.seq, *sent.id):
                sent.gone = moment
                gone.append(sent)
        if gone:
            for tell in self.on_truncated:
                tell(gone)

    def _of_log(self, log: _Log) -> list[Sent]:
        return [sent for each in log.ledgers for sent in self._ledgers[each].messages]

    # --- ledgers

    def on_add(self, ledger_id: int, first: int, entries: list[bytes]) -> None:
        ledger = self._ledgers.setdefault(ledger_id, _Ledger())
        for entry_id, raw in enumerate(entries, first):
            entry = decode(raw, where="the truth")
            if entry.control is ControlKind.BIRTH:
                ledger.log_uid = Birth.from_bytes(entry.control_body, where="a birth").log_uid
            elif entry.control is ControlKind.SEAM:
                ledger.base_seq = Seam.from_bytes(entry.control_body, where="a seam").base_seq
            elif entry.control is None:
                self._on_entry(ledger, ledger_id, entry_id, entry)

    def _on_entry(self, ledger: _Ledger, ledger_id: int, entry_id: int, entry: Any) -> None:
        log = self.logs.get(ledger.log_uid)
        if log is None or not log.stream:
            return  # of leases, or dead letters
        seq, keys = ledger.base_seq + entry.first_seq, entry.keys()
        rows = zip(entry.values(), entry.timestamps_us(), strict=True)
        for idx, (value, time_us) in enumerate(rows):
            name = Name.of(value)
            about = f"{name} was appended to {log.name} of {log.stream}"
            self.require(name.uid == log.stream, UID, about)
            sent = Sent(
                *name,
                (keys[idx] if keys else None) or b"%d:%d" % name[1:],
                log.uid,
                (ledger_id, entry_id, idx),
                seq + idx,
                time_us,
                self.tick(),
            )
            ledger.messages.append(sent)
            if ledger.is_listed:
                self._taken(sent)

    def _taken(self, sent: Sent) -> None:
        stream = self.streams.get(sent.uid)
        self.require(stream is not None, UID, f"{sent} is of no stream")
        assert stream is not None
        there = stream.messages.get((sent.producer, sent.number))
        self.require(there is None, NUMBERS, f"{sent} is there twice, as {there}, too")
        stream.messages[sent.producer, sent.number] = sent
        earlier = [
            each.number
            for each in stream.messages.values()
            if each.producer == sent.producer and each.key == sent.key and each.number > sent.number
        ]
        self.require(not earlier, ORDER, f"{sent} stands behind {earlier[:3]} of its key")

    def on_delete(self, ledger_id: int) -> None:
        ledger = self._ledgers.get(ledger_id)
        if ledger is None or not ledger.is_listed:
            return
        log = self.logs[ledger.log_uid]
        if log.state is LogState.DELETING:
            return
        left = [each for each in ledger.messages if each.gone == NEVER]
        self.require(not left, KEPT, f"ledger {ledger_id} is deleted, and has messages", *left[:3])

    # --- questions

    def find(self, name: Name) -> Sent | None:
        stream = self.streams.get(name.uid)
        return None if stream is None else stream.messages.get((name.producer, name.number))

    def of(self, uid: str) -> list[Sent]:
        return list(self.streams[uid].messages.values()) if uid in self.streams else []

    def is_removed(self, uid: str) -> bool:
        stream = self.streams.get(uid)
        return stream is None or stream.removed != NEVER or stream.is_gone

    def unlisted(self, ledger_id: int) -> bool:
        """It never was in the list of any log: left by who died before it listed it."""
        ledger = self._ledgers.get(ledger_id)
        return ledger is None or not ledger.is_listed
