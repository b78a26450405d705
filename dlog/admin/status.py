"""Where a log stands at one moment, cheap enough to be asked every second, however long its history
is. Two of these give a rate."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.effects import Procedure, ReadRun
from dlog.ids import MessageId
from dlog.reader.places import EARLIEST, Tail, find_tail, locate
from dlog.reader.segments import SegmentView, by_the_newest_list
from dlog.wire.batch import decode_header


@dataclass(frozen=True, slots=True)
class LogStatus:
    """`next_seq` counts what can be read now; `bytes` is exact for what is sealed."""

    name: str
    uid: str
    state: str
    epoch: int
    writer: str | None
    head_seq: int
    next_seq: int
    last_id: MessageId | None  # None where the last entry holds no message that is left
    last_time_us: int | None
    segments: int
    bytes: int
    message_bytes: float | None
    """What a message took in the last entry."""


def status_of(view: SegmentView) -> Procedure[LogStatus]:
    yield from view.refresh()
    return (yield from by_the_newest_list(view, lambda: _status(view)))


def _status(view: SegmentView) -> Procedure[LogStatus]:
    meta = view.meta
    tail = yield from find_tail(view)
    head = yield from locate(view, EARLIEST)
    head_seq = tail.next_seq if head.seq is None else head.seq
    last_id, last_time_us, message_bytes = yield from _last_entry(tail)
    segments, size = yield from view.count_left()
    return LogStatus(
        name=view.name,
        uid=meta.uid,
        state=meta.state.value,
        epoch=meta.epoch,
        writer=None if meta.writer is None else meta.writer.name,
        head_seq=head_seq,
        next_seq=tail.next_seq,
        last_id=None if head_seq >= tail.next_seq else last_id,  # else it was truncated
        last_time_us=last_time_us,
        segments=segments,
        bytes=size,
        message_bytes=message_bytes,
    )


def _last_entry(
    tail: Tail,
) -> Procedure[tuple[MessageId | None, int | None, float | None]]:
    if tail.entered is None or tail.last_entry < 0:
        return None, None, None
    ledger_id = tail.entered.segment.ledger_id
    (raw,) = yield ReadRun(ledger_id, tail.last_entry, tail.last_entry, 1)
    header = decode_header(raw, where=f"ledger {ledger_id} entry {tail.last_entry}")
    if header.count == 0:
        return None, header.last_timestamp_us, None
    last_id = MessageId(ledger_id, tail.last_entry, header.count - 1)
    return last_id, header.last_timestamp_us, len(raw) / header.count
