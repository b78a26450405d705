"""The core of a writer of many shards: what becomes of its lanes when shards end.

A *lane* is the writer of one shard's log. When a shard is split or merged, its log is terminated
under the lane, whoever is writing: the lane dies, with messages that were on their way. What
became of each is certain by then, because the log has ended. Those that are in the log are
acknowledged; the others are sent again to the shards that have their keys now, before anything new
is, in the order in which they were sent first. So a key keeps its order, nothing is lost, and
nothing is there twice.

A lane whose shard is open and that died all the same was taken over by another writer: it is lost,
with the errors that it died with. So is one that was not the last to write its shard, and a new
shard that somebody else wrote before us. What follows a lost shard is its new writer's: a writer
that slept takes nothing back.

`carry_on` is run again whenever a lane died, and always looks at the newest list first. It decides;
how lanes are opened, told apart and sent on is the driver's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dlog.effects import CreateNode, Effect, Procedure, ReadNode, Together
from dlog.errors import AlreadyExists, Corrupt, NotFound, Unsupported
from dlog.meta.shards import ShardLog
from dlog.streams.document import Shard, ShardState, StreamMeta
from dlog.streams.numbers import Inherited, Numbers, inherit
from dlog.streams.reshard import SeenStream, Site, end_before, read_stream
from dlog.streams.trimmed import TrimmedShard, read_trimmed
from dlog.writer.batch import Batch

OPENINGS_AT_ONCE = 16


class Left(NamedTuple):
    """A message that was on its way when its lane died. `ticket` is the driver's."""

    value: bytes | None
    key: bytes | None
    headers: Any
    event_time_us: int | None
    producer: tuple[int, int] | None
    ticket: Any


def left_of(batch: Batch) -> list[Left]:
    """Each message of it."""
    batch.pad_columns()
    count = len(batch.values)
    nothing = itertools.repeat(None, count)
    rows = zip(
        batch.values,
        batch.keys or nothing,
        batch.headers or itertools.repeat(None, count),
        batch.event_times_us or itertools.repeat(None, count),
        strict=False,
    )
    producer = batch.producer
    return [
        Left(
            value,
            key,
            headers,
            event_time_us,
            None if producer is None else (producer[0], producer[1] + idx),
            (batch, idx),
        )
        for idx, (value, key, headers, event_time_us) in enumerate(rows)
    ]


@dataclass(frozen=True, slots=True)
class CountNumbers(Effect):
    """→ `Numbers`: of the producers in the log of a shard that has ended."""

    shard: ShardLog


@dataclass(frozen=True, slots=True)
class OpenLane(Effect):
    """Become the writer of an open shard's log, which is made if it is not there. `Unsupported`
    when the log has ended."""

    shard: Shard
    log: ShardLog
    inherited: Inherited


@dataclass(frozen=True, slots=True)
class LastWriter(Effect):
    """→ the epoch of the last writer of a shard's log, counted from the log's beginning, those
    that ended it left out; 0 if there was none, -1 if that cannot be told any more."""

    shard: ShardLog


class Told(NamedTuple):
    """Of a lane whose log has ended: the messages that are not in it, in their order; and whether
    the lane was the last that wrote it."""

    left: Sequence[Left]
    was_last: bool


@dataclass(frozen=True, slots=True)
class TellApart(Effect):
    """→ `Told`. The messages that are in the log are acknowledged now; a lane that does not know
    yet that its log has ended is closed."""

    number: int


@dataclass(frozen=True, slots=True)
class Resend(Effect):
    """Hand these to the lanes of their keys, in this order → those that a lane did not take because
    it died meanwhile, in their order."""

    messages: tuple[Left, ...]


@dataclass(frozen=True, slots=True)
class Refuse(Effect):
    """They belong to shards of other writers now, or to none: they are in no log."""

    messages: tuple[Left, ...]


@dataclass(frozen=True, slots=True)
class LoseLane(Effect):
    """Somebody else writes this shard: its messages end as its writer says."""

    number: int


@dataclass(frozen=True, slots=True)
class Publish(Effect):
    """New messages go by the lanes as they are now."""


class Lanes:
    """Which shards are this writer's. `wanted` is None for all that there are and will be."""

    def __init__(self, wanted: frozenset[int] | None) -> None:
        self.wanted = wanted
        self.meta: StreamMeta | None = None
        self.opened: set[int] = set()  # lanes that are, dead or alive
        self.dead: set[int] = set()  # of them, those known to be
        self.lost: set[int] = set()  # shards that somebody else took from us
        self.left: tuple[Left, ...] = ()  # told apart, and not yet sent again
        # Shards that were ours at any time, as long as they are listed.
        self._held: set[int] = set()
        self._first_new: int | None = None  # shards from this number on were made under us
        self._passed: set[int] = set()  # of these, ended: ours, or nobody's
        # How often we tried to open a shard, with an outcome that we may not know.
        self.tried: dict[int, int] = {}

    def saw(self, meta: StreamMeta) -> None:
        self.meta = meta
        if self._first_new is None:
            self._first_new = meta.next_number
        if self.wanted is not None:
            known = {n for shard in meta.shards for n in (shard.number, *shard.parents)}
            self._held = {n for n in self._held | self.wanted if n in known}
            for shard in meta.shards:  # parents stand before their children
                if shard.parents and shard.parents[0] in self._held:
                    self._held.add(shard.number)

    def is_ours(self, number: int) -> bool:
        """A child belongs to whoever has its first parent. What somebody took from us stays
        theirs, with its children."""
        if self.lost:
            assert self.meta is not None
            before = self.meta.before((number,))
            if any(n in self.lost for shard in before for n in (shard.number, *shard.parents)):
                return False
        return self.wanted is None or number in self._held

    def to_open(self) -> list[Shard]:
        assert self.meta is not None
        return [
            shard
            for shard in self.meta.open_shards
            if shard.number not in self.opened and self.is_ours(shard.number)
        ]

    def to_tell_apart(self) -> list[int]:
        """Lanes of shards that are sealed."""
        assert self.meta is not None
        states = {shard.number: shard.state for shard in self.meta.shards}
        ended = (ShardState.SEALED, ShardState.ENDED)
        return sorted(n for n in self.opened if states.get(n, ShardState.ENDED) in ended)

    def follows(self, number: int) -> bool:
        """Was it made under us? Then it is only ours if nobody else had it before."""
        return self._first_new is not None and number >= self._first_new

    def unseen(self) -> list[Shard]:
        """Shards that came and went since we looked last, and would have been ours."""
        assert self.meta is not None
        return [
            shard
            for shard in self.meta.shards
            if not shard.is_open
            and self.follows(shard.number)
            and shard.number not in self._passed
            and shard.number not in self.opened
            and self.is_ours(shard.number)
        ]

    def unlisted(self) -> list[int]:
        """Parents of listed shards that came and went since we looked last."""
        assert self.meta is not None
        parents = {parent for shard in self.meta.shards for parent in shard.parents}
        known = self._passed | self.opened | self.lost
        return sorted(n for n in parents - known if self.follows(n) and not self.meta.has(n))

    def saw_trimmed(self, number: int, trimmed: Mapping[int, TrimmedShard]) -> bool:
        """Whether one of those, or one before it, was somebody else's: what follows is theirs."""
        assert self.meta is not None
        if number in self.lost:
            return True
        if number in self._passed or not self.follows(number) or self.meta.has(number):
            return False
        shard = trimmed.get(number)
        is_theirs = shard is None or not 0 <= shard.last_writer <= self.tried.get(number, 0)
        if shard is not None and not is_theirs:
            is_theirs = any(self.saw_trimmed(parent, trimmed) for parent in shard.parents)
        (self.lost if is_theirs else self._passed).add(number)
        return is_theirs

    def lost_now(self) -> list[int]:
        """Lanes that died although their shards are open."""
        assert self.meta is not None
        is_open = {shard.number for shard in self.meta.open_shards}
        return sorted(n for n in self.dead if n in is_open)

    def forget(self, number: int) -> None:
        self.opened.discard(number)
        self.dead.discard(number)
        self._passed.add(number)

    def passed(self, number: int) -> None:
        """Nobody wrote it."""
        self._passed.add(number)


def carry_on(lanes: Lanes, site: Site) -> Procedure[None]:
    """Until every lane that we may have is open, and everything left over is sent."""
    while True:
        seen = yield from read_stream(site)
        site = site.of(seen.meta)
        lanes.saw(seen.meta)
        for number in lanes.lost_now():
            yield LoseLane(number)
            lanes.lost.add(number)
            lanes.forget(number)
        gone = lanes.to_tell_apart()
        to_open = lanes.to_open()
        unseen = lanes.unseen()
        if not gone and not to_open and not unseen and not lanes.left:
            break
        seen = yield from end_before(site, seen, (*gone, *(shard.number for shard in unseen)))
        lanes.saw(seen.meta)
        # Had one of these failed, all are told apart again: so nothing is noted before the last.
        answers: list[Told] = []
        for number in gone:
            answers.append((yield TellApart(number)))  # noqa: PERF401 - it yields
        others: list[int] = []
        for shard in unseen:
            last = yield LastWriter(seen.meta.log_of(shard, site.name))
            if not 0 <= last <= lanes.tried.get(shard.number, 0):  # else it was us, or nobody
                others.append(shard.number)
        refused = _note(lanes, gone, answers, [shard.number for shard in unseen], others)
        if refused:
            yield Refuse(refused)
        if unlisted := lanes.unlisted():
            trimmed = yield from read_trimmed(site, seen.meta.uid)
            for number in unlisted:
                lanes.saw_trimmed(number, trimmed)
        if not (yield from _open_all(lanes, site, seen)):
            continue  # one of them was sealed meanwhile: where its keys go, the list says
        if lanes.left:
            lanes.left = yield from _send_on(lanes)
    yield Publish()


def _note(
    lanes: Lanes,
    gone: Sequence[int],
    answers: Sequence[Told],
    unseen: Sequence[int],
    others: Sequence[int],
) -> tuple[Left, ...]:
    """What became of shards that ended; the messages that are not ours to send on. `others` of the
    `unseen` were somebody else's."""
    told: list[Sequence[Left]] = []
    refused: list[Left] = []
    for number, (left, was_last) in zip(gone, answers, strict=True):
        lanes.forget(number)
        if was_last:
            told.append(left)
        else:  # somebody had it after us: what follows it is theirs
            lanes.lost.add(number)
            refused.extend(left)
    for number in unseen:
        if number in others:
            lanes.lost.add(number)
        else:
            lanes.passed(number)
    lanes.left = tuple(in_order([*told, lanes.left]))
    return tuple(refused)


def _open_all(lanes: Lanes, site: Site, seen: SeenStream) -> Procedure[bool]:
    """False where shards were sealed meanwhile."""
    wanted = [shard.number for shard in lanes.to_open()]
    parents = {parent for number in wanted for parent in seen.meta.shard(number).parents}
    seen = yield from end_before(site, seen, parents)
    lanes.saw(seen.meta)
    if lanes.to_tell_apart() or lanes.unseen():
        return False  # what they left over goes before what others did
    all_open = True
    for first in range(0, len(wanted), OPENINGS_AT_ONCE):
        some = wanted[first : first + OPENINGS_AT_ONCE]
        answers = yield Together(tuple(_open(lanes, site, seen.meta, n) for n in some))
        all_open &= all(answers)
    return all_open


def _open(lanes: Lanes, site: Site, meta: StreamMeta, number: int) -> Procedure[bool]:
    shard = meta.shard(number)
    if not shard.is_open:
        return False
    if lanes.follows(number) and number not in lanes.tried:
        if (yield LastWriter(meta.log_of(shard, site.name))) != 0:
            lanes.lost.add(number)  # somebody was here before us
            return True
    try:
        inherited = yield from read_inherited(site, meta, shard)
        lanes.tried[number] = lanes.tried.get(number, 0) + 1
        yield OpenLane(shard, meta.log_of(shard, site.name), inherited, point="stream.lane_opened")
    except (NotFound, Unsupported):  # trimmed, or ended
        now = yield from read_stream(site)
        if now.meta.has(number) and now.meta.shard(number).is_open:
            raise  # its log was ended by somebody who knows of no streams
        return False
    lanes.opened.add(number)
    return True


def _send_on(lanes: Lanes) -> Procedure[tuple[Left, ...]]:
    meta = lanes.meta
    assert meta is not None
    ours: list[Left] = []
    others: list[Left] = []
    for left in lanes.left:
        (ours if _has_lane(lanes, meta, left) else others).append(left)
    if others:
        yield Refuse(tuple(others))
    if not ours:
        return ()
    return tuple((yield Resend(tuple(ours))))


def _has_lane(lanes: Lanes, meta: StreamMeta, left: Left) -> bool:
    if left.key is None and left.producer is None:
        return bool(lanes.opened)
    key = left.key if left.key is not None else producer_key(*left.producer or (0, 0))
    return bool(meta.open_shards) and meta.owner_of(key).number in lanes.opened


def producer_key(producer_id: int, number: int) -> bytes:
    """Where a message without a key goes that may be sent again: to the same shard each time."""
    return b"%d:%d" % (producer_id, number)


def read_inherited(site: Site, meta: StreamMeta, shard: Shard) -> Procedure[Inherited]:
    """What a shard knows of producers from those before it, all of which have ended. It is stored
    before the shard is opened, and before any shard before it is trimmed."""
    if not shard.parents:
        return Inherited()
    path = site.inherited(meta.uid, shard)
    kept = yield from _read_kept(path)
    if kept is not None:
        return kept
    try:
        found = yield from _inherit(site, meta, shard)
    except NotFound as gone:  # a parent was trimmed meanwhile, so it is stored by now
        kept = yield from _read_kept(path)
        if kept is None:
            now = yield from read_stream(site.of(meta))  # or the whole stream is gone
            if not now.meta.has(shard.number):
                raise NotFound(f"shard {shard.number} was trimmed") from gone
            raise Corrupt(
                f"stream {site.name!r}: what shard {shard.number} inherited of producers' numbers "
                f"is not at {path}, and shards before it are gone",
                path=path,
            ) from gone
        return kept
    try:
        yield CreateNode(path, found.to_bytes(), point="stream.numbers_kept")
    except AlreadyExists:
        return (yield from _read_kept(path)) or found
    return found


def _read_kept(path: str) -> Procedure[Inherited | None]:
    try:
        raw, _ = yield ReadNode(path)
    except NotFound:
        return None
    return Inherited.from_bytes(raw, path)


def _inherit(site: Site, meta: StreamMeta, shard: Shard) -> Procedure[Inherited]:
    """`NotFound`: a shard before it is gone."""
    ends: dict[int, tuple[Inherited, Numbers]] = {}
    for parent in shard.parents:
        if not meta.has(parent):
            if shard.log_uid:
                raise NotFound(f"shard {parent} is trimmed")
            continue  # older versions trimmed without storing it
        before = meta.shard(parent)
        inherited = yield from read_inherited(site, meta, before)
        ends[parent] = inherited, (yield CountNumbers(meta.log_of(before, site.name)))
    return inherit(meta, shard, ends)


def in_order(told: Sequence[Sequence[Left]]) -> list[Left]:
    """One order that keeps that of each lane and the numbers of each producer, which grew as the
    messages were sent first. What stands first of two that may come next was sent first to a lane
    that had the other's keys as well."""
    queues = [list(reversed(each)) for each in told if each]
    if len(queues) == 1:
        return queues[0][::-1]
    lowest: dict[int, list[int]] = {}
    for queue in queues:
        for left in queue:
            if left.producer is not None:
                lowest.setdefault(left.producer[0], []).append(left.producer[1])
    for numbers in lowest.values():
        numbers.sort(reverse=True)
    ordered: list[Left] = []
    while queues:
        chosen = next((queue for queue in queues if _is_next(queue[-1], lowest)), queues[0])
        left = chosen.pop()
        if left.producer is not None:
            numbers = lowest[left.producer[0]]
            numbers.remove(left.producer[1]) if numbers[-1] != left.producer[1] else numbers.pop()
        ordered.append(left)
        queues = [queue for queue in queues if queue]
    return ordered


def _is_next(left: Left, lowest: dict[int, list[int]]) -> bool:
    return left.producer is None or lowest[left.producer[0]][-1] == left.producer[1]
