"""Where a log stands at one moment, cheap enough to be asked every second, however long its history
is. Two of these give a rate."""

from __future__ import annotations

from dataclasses import dataclass

from dlog.effects import Procedure
from dlog.ids import MessageId
from dlog.reader.places import EARLIEST, find_last_message, find_tail, locate
from dlog.reader.segments import SegmentView, by_the_newest_list


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
    last_id: MessageId | None  # of the last message; None where none is left
    last_time_us: int | None  # when that was written
    segments: int
    bytes: int
    message_bytes: float | None
    """What a message takes in the entry of the last one."""


def status_of(view: SegmentView) -> Procedure[LogStatus]:
    yield from view.refresh()
    return (yield from by_the_newest_list(view, lambda: _status(view)))


def _status(view: SegmentView) -> Procedure[LogStatus]:
    meta = view.meta
    tail = yield from find_tail(view)
    head = yield from locate(view, EARLIEST)
    head_seq = tail.next_seq if head.seq is None else head.seq
    last = yield from find_last_message(view)
    segments, size = yield from view.count_left()
    return LogStatus(
        name=view.name,
        uid=meta.uid,
        state=meta.state.value,
        epoch=meta.epoch,
        writer=None if meta.writer is None else meta.writer.name,
        head_seq=head_seq,
        next_seq=tail.next_seq,
        last_id=None if last is None else last.id,
        last_time_us=None if last is None else last.time_us,
        segments=segments,
        bytes=size,
        message_bytes=None if last is None else last.bytes,
    )
