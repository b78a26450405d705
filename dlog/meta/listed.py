"""What a log meta lists: segments, pages of them, where the log ends and where it begins, where it
comes from and where it went, and what waits for its deletion. Frozen values, and how their JSON
looks."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dlog.errors import FormatError
from dlog.forgotten import ForgottenIds
from dlog.ids import NO_ENTRY, NO_LEDGER
from dlog.meta.json_fields import flat, the_dict, the_int, the_str, the_value

ANY_TIME = -(1 << 63)  # in microseconds: none is older

if TYPE_CHECKING:
    from dlog.meta.log_meta import LogMeta


@dataclass(frozen=True, slots=True)
class Sealed:
    """The end of a segment, once the list knows it."""

    last_entry: int
    bytes: int
    base_seq: int
    next_seq: int
    first_time_us: int
    last_time_us: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A ledger's place in a log."""

    number: int
    ledger_id: int
    epoch: int
    sealed: Sealed | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    is_job: bool = False  # filled by a job and published: sealed from the first, without a seam

    @property
    def not_before_us(self) -> int:
        """Of a published segment: messages that are older count as written then, so that the log's
        clock does not go back. Else older than any time."""
        return self.sealed.first_time_us if self.is_job and self.sealed is not None else ANY_TIME


@dataclass(frozen=True, slots=True)
class PageRef:
    """Names an immutable page node, and what a search needs of it. A page of level 0 holds the
    sealed segments `number` … `last_number`; one of level n holds the refs of level n - 1 that
    these pages had."""

    number: int
    last_number: int
    base_seq: int
    next_seq: int
    first_time_us: int
    last_time_us: int
    first_ledger: int
    last_ledger: int
    segments: int
    bytes: int
    level: int = 0

    @classmethod
    def of_segments(cls, segments: tuple[Segment, ...]) -> PageRef:
        ends = [segment.sealed for segment in segments]
        first, last = ends[0], ends[-1]
        assert first is not None
        assert last is not None
        return cls(
            segments[0].number,
            segments[-1].number,
            first.base_seq,
            last.next_seq,
            first.first_time_us,
            last.last_time_us,
            segments[0].ledger_id,
            segments[-1].ledger_id,
            len(segments),
            sum(end.bytes for end in ends if end is not None),
        )

    @classmethod
    def of_pages(cls, refs: tuple[PageRef, ...]) -> PageRef:
        first, last = refs[0], refs[-1]
        return cls(
            first.number,
            last.last_number,
            first.base_seq,
            last.next_seq,
            first.first_time_us,
            last.last_time_us,
            first.first_ledger,
            last.last_ledger,
            sum(ref.segments for ref in refs),
            sum(ref.bytes for ref in refs),
            first.level + 1,
        )


@dataclass(frozen=True, slots=True)
class WriterMark:
    """Who holds the log. The token is this handle's alone: it tells its writes from everybody
    else's."""

    token: str
    name: str
    since_us: int

    def claiming(self, meta: LogMeta) -> WriterMark:
        """As it is written down by the claim of a log that looks so."""
        return self


@dataclass(frozen=True, slots=True)
class End:
    """Where the newest sealed segment ends. Survives the truncation of everything."""

    number: int = 0
    ledger_id: int = NO_LEDGER
    last_entry: int = NO_ENTRY
    next_seq: int = 0
    last_time_us: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """Where a log begins: what is before it was truncated, the message at it stays.

    Two marks, each of which only grows, and each of which truncates by itself: a seq, and a message
    id. So a truncation needs no bookie to find the one for the other, and two that are made at once
    need no order."""

    seq: int = 0
    ledger_id: int = NO_LEDGER
    entry_id: int = NO_ENTRY
    batch_idx: int = 0

    @property
    def id_key(self) -> tuple[int, int, int]:
        return self.ledger_id, self.entry_id, self.batch_idx

    def joined(self, other: Point) -> Point:
        """What either truncates."""
        return Point(max(self.seq, other.seq), *max(self.id_key, other.id_key))

    def covers(self, segment: Segment) -> bool:
        """No message of the segment is left; of an unsealed one nobody knows. One without messages
        stays where it is the head. The message at an id stays, so its segment does: wherever the
        list says that it ends, which may be wrong."""
        sealed = segment.sealed
        if sealed is None:
            return False
        by_seq = sealed.next_seq <= self.seq and sealed.base_seq < self.seq
        return by_seq or segment.ledger_id < self.ledger_id

    def covers_page(self, ref: PageRef) -> bool:
        by_seq = ref.next_seq <= self.seq and ref.base_seq < self.seq
        return by_seq or ref.last_ledger < self.ledger_id

    def reaches_into(self, ref: PageRef) -> bool:
        """Perhaps some segments of the page are covered."""
        return ref.base_seq < self.seq or ref.first_ledger <= self.ledger_id

    def cut(self, first_seq: int, ledger_id: int, entry_id: int, count: int) -> int:
        """How many of an entry's messages were truncated: its first ones."""
        by_id = 0
        if (ledger_id, entry_id) < (self.ledger_id, self.entry_id):
            by_id = count
        elif (ledger_id, entry_id) == (self.ledger_id, self.entry_id):
            by_id = self.batch_idx
        return max(0, min(count, max(self.seq - first_seq, by_id)))

    def is_past(self, seq: int, ledger_id: int, entry_id: int, batch_idx: int) -> bool:
        """The message at this place was truncated."""
        return seq < self.seq or (ledger_id, entry_id, batch_idx) < self.id_key


@dataclass(frozen=True, slots=True)
class CopyOf:
    """This log is a copy of another one: from `first_seq` on, each message has the seq that it has
    there. It stops being one when somebody opens it to write messages of their own."""

    uid: str  # of the other log
    name: str  # that it had, for people
    first_seq: int
    own_epoch: int = -1  # of whoever opened it first for messages of its own; -1: nobody has
    # The ids of the producers that wrote there before `first_seq`, as ranges that may hold others,
    # too; None where that is not known.
    forgotten: tuple[tuple[int, int], ...] | None = None

    def may_go_on(self, uid: str) -> bool:
        return self.uid == uid and self.own_epoch < 0

    def fields(self) -> dict[str, Any]:
        fields = flat(self)
        if self.forgotten is None:
            del fields["forgotten"]
        return fields

    @classmethod
    def from_fields(cls, raw: object, where: str) -> CopyOf:
        fields = the_dict({"copy_of": raw}, "copy_of", where)
        forgotten = fields.get("forgotten")
        return cls(
            the_str(fields, "uid", where),
            the_str(fields, "name", where),
            the_int(fields, "first_seq", where),
            the_int(fields, "own_epoch", where),
            None if forgotten is None else ForgottenIds.from_stored(forgotten, where).ranges,
        )


@dataclass(frozen=True, slots=True)
class MovedTo:
    """The metadata of this log is kept elsewhere from now on: the list here may not be written any
    more, and nothing may be concluded from it."""

    place: str  # a URL, without how one gets in there
    was: str  # state of the log, which it has again there
    name: str  # who moved it, for people
    since_us: int


@dataclass(frozen=True, slots=True)
class Doomed:
    """A ledger that left the list and waits for its deletion."""

    ledger_id: int
    since_us: int


@dataclass(frozen=True, slots=True)
class DoomedPage:
    """A page that left the list with all its ledgers, which wait for their deletion."""

    number: int
    level: int
    since_us: int


_SEALED_FIELDS = tuple(f.name for f in dataclasses.fields(Sealed))
_SEGMENT_FIELDS = frozenset({"number", "ledger_id", "epoch", "job", *_SEALED_FIELDS})


def segment_fields(segment: Segment) -> dict[str, Any]:
    fields = {
        **segment.extra,
        "number": segment.number,
        "ledger_id": segment.ledger_id,
        "epoch": segment.epoch,
    }
    if segment.sealed is not None:
        fields.update(flat(segment.sealed))
    if segment.is_job:
        fields["job"] = True
    return fields


def segments_from(raw: list[Any], where: str) -> tuple[Segment, ...]:
    segments = tuple(_segment(each, where) for each in raw)
    for earlier, later in itertools.pairwise(segments):
        if later.number <= earlier.number or later.ledger_id <= earlier.ledger_id:
            raise FormatError(f"{where}: segment {later.number} does not follow {earlier.number}")
        if earlier.sealed is None and later.sealed is not None:
            raise FormatError(f"{where}: segment {later.number} is sealed before {earlier.number}")
    return segments


def refs_from(raw: list[Any], where: str) -> tuple[PageRef, ...]:
    refs = tuple(the_value(PageRef, each, where) for each in raw)
    for earlier, later in itertools.pairwise(refs):
        if later.number <= earlier.last_number or later.first_ledger <= earlier.last_ledger:
            raise FormatError(f"{where}: page {later.number} does not follow {earlier.number}")
    return refs


def _segment(raw: object, where: str) -> Segment:
    if not isinstance(raw, dict):
        raise FormatError(f"{where}: a segment is an object")
    sealed = None
    if "last_entry" in raw:
        sealed = the_value(Sealed, {name: raw.get(name) for name in _SEALED_FIELDS}, where)
    if "job" in raw and (raw["job"] is not True or sealed is None):
        raise FormatError(f"{where}: a segment of a job says so, and is sealed")
    return Segment(
        the_int(raw, "number", where),
        the_int(raw, "ledger_id", where),
        the_int(raw, "epoch", where),
        sealed,
        {k: v for k, v in raw.items() if k not in _SEGMENT_FIELDS},
        "job" in raw,
    )
