"""Planning ranges: what stands in a log from one place to another, in parts of about the same size.
Procedures without IO.

`survey` fixes what is wanted, by the list and the tail of this moment: a `Span` for each ledger,
with its exact messages. `cut` parts the spans. The list knows how large a sealed ledger is, but not
where its bytes stand: entries differ a thousandfold. So a ledger that is too large for one range is
halved, by the header of the entry in its middle, which knows its seq and shows how large messages
are there; and the halves again, until each is a small share of a range. Then neighbours are put
together. Only what has to be cut is read from, a few entries of each range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dlog.effects import LookAtLedger, Procedure, ReadRun, Together
from dlog.errors import Broken, ConfigError, Truncated
from dlog.limits import (
    RANGE_BYTES_DEFAULT,
    RANGE_BYTES_MIN,
    RANGE_LOOKS_AT_ONCE,
    RANGE_LOOKS_PER_TARGET,
    RANGES_MAX,
)
from dlog.meta.listed import Segment
from dlog.options import OnTruncated
from dlog.reader.places import LATEST, Place, Start, Tail, find_head, find_tail, locate, place_in
from dlog.reader.ranges import LedgerPart
from dlog.reader.segments import Entered, SegmentView, by_the_newest_list, header_of, misplaced
from dlog.wire.batch import decode_header
from dlog.writer.segments import SEAM_ENTRY

_FIRST_LOOKS = 8  # into an open ledger, whose size nobody knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large ranges shall be."""

    target_bytes: int = RANGE_BYTES_DEFAULT
    min_ranges: int = 1
    max_messages: int | None = None

    def __post_init__(self) -> None:
        _from("target_bytes", self.target_bytes, RANGE_BYTES_MIN)
        _from("min_ranges", self.min_ranges, 1)
        if self.max_messages is not None:
            _from("max_messages", self.max_messages, 1)

    def target_of(self, bytes_in_all: int) -> int:
        """Bytes of a range, so that there will be enough of them."""
        target = max(1, min(self.target_bytes, -(-bytes_in_all // self.min_ranges)))
        if bytes_in_all // target > RANGES_MAX:
            raise ConfigError(
                f"{bytes_in_all} bytes in ranges of {target} are more than {RANGES_MAX} ranges"
            )
        return target


def _from(name: str, value: object, low: int) -> None:
    if type(value) is not int or value < low:
        raise ConfigError(f"{name} is a whole number from {low}, not {value!r}")


@dataclass(frozen=True, slots=True)
class Seen:
    """An entry that was looked at."""

    bytes: int
    messages: int


@dataclass(frozen=True, slots=True)
class Span:
    """Messages of one ledger, from message `first_idx` of an entry to `next_seq`, exclusive."""

    segment: int
    ledger_id: int
    base_seq: int
    first_entry: int
    first_idx: int
    first_seq: int
    last_entry: int
    next_seq: int
    bytes: int
    is_exact: bool  # the bytes are; else about so many
    at_first: Seen | None = None  # its first entry, where that was looked at
    behind: Seen | None = None  # ... and the one behind its last

    @property
    def messages(self) -> int:
        return self.next_seq - self.first_seq

    @property
    def entries(self) -> int:
        return self.last_entry - self.first_entry + 1


# --- what is wanted


def survey(
    view: SegmentView, start: Start, end: Start, on_truncated: OnTruncated
) -> Procedure[list[Span]]:
    """All messages from `start` to `end`, at most to the tail of this moment."""
    yield from view.refresh()
    return (yield from by_the_newest_list(view, lambda: _survey(view, start, end, on_truncated)))


def _survey(
    view: SegmentView, start: Start, end: Start, on_truncated: OnTruncated
) -> Procedure[list[Span]]:
    tail = yield from find_tail(view)
    end_seq = tail.next_seq
    if type(end) is int:
        end_seq = min(end, end_seq)
    elif end != LATEST:
        end_seq = min((yield from _place(view, end, on_truncated)).seq or 0, end_seq)
    place = yield from _place(view, start, on_truncated)
    spans: list[Span] = []
    segment = yield from _begin(view, place)
    while segment is not None and tail.entered is not None:
        span = yield from _span(view, segment, place, tail)
        if spans and span.first_seq != spans[-1].next_seq:
            raise misplaced(segment.ledger_id, SEAM_ENTRY, span.first_seq, spans[-1].next_seq)
        if span.next_seq > end_seq > span.first_seq:
            at = yield from place_in(view, Entered(segment, span.base_seq), end_seq - 1)
            span = replace(
                _share(span, end_seq - span.first_seq), last_entry=at.entry_id, next_seq=end_seq
            )
        if span.first_seq < min(span.next_seq, end_seq):
            spans.append(span)
        if span.next_seq >= end_seq or segment.number >= tail.entered.segment.number:
            break
        segment = yield from view.after(segment.number)
    return spans


def _place(view: SegmentView, at: Start, on_truncated: OnTruncated) -> Procedure[Place]:
    try:
        return (yield from locate(view, at))
    except Truncated:
        if on_truncated != "jump":
            raise
        return (yield from find_head(view))


def _begin(view: SegmentView, place: Place) -> Procedure[Segment | None]:
    """The segment of a place. Before all of them, the first one that was not truncated: the list
    may keep others, for the numbers of producers."""
    if place.number is None:
        return (yield from view.first())
    wanted = place.number
    return (yield from view.find(lambda s: s.number >= wanted, lambda p: p.last_number >= wanted))


def _span(view: SegmentView, segment: Segment, place: Place, tail: Tail) -> Procedure[Span]:
    """What the segment has from the place on, up to the tail."""
    ledger_id, sealed = segment.ledger_id, segment.sealed
    is_exact = True
    assert tail.entered is not None
    if sealed is not None:
        base_seq, last_entry, next_seq = sealed.base_seq, sealed.last_entry, sealed.next_seq
        size = sealed.bytes
    elif segment.number == tail.entered.segment.number:
        base_seq, last_entry, next_seq = tail.entered.base_seq, tail.last_entry, tail.next_seq
        size, is_exact = (yield from _size(ledger_id, last_entry)), False
    else:  # closed, since the log goes on behind it, and not sealed in the list yet
        entered = yield from view.enter(segment)
        info = yield LookAtLedger(ledger_id)
        if entered is None or info.closed is None:
            raise Broken(f"the log goes on behind ledger {ledger_id}, which has no end")
        base_seq, last_entry, size = entered.base_seq, info.closed.last_entry, info.closed.bytes
        header = yield from header_of(ledger_id, last_entry)
        next_seq = base_seq + header.first_seq + header.count
    whole = Span(
        segment.number,
        ledger_id,
        base_seq,
        SEAM_ENTRY,
        0,
        base_seq,
        last_entry,
        next_seq,
        size,
        is_exact,
    )
    if segment.number != place.number or place.seq is None or place.seq <= base_seq:
        return whole
    return replace(
        _share(whole, next_seq - place.seq),
        first_entry=place.entry_id,
        first_idx=place.idx,
        first_seq=place.seq,
    )


def _share(span: Span, messages: int) -> Span:
    """About so large are so many of its messages."""
    size = span.bytes * max(messages, 0) // max(span.messages, 1)
    return replace(span, bytes=size, is_exact=False)


def _size(ledger_id: int, last_entry: int) -> Procedure[int]:
    """About, of an open ledger: by a few of its entries."""
    if last_entry < SEAM_ENTRY:
        return 0
    entries = last_entry - SEAM_ENTRY + 1
    step = max(1, entries // _FIRST_LOOKS)
    # From the end, where it was just read from, so that the ledger is open for those beside it.
    yield from header_of(ledger_id, last_entry)
    looks = [_raw(ledger_id, each) for each in range(last_entry, SEAM_ENTRY - 1, -step)]
    seen = yield Together(tuple(looks))
    return entries * sum(len(raw) for _, raw in seen) // len(seen)


# --- parts

Parts = tuple[LedgerPart, ...]


def cut(spans: list[Span], target_bytes: int, max_messages: int | None) -> Procedure[list[Parts]]:
    """In order, each part about `target_bytes`, and none with more messages than it may have."""
    grain = max(1, target_bytes // RANGE_LOOKS_PER_TARGET)
    pieces: list[Span] = []
    for span in spans:
        if 2 * span.bytes <= target_bytes and not _has_more(span, max_messages):
            pieces.append(span)  # may be put beside others, and is not looked into
        else:
            pieces += yield from _halved(span, grain, max_messages)
    return _together(pieces, target_bytes, max_messages)


def _has_more(span: Span, max_messages: int | None) -> bool:
    return max_messages is not None and span.messages > max_messages


def _halved(span: Span, grain: int, max_messages: int | None) -> Procedure[list[Span]]:
    """Until each is small, or a single entry. The first look is alone, and opens the ledger for
    those that come side by side."""
    # So many entries at most, whatever is guessed of them: what is large has to be met.
    entries_max = span.entries * grain // max(span.bytes, 1)

    def is_large(each: Span) -> bool:
        if each.entries == 1:
            return False
        return each.entries > entries_max or each.bytes > grain or _has_more(each, max_messages)

    ready = [] if span.entries > 1 else [span]
    large = [span] if span.entries > 1 else []
    while large:
        halves: list[Span] = []
        for at in range(0, len(large), RANGE_LOOKS_AT_ONCE):
            some = large[at : at + RANGE_LOOKS_AT_ONCE]
            seen = yield Together(tuple(_raw(each.ledger_id, _middle(each)) for each in some))
            for each, (entry_id, raw) in zip(some, seen, strict=True):
                halves += _halves(each, entry_id, raw)
        ready += [each for each in halves if not is_large(each)]
        large = [each for each in halves if is_large(each)]
    ready.sort(key=lambda each: each.first_entry)
    return _scaled(ready, span.bytes) if span.is_exact else ready


def _middle(span: Span) -> int:
    return (span.first_entry + span.last_entry + 1) // 2


def _raw(ledger_id: int, entry_id: int) -> Procedure[tuple[int, memoryview]]:
    found = yield ReadRun(ledger_id, entry_id, entry_id, 1)
    return entry_id, found[0]


def _halves(span: Span, middle: int, raw: memoryview) -> tuple[Span, Span]:
    header = decode_header(raw, where=f"ledger {span.ledger_id} entry {middle}")
    seq = span.base_seq + header.first_seq
    if not span.first_seq <= seq <= span.next_seq:
        wanted = span.first_seq if seq < span.first_seq else span.next_seq
        raise misplaced(span.ledger_id, middle, seq, wanted)
    seen = Seen(len(raw), header.count)
    first = replace(span, last_entry=middle - 1, next_seq=seq, behind=seen)
    second = replace(span, first_entry=middle, first_idx=0, first_seq=seq, at_first=seen)
    return _guessed(first), _guessed(second)


def _guessed(span: Span) -> Span:
    """With its bytes, by the entries that were seen at its ends. Where many small ones become few
    large ones, messages as large as these would be too much; where entries of one message become
    entries of thousands, entries as large as those."""
    ends = [each for each in (span.at_first, span.behind) if each is not None]
    by_entries = span.entries * sum(each.bytes for each in ends) / len(ends)
    sizes = [each.bytes / each.messages for each in ends if each.messages > 0]
    by_messages = span.messages * sum(sizes) / len(sizes) if sizes else by_entries
    return replace(span, bytes=round(min(by_entries, by_messages)) + span.entries)


def _scaled(pieces: list[Span], in_all: int) -> list[Span]:
    """So that they add up."""
    guessed = sum(piece.bytes for piece in pieces)
    found: list[Span] = []
    before = done = 0
    for piece in pieces:
        before += piece.bytes
        upto = in_all * before // max(guessed, 1)
        found.append(replace(piece, bytes=upto - done))
        done = upto
    return found


def _together(pieces: list[Span], target_bytes: int, max_messages: int | None) -> list[Parts]:
    """Neighbours in as few ranges as will do, each as large as the others."""
    in_all = sum(piece.bytes for piece in pieces)
    ranges = max(1, -(-in_all // target_bytes))
    found: list[list[Span]] = []
    before_bytes, current, left = 0, -1, 0
    for piece in pieces:
        # By where its middle stands: so the sizes even out, and no range is left for a rest.
        belongs = (2 * before_bytes + piece.bytes) * ranges // (2 * max(in_all, 1))
        before_bytes += piece.bytes
        for chunk in _chunks(piece, max_messages):
            if belongs != current or (max_messages is not None and chunk.messages > left):
                found.append([])
                current, left = belongs, max_messages or 0
            found[-1].append(chunk)
            left -= chunk.messages
    return [_parts(each) for each in found]


def _chunks(piece: Span, max_messages: int | None) -> list[Span]:
    """A single entry may have more messages than a range."""
    if piece.messages == 0:  # control entries
        return []
    if max_messages is None or piece.messages <= max_messages:
        return [piece]
    found = []
    for first in range(0, piece.messages, max_messages):
        messages = min(max_messages, piece.messages - first)
        seq = piece.first_seq + first
        found.append(
            replace(
                _share(piece, messages),
                first_idx=piece.first_idx + first,
                first_seq=seq,
                next_seq=seq + messages,
            )
        )
    return found


def _parts(pieces: list[Span]) -> Parts:
    """Those of one ledger as one."""
    found: list[LedgerPart] = []
    for piece in pieces:
        if found and found[-1].ledger_id == piece.ledger_id:
            last = found.pop()
            messages, size = last.messages + piece.messages, last.bytes + piece.bytes
            found.append(replace(last, last_entry=piece.last_entry, messages=messages, bytes=size))
            continue
        found.append(
            LedgerPart(
                piece.segment,
                piece.ledger_id,
                piece.first_entry,
                piece.first_idx,
                piece.last_entry,
                piece.first_seq,
                piece.messages,
                piece.bytes,
            )
        )
    return tuple(found)
