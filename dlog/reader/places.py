"""Finding places in a log: by id, position, seq or time, at the head, at the tail. Procedures
without IO.

A `Place` is where reading begins: an entry of a segment and an index in it, with the seq that
stands there. Searches halve: over segments by what the list says, over entries by their headers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from dlog.clock import datetime_us, us_datetime
from dlog.effects import LookAtLedger, Procedure, ReadRun
from dlog.errors import ConfigError, NotFound, Truncated, Unavailable
from dlog.ids import MessageId, Position
from dlog.meta.listed import Segment
from dlog.reader.segments import Entered, SegmentView, ends_short, header_of, last_entry_of
from dlog.wire.batch import Header, decode, decode_header
from dlog.writer.segments import SEAM_ENTRY

Start = str | int | MessageId | Position | datetime
EARLIEST = "earliest"
LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Place:
    """Message `idx` of entry `entry_id`, which has seq `seq`. `number` None: before a log's first
    segment.

    `seq` None: not known, take what stands there (after an entry that could not be decoded)."""

    number: int | None
    entry_id: int = SEAM_ENTRY
    idx: int = 0
    seq: int | None = 0


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log at one moment: the last readable entry, and the seq that comes next."""

    entered: Entered | None
    last_entry: int
    next_seq: int

    def is_before(self, place: Place) -> bool:
        if self.entered is None or place.number is None:
            return False
        return (place.number, place.entry_id) > (self.entered.segment.number, self.last_entry)


@dataclass(frozen=True, slots=True)
class LastMessage:
    """Of those that are left in a log. `bytes`: what a message takes in its entry."""

    id: MessageId
    time_us: int
    bytes: float


def check_start(start: object, what: str = "start") -> Start:
    if isinstance(start, (MessageId, Position)):
        return start
    if isinstance(start, str) and start in (EARLIEST, LATEST):
        return start
    if type(start) is int:
        if start < 0:
            raise ConfigError(f"{what}: a seq is a number from 0, not {start}")
        return start
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ConfigError(f"{what}: a time knows its time zone (as datetime.now(UTC) does)")
        return start
    raise ConfigError(
        f"{what} is 'earliest', 'latest', a MessageId, a Position, a seq or an aware datetime, "
        f"not {start!r}"
    )


def find_tail(view: SegmentView) -> Procedure[Tail]:
    """Behind every message that was visible before the question. The view must be fresh."""
    entered = yield from view.last_entered()
    if entered is None:
        return Tail(None, -1, view.meta.end.next_seq)
    sealed = entered.segment.sealed
    if sealed is not None:
        return Tail(entered, sealed.last_entry, sealed.next_seq)
    last_entry = yield from last_entry_of(view, entered)
    if last_entry < SEAM_ENTRY:
        return Tail(entered, last_entry, entered.base_seq)
    header = yield from header_of(entered.segment.ledger_id, last_entry)
    return Tail(entered, last_entry, entered.base_seq + header.first_seq + header.count)


def find_last_id(view: SegmentView) -> Procedure[MessageId | None]:
    """The last message of the log, None when none is left in it; `Corrupt` where a segment ends
    before what it is listed with. The view must be fresh."""
    last = yield from find_last_message(view, checks_ends=True)
    return None if last is None else last.id


def find_last_message(
    view: SegmentView, *, checks_ends: bool = False
) -> Procedure[LastMessage | None]:
    """None when none is left in the log. The view must be fresh."""
    entered = yield from view.last_entered()
    while entered is not None and not view.meta.truncate_before.covers(entered.segment):
        ledger_id = entered.segment.ledger_id
        last_entry = yield from last_entry_of(view, entered)
        for entry_id in range(last_entry, SEAM_ENTRY - 1, -1):
            (raw,) = yield ReadRun(ledger_id, entry_id, entry_id, 1)
            header = decode_header(raw, where=f"ledger {ledger_id} entry {entry_id}")
            if checks_ends and entry_id == last_entry:
                _check_end(view, entered, header)
            if header.count > 0:
                last = MessageId(ledger_id, entry_id, header.count - 1)
                seq = entered.base_seq + header.first_seq + header.count - 1
                if view.meta.truncate_before.is_past(seq, *last):
                    return None
                time_us = max(header.last_timestamp_us, entered.segment.not_before_us)
                return LastMessage(last, time_us, len(raw) / header.count)
        segment = yield from view.before(entered.segment.number)
        if segment is not None and segment.sealed is not None:
            # Any number of segments without a message may stand between.
            segment = yield from sealed_with(view, segment.sealed.next_seq - 1)
        entered = None if segment is None else (yield from view.enter(segment))
    return None


def locate(view: SegmentView, start: Start) -> Procedure[Place]:
    """Where to begin; `Truncated` when that is gone. The view must be fresh."""
    if start == EARLIEST:
        return (yield from find_head(view))
    if start == LATEST:
        return _behind((yield from find_tail(view)))
    if isinstance(start, Position):
        return (yield from _by_position(view, start))
    if isinstance(start, MessageId):
        return (yield from _by_id(view, start))
    if isinstance(start, datetime):
        return (yield from _by_time(view, datetime_us(start)))
    assert isinstance(start, int)
    return (yield from _by_seq(view, start))


def find_head(view: SegmentView) -> Procedure[Place]:
    """The first message that is left, or where the next one will be. Ledgers are read only if the
    truncation point lies inside of one."""
    point = view.meta.truncate_before
    first = yield from view.first()
    if first is None:
        return Place(None, seq=view.meta.end.next_seq)
    # Everything before an unsealed one is sealed and gone, or never was.
    base_seq = view.meta.end.next_seq if first.sealed is None else first.sealed.base_seq
    head = Place(first.number, seq=base_seq)
    if point.seq > base_seq:
        head = yield from _at_seq(view, point.seq)
    if point.ledger_id >= first.ledger_id:
        by_id = yield from _at_or_after_id(view, MessageId(*point.id_key))
        head = max(head, by_id, key=_order)
    return head


def find_head_seq(view: SegmentView) -> Procedure[int]:
    """The seq of the head. A ledger is read only if an id truncates inside of it."""
    point = view.meta.truncate_before
    first = yield from view.first()
    if first is None:
        return view.meta.end.next_seq
    base_seq = view.meta.end.next_seq if first.sealed is None else first.sealed.base_seq
    seq = max(base_seq, point.seq)
    if point.ledger_id >= first.ledger_id:
        by_id = yield from _at_or_after_id(view, MessageId(*point.id_key))
        assert by_id.seq is not None
        seq = max(seq, by_id.seq)
    return seq


def _order(place: Place) -> tuple[int, int, int]:
    return -1 if place.number is None else place.number, place.entry_id, place.idx


def _behind(tail: Tail) -> Place:
    if tail.entered is None:
        return Place(None, seq=tail.next_seq)
    return Place(tail.entered.segment.number, max(tail.last_entry, 0) + 1, 0, tail.next_seq)


def _truncated(view: SegmentView, what: str, ledger_id: int | None = None) -> Procedure[Truncated]:
    head_seq = yield from find_head_seq(view)
    return Truncated(
        f"{what} of log {view.name!r} was truncated: its head is at seq {head_seq}",
        log=view.name,
        new_head=head_seq,
        ledger_id=ledger_id,
    )


def _by_id(view: SegmentView, wanted: MessageId, *, was_read: bool = False) -> Procedure[Place]:
    """`was_read`: somebody was given this message. If it cannot be seen in an open segment, it will
    be again."""
    ledger_id, entry_id, idx = wanted
    point = view.meta.truncate_before
    segment = yield from view.find(
        lambda s: s.ledger_id >= ledger_id, lambda p: p.last_ledger >= ledger_id
    )
    if segment is None or segment.ledger_id != ledger_id:
        raise (yield from _not_there(view, wanted))
    if wanted < point.id_key or point.covers(segment):
        raise (yield from _truncated(view, f"the message {wanted}", ledger_id=ledger_id))
    entered = yield from view.enter(segment)
    last_entry = -1 if entered is None else (yield from last_entry_of(view, entered))
    if entered is None or not SEAM_ENTRY <= entry_id <= last_entry:
        if entered is not None and entry_id > last_entry >= SEAM_ENTRY:
            _check_end(view, entered, (yield from header_of(ledger_id, last_entry)))
        if was_read and (yield from _may_come_back(segment, entry_id)):
            raise _not_yet(view, wanted)
        raise _never_was(view, wanted)
    header = yield from header_of(ledger_id, entry_id)
    if not 0 <= idx < header.count:
        raise _never_was(view, wanted)
    seq = entered.base_seq + header.first_seq + idx
    if seq < point.seq:
        raise (yield from _truncated(view, f"the message {wanted}", ledger_id=ledger_id))
    return Place(segment.number, entry_id, idx, seq)


def _at_or_after_id(view: SegmentView, wanted: MessageId) -> Procedure[Place]:
    """The first message with this id or above, or where it will be. Not of a log without segments
    there."""
    ledger_id, entry_id, idx = wanted
    segment = yield from view.find(
        lambda s: s.ledger_id >= ledger_id, lambda p: p.last_ledger >= ledger_id
    )
    entered = None if segment is None else (yield from view.enter(segment))
    if entered is None:
        return _behind((yield from find_tail(view)))
    number = entered.segment.number
    if entered.segment.ledger_id > ledger_id:
        return Place(number, seq=entered.base_seq)
    last_entry = yield from last_entry_of(view, entered)
    if last_entry < SEAM_ENTRY or entry_id < SEAM_ENTRY:
        return Place(number, seq=entered.base_seq)
    header = yield from header_of(ledger_id, min(entry_id, last_entry))
    first_seq = entered.base_seq + header.first_seq
    if entry_id > last_entry:
        _check_end(view, entered, header)
        return Place(number, last_entry + 1, 0, first_seq + header.count)
    if idx >= header.count:
        return Place(number, entry_id + 1, 0, first_seq + header.count)
    return Place(number, entry_id, max(idx, 0), first_seq + max(idx, 0))


def _not_there(view: SegmentView, wanted: MessageId) -> Procedure[NotFound | Truncated]:
    first = yield from view.first()
    oldest = view.meta.ledger_floor + 1 if first is None else first.ledger_id
    head_seq = yield from find_head_seq(view)
    if wanted.ledger_id >= oldest or head_seq == 0:  # from seq 0 on, nothing was ever truncated
        return _never_was(view, wanted)
    return (yield from _truncated(view, f"the message {wanted}", ledger_id=wanted.ledger_id))


def _never_was(view: SegmentView, wanted: MessageId) -> NotFound:
    return NotFound(
        f"the log {view.name!r} has no message {wanted}",
        log=view.name,
        ledger_id=wanted.ledger_id,
        entry_id=wanted.entry_id,
    )


def _may_come_back(segment: Segment, entry_id: int) -> Procedure[bool]:
    """How far an open ledger may be read can be forgotten: all of its bookies, or its machine, lost
    power. Its entries are there; who opens the log for writing finds them."""
    if segment.sealed is not None or entry_id < SEAM_ENTRY:
        return False
    closed = (yield LookAtLedger(segment.ledger_id)).closed
    return closed is None or entry_id <= closed.last_entry


def _not_yet(view: SegmentView, wanted: MessageId) -> Unavailable:
    return Unavailable(
        f"the message {wanted} of log {view.name!r} cannot be read now: its ledger is open, and "
        "does not say that it may be; a writer that opens the log makes it so",
        log=view.name,
        ledger_id=wanted.ledger_id,
        entry_id=wanted.entry_id,
    )


def check_position(view: SegmentView, position: Position) -> None:
    if position.log_uid != view.meta.uid:
        raise ConfigError(f"this position is of another log than {view.name!r}: {position}")


def _by_position(view: SegmentView, position: Position) -> Procedure[Place]:
    check_position(view, position)
    if position.after is None:
        return (yield from _by_seq(view, position.next_seq))
    try:
        place = yield from _by_id(view, position.after, was_read=True)
    except Truncated:  # but perhaps not what follows it
        return (yield from _by_seq(view, position.next_seq))
    assert place.seq is not None
    if place.seq + 1 != position.next_seq:
        raise ConfigError(f"this position does not agree with log {view.name!r}: {position}")
    return Place(place.number, place.entry_id, place.idx + 1, place.seq + 1)


def _by_seq(view: SegmentView, seq: int) -> Procedure[Place]:
    if seq < (yield from find_head_seq(view)):
        raise (yield from _truncated(view, f"seq {seq}"))
    return (yield from _at_seq(view, seq))


def _at_seq(view: SegmentView, seq: int) -> Procedure[Place]:
    """Behind the tail for one that is not there yet."""
    sealed = yield from sealed_with(view, seq)
    if sealed is None:
        tail = yield from find_tail(view)
        if seq >= tail.next_seq:
            return _behind(tail)
    entered = yield from segment_at(view, seq)
    assert entered is not None
    return (yield from place_in(view, entered, seq))


def segment_at(view: SegmentView, seq: int) -> Procedure[Entered | None]:
    """The segment where a seq stands that the log has."""
    segment = yield from sealed_with(view, seq)
    unsealed = () if segment is not None else view.meta.unsealed
    entered = None if segment is None else (yield from view.enter(segment))
    for candidate in unsealed:  # the last one that begins at or before the seq
        open_one = yield from view.enter(candidate)
        if open_one is not None and open_one.base_seq <= seq:
            entered = open_one
    return entered


def sealed_with(view: SegmentView, seq: int) -> Procedure[Segment | None]:
    """The first sealed segment that ends behind a seq, which holds it unless that was truncated."""
    return (
        yield from view.find(
            lambda s: s.sealed is not None and s.sealed.next_seq > seq, lambda p: p.next_seq > seq
        )
    )


def place_in(view: SegmentView, entered: Entered, seq: int) -> Procedure[Place]:
    """The place of a seq that this segment holds."""
    relative = seq - entered.base_seq
    entry_id, header = yield from _first_entry(
        view, entered, lambda h: h.first_seq + h.count > relative
    )
    assert header is not None
    return Place(entered.segment.number, entry_id, relative - header.first_seq, seq)


def _by_time(view: SegmentView, time_us: int) -> Procedure[Place]:
    """The first message written at or after a time; the tail if there is none. Where that is the
    head and nothing before it is left to look at, nobody knows when it was written."""
    place = yield from find_time(view, time_us)
    head_seq = yield from find_head_seq(view)
    assert place.seq is not None
    if head_seq == 0 or place.seq > head_seq:
        return place
    if place.seq == head_seq:
        oldest = yield from view.find(lambda s: True, lambda p: True)
        end = view.meta.end
        sealed = None if oldest is None else oldest.sealed
        base_seq = end.next_seq if sealed is None else sealed.base_seq
        tail = yield from find_tail(view)
        is_behind_all = tail.next_seq <= head_seq and time_us > end.last_time_us
        if base_seq < head_seq or is_behind_all:
            return place
    written = us_datetime(time_us).isoformat()
    raise (yield from _truncated(view, f"what was written from {written} on, or some of it,"))


def find_time(view: SegmentView, time_us: int) -> Procedure[Place]:
    """The first message written at or after a time, among all that stand in the list."""
    tail = yield from find_tail(view)
    if tail.entered is None:
        return _behind(tail)
    segment = yield from view.find(
        lambda s: s.sealed is not None and s.sealed.last_time_us >= time_us,
        lambda p: p.last_time_us >= time_us,
    )
    if segment is None and view.meta.unsealed:
        segment = view.meta.unsealed[0]
    while segment is not None:
        entered = yield from view.enter(segment)
        if entered is None:
            break
        place = yield from _in_segment_by_time(view, entered, time_us)
        if place is not None:
            return place
        segment = yield from view.after(segment.number)
    return _behind(tail)


def _in_segment_by_time(
    view: SegmentView, entered: Entered, time_us: int
) -> Procedure[Place | None]:
    least_us = entered.segment.not_before_us
    entry_id, header = yield from _first_entry(
        view, entered, lambda h: max(h.last_timestamp_us, least_us) >= time_us
    )
    last_entry = yield from last_entry_of(view, entered)
    while header is not None and header.count == 0 and entry_id < last_entry:  # a control entry
        entry_id += 1
        header = yield from header_of(entered.segment.ledger_id, entry_id)
    if header is None or header.count == 0:
        if header is not None:
            _check_end(view, entered, header)
        return None
    idx = yield from _index_by_time(entered, entry_id, time_us)
    seq = entered.base_seq + header.first_seq + idx
    return Place(entered.segment.number, entry_id, idx, seq)


def _first_entry(
    view: SegmentView, entered: Entered, wanted: Callable[[Header], bool]
) -> Procedure[tuple[int, Header | None]]:
    """The first readable entry whose header is wanted, by halving: once true, `wanted` stays true.
    None when there is none."""
    ledger_id = entered.segment.ledger_id
    low, high = SEAM_ENTRY, (yield from last_entry_of(view, entered)) + 1
    found: Header | None = None
    while low < high:
        middle = (low + high) // 2
        header = yield from header_of(ledger_id, middle)
        if wanted(header):
            high, found = middle, header
        else:
            low = middle + 1
            if found is None and low == high:
                _check_end(view, entered, header)
    return low, found


def _check_end(view: SegmentView, entered: Entered, last: Header) -> None:
    """`last`: of the last entry that the list knows of."""
    sealed = entered.segment.sealed
    next_seq = entered.base_seq + last.next_seq
    if sealed is not None and next_seq < sealed.next_seq:
        raise ends_short(view, entered.segment, next_seq)


def _index_by_time(entered: Entered, entry_id: int, time_us: int) -> Procedure[int]:
    ledger_id = entered.segment.ledger_id
    raw = yield ReadRun(ledger_id, entry_id, entry_id, 1)
    entry = decode(raw[0], where=f"ledger {ledger_id} entry {entry_id}")
    entry.not_before(entered.segment.not_before_us)
    return next(i for i, at in enumerate(entry.timestamps_us()) if at >= time_us)
