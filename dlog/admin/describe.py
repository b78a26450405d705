"""Looking at a log: which segments it has, how much they hold, where it ends. Procedures without
IO."""

from __future__ import annotations

import dataclasses

from dlog.admin.summary import (
    HoldSummary,
    LogDescription,
    LogSummary,
    SegmentSummary,
    WriterSummary,
)
from dlog.effects import LastReadable, LookAtLedger, Procedure
from dlog.errors import NotFound
from dlog.ids import NO_LEDGER, MessageId
from dlog.meta.holds import Hold
from dlog.meta.layout import Layout
from dlog.meta.listed import Point, Segment
from dlog.meta.stream_holds import read_all_holds
from dlog.reader.places import LastMessage, find_head_seq, find_last_message, find_tail
from dlog.reader.segments import SegmentView, by_the_newest_list, header_of


def describe(view: SegmentView, layout: Layout) -> Procedure[LogDescription]:
    yield from view.refresh()
    holds = yield from read_all_holds(layout, view.name, view.meta)
    return (yield from by_the_newest_list(view, lambda: _describe(view, holds)))


def _describe(view: SegmentView, holds: tuple[Hold, ...]) -> Procedure[LogDescription]:
    meta = view.meta
    segments = yield from segments_of(view)
    tail = yield from find_tail(view)
    last: LastMessage | None = yield from find_last_message(view, checks_ends=True)
    head_seq = yield from find_head_seq(view)
    writer = meta.writer
    return LogDescription(
        name=view.name,
        uid=meta.uid,
        state=meta.state.value,
        epoch=meta.epoch,
        writer=None
        if writer is None
        else WriterSummary(writer.name, writer.token, writer.since_us),
        hand_over=meta.hand_over,
        options=dataclasses.asdict(meta.options),
        digest=meta.digest,
        head_seq=head_seq,
        next_seq=tail.next_seq,
        tail=None if last is None else last.id,
        last_time_us=None if last is None else last.time_us,
        messages=max(0, tail.next_seq - head_seq),
        bytes=sum(segment.bytes or 0 for segment in segments),
        ledger_floor=meta.ledger_floor,
        next_number=meta.next_number,
        truncate_before=told_point(meta.truncate_before),
        holds=tuple(map(told_hold, holds)),
        deleting=tuple(doomed.ledger_id for doomed in meta.deleting),
        deleting_pages=len(meta.deleting_pages),
        pages=len(meta.pages),
        segments=segments,
    )


def told_hold(hold: Hold) -> HoldSummary:
    return HoldSummary(hold.name, hold.who, hold.since_us, hold.moved_us, hold.seq, hold.note)


def told_point(point: Point) -> str | None:
    """The truncation point for people: a seq, a message id, or both."""
    told = [f"seq {point.seq}"] if point.seq > 0 else []
    if point.ledger_id != NO_LEDGER:
        told.append(str(MessageId(*point.id_key)))
    return " and ".join(told) or None


def summarize(view: SegmentView) -> Procedure[LogSummary]:
    """As `describe`, from few pages: one line of a listing."""
    yield from view.refresh()
    return (yield from by_the_newest_list(view, lambda: _summarize(view)))


def _summarize(view: SegmentView) -> Procedure[LogSummary]:
    meta = view.meta
    tail = yield from find_tail(view)
    head_seq = yield from find_head_seq(view)
    segments, size = yield from view.count_left()
    last = yield from find_last_message(view)
    return LogSummary(
        name=view.name,
        state=meta.state.value,
        epoch=meta.epoch,
        segments=segments,
        head_seq=head_seq,
        messages=max(0, tail.next_seq - head_seq),
        bytes=size,
        next_seq=tail.next_seq,
        writer=None if meta.writer is None else meta.writer.name,
        last_time_us=None if last is None else last.time_us,
    )


def segments_of(view: SegmentView) -> Procedure[tuple[SegmentSummary, ...]]:
    """All segments of which something is left, oldest first. The view must be fresh."""
    found: list[SegmentSummary] = []
    segment: Segment | None = yield from view.first()
    while segment is not None:
        found.append((yield from _segment(view, segment)))
        segment = yield from view.after(segment.number)
    return tuple(found)


def _segment(view: SegmentView, segment: Segment) -> Procedure[SegmentSummary]:
    sealed = segment.sealed
    if sealed is not None:
        return SegmentSummary(
            segment.number,
            segment.ledger_id,
            "sealed",
            segment.epoch,
            sealed.base_seq,
            sealed.next_seq,
            sealed.last_entry,
            sealed.bytes,
            sealed.first_time_us,
            sealed.last_time_us,
        )
    try:
        info = yield LookAtLedger(segment.ledger_id)
        state = info.state.value
        entered = yield from view.enter(segment)
        last_entry = yield LastReadable(segment.ledger_id)
    except NotFound:
        return SegmentSummary(segment.number, segment.ledger_id, "gone", segment.epoch, *[None] * 6)
    if entered is None:
        return SegmentSummary(segment.number, segment.ledger_id, state, segment.epoch, *[None] * 6)
    header = yield from header_of(segment.ledger_id, last_entry)
    return SegmentSummary(
        segment.number,
        segment.ledger_id,
        state,
        segment.epoch,
        entered.base_seq,
        entered.base_seq + header.first_seq + header.count,
        last_entry,
        None if info.closed is None else info.closed.bytes,
        None,
        header.last_timestamp_us,
    )
