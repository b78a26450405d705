"""How far a place is behind the tail: in messages, exactly; in bytes, about; in seconds, by the
time of the oldest message that is still to come. Procedures without IO."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlog.effects import Procedure, ReadRun
from dlog.errors import Truncated
from dlog.meta.listed import PageRef, Segment
from dlog.reader.places import Tail, find_tail, locate
from dlog.reader.segments import SegmentView, header_of
from dlog.wire.batch import decode_header


@dataclass(frozen=True, slots=True)
class Lag:
    """What could be read by now and was not handed out."""

    messages: int
    bytes: int
    """Of their entries. Within a segment by the share of messages; in the one that is written, by
    the usual size of messages."""
    seconds: float
    """How long the oldest of these messages has been in the log, by this machine's clock."""


def lag_of(
    view: SegmentView, next_seq: int, now_us: int, message_bytes: float | None = None
) -> Procedure[Lag]:
    """Of a place before `next_seq`. `message_bytes`: what a message usually takes, if known."""
    yield from view.refresh()
    tail = yield from find_tail(view)
    try:
        place = yield from locate(view, next_seq)
    except Truncated:
        place = yield from locate(view, "earliest")
    seq = next_seq if place.seq is None else place.seq
    if seq >= tail.next_seq:
        return Lag(0, 0, 0.0)
    size = yield from _bytes_between(view, seq, tail, message_bytes)
    seconds = 0.0
    if place.number is not None:
        number = place.number
        segment = yield from view.find(
            lambda s: s.number == number, lambda p: p.number <= number <= p.last_number
        )
        if segment is not None:
            header = yield from header_of(segment.ledger_id, place.entry_id)
            seconds = max(now_us - header.base_timestamp_us, 0) / 1e6
    return Lag(tail.next_seq - seq, size, seconds)


def _bytes_between(
    view: SegmentView, seq: int, tail: Tail, message_bytes: float | None
) -> Procedure[int]:
    known_bytes, known_end = 0.0, 0
    of_sealed: tuple[int, int] | None = None  # bytes and messages of the newest one
    below = yield from view.in_pages(lambda: _parts(view, view.meta.pages, seq))
    for part in (*below, *view.meta.segments):
        end = part if isinstance(part, PageRef) else part.sealed
        if end is None:
            continue
        known_end = max(known_end, end.next_seq)
        count = end.next_seq - end.base_seq
        if count > 0:
            of_sealed = end.bytes, count
            missing = min(count, max(0, end.next_seq - seq))
            known_bytes += end.bytes * missing / count
    open_messages = max(0, tail.next_seq - max(seq, known_end))
    if open_messages and message_bytes is None:
        message_bytes = yield from _usual_bytes(tail, of_sealed)
    return round(known_bytes + open_messages * (message_bytes or 0.0))


def _usual_bytes(tail: Tail, of_sealed: tuple[int, int] | None) -> Procedure[float]:
    """Of a message: as in the newest segment that is whole, else as in the last entry."""
    if of_sealed is not None:
        return of_sealed[0] / of_sealed[1]
    assert tail.entered is not None
    ledger_id = tail.entered.segment.ledger_id
    (raw,) = yield ReadRun(ledger_id, tail.last_entry, tail.last_entry, 1)
    header = decode_header(raw, where=f"ledger {ledger_id} entry {tail.last_entry}")
    return len(raw) / max(header.count, 1)


def _parts(
    view: SegmentView, refs: Iterable[PageRef], seq: int
) -> Procedure[list[PageRef | Segment]]:
    """Pages that lie wholly behind `seq`, and what is in the one that it is in."""
    parts: list[PageRef | Segment] = []
    for ref in refs:
        if ref.next_seq <= seq:
            continue
        if ref.base_seq >= seq:
            parts.append(ref)
        elif ref.level > 0:
            refs_below = yield from view.refs_below(ref)
            parts += yield from _parts(view, refs_below, seq)
        else:
            parts += yield from view.segments_below(ref)
    return parts
