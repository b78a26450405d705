"""Looking at a log: which segments it has, how much they hold, where it ends. Procedures without
IO."""

from __future__ import annotations

import dataclasses

from dlog.admin.summary import LogDescription, LogSummary, SegmentSummary, WriterSummary
from dlog.effects import LastReadable, LookAtLedger, Procedure
from dlog.errors import NotFound
from dlog.ids import MessageId
from dlog.meta.log_meta import Segment
from dlog.reader.places import find_last_id, find_tail
from dlog.reader.segments import SegmentView, header_of


def describe(view: SegmentView) -> Procedure[LogDescription]:
    meta = yield from view.refresh()
    segments = yield from segments_of(view)
    tail = yield from find_tail(view)
    last_id: MessageId | None = yield from find_last_id(view)
    head_seq = segments[0].base_seq if segments else tail.next_seq
    head_seq = tail.next_seq if head_seq is None else head_seq
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
        tail=last_id,
        messages=tail.next_seq - head_seq,
        bytes=sum(segment.bytes or 0 for segment in segments),
        ledger_floor=meta.ledger_floor,
        next_number=meta.next_number,
        truncate_before=meta.truncate_before,
        deleting=tuple(doomed.ledger_id for doomed in meta.deleting),
        pages=len(meta.pages),
        segments=segments,
    )


def summarize(view: SegmentView) -> Procedure[LogSummary]:
    """As `describe`, without reading pages: one line of a listing."""
    meta = yield from view.refresh()
    tail = yield from find_tail(view)
    head_seq = tail.next_seq
    if meta.pages:
        head_seq = meta.pages[0].base_seq
    elif meta.segments:
        first = meta.segments[0].sealed
        head_seq = meta.end.next_seq if first is None else first.base_seq
    last_time_us = None
    if tail.entered is not None and tail.last_entry >= 0:
        header = yield from header_of(tail.entered.segment.ledger_id, tail.last_entry)
        last_time_us = header.last_timestamp_us
    per_page = [page.last_number - page.number + 1 for page in meta.pages]
    return LogSummary(
        name=view.name,
        state=meta.state.value,
        epoch=meta.epoch,
        segments=len(meta.segments) + sum(per_page),
        messages=tail.next_seq - head_seq,
        bytes=sum(s.sealed.bytes for s in meta.segments if s.sealed is not None),
        next_seq=tail.next_seq,
        writer=None if meta.writer is None else meta.writer.name,
        last_time_us=last_time_us,
    )


def segments_of(view: SegmentView) -> Procedure[tuple[SegmentSummary, ...]]:
    """All segments, oldest first. The view must be fresh."""
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
