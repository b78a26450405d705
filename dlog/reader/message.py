"""What a reader hands out: `Message`, one at a time, or `MessageBatch`, the messages of one entry
together."""

from __future__ import annotations

from itertools import count, repeat
from typing import Any, NamedTuple

from dlog.ids import MessageId, Position
from dlog.wire.batch import Entry, Headers


class Message(NamedTuple):
    """One message. A tuple, so that a million of them cost what a million tuples cost."""

    ledger_id: int
    entry_id: int
    batch_idx: int
    seq: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_us: int
    event_time_us: int | None
    epoch: int

    @property
    def id(self) -> MessageId:
        return MessageId(self[0], self[1], self[2])

    def __repr__(self) -> str:
        value = "tombstone" if self.value is None else f"{len(self.value)} bytes"
        return f"<Message {self.id} seq {self.seq}, {value}>"


class MessageBatch:
    """Messages `start` … `end`-1 of one entry, decoded when asked for."""

    __slots__ = ("bytes", "end", "entry", "entry_id", "epoch", "first_seq", "ledger_id", "start")

    def __init__(
        self,
        entry: Entry,
        *,
        ledger_id: int,
        entry_id: int,
        epoch: int,
        entry_seq: int,
        start: int,
        end: int,
        size: int,
    ) -> None:
        self.entry = entry
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.epoch = epoch
        self.start = start
        self.end = end
        self.first_seq = entry_seq + start
        self.bytes = size

    def __len__(self) -> int:
        return self.end - self.start

    @property
    def first_id(self) -> MessageId:
        return MessageId(self.ledger_id, self.entry_id, self.start)

    @property
    def last_id(self) -> MessageId:
        return MessageId(self.ledger_id, self.entry_id, self.end - 1)

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self) - 1

    def cut(self, first: int, end: int) -> MessageBatch:
        """Messages `first` … `end`-1 of this batch, over the same bytes."""
        return MessageBatch(
            self.entry,
            ledger_id=self.ledger_id,
            entry_id=self.entry_id,
            epoch=self.epoch,
            entry_seq=self.first_seq - self.start,
            start=self.start + first,
            end=self.start + end,
            size=self.bytes,
        )

    def values(self) -> list[bytes | None]:
        return self._cut(self.entry.values())

    def to_pylist(self) -> list[Message]:
        """The messages, as a list."""
        entry = self.entry
        length = self.end - self.start
        keys, headers, event_times = entry.keys(), entry.headers(), entry.event_times_us()
        one_time = entry.base_timestamp_us == entry.last_timestamp_us
        return list(
            map(
                tuple.__new__,
                repeat(Message, length),
                zip(
                    repeat(self.ledger_id, length),
                    repeat(self.entry_id, length),
                    range(self.start, self.end),
                    count(self.first_seq),
                    repeat(None) if keys is None else self._cut(keys),
                    self._cut(entry.values()),
                    repeat(()) if headers is None else self._cut(headers),
                    repeat(entry.base_timestamp_us)
                    if one_time
                    else self._cut(entry.timestamps_us()),
                    repeat(None) if event_times is None else self._cut(event_times),
                    repeat(self.epoch),
                    strict=False,
                ),
            )
        )

    def _cut(self, column: list[Any]) -> list[Any]:
        if self.start == 0 and self.end == self.entry.count:
            return column
        return column[self.start : self.end]

    def to_arrow(self, *, ids: bool = False) -> Any:
        """A pyarrow RecordBatch over the entry's own bytes: seq, timestamp, event_time, key, value,
        headers; with `ids` also ledger_id, entry_id, batch_idx and epoch. Needs the extra
        `dlog[arrow]`."""
        from dlog.reader.arrow import record_batch

        return record_batch(self, ids=ids)

    def position_after(self, log_uid: str, taken: int) -> Position:
        """Where a reader stands that took the first `taken` messages of this batch (at least
        one)."""
        after = MessageId(self.ledger_id, self.entry_id, self.start + taken - 1)
        return Position(log_uid, self.first_seq + taken, after)

    def __repr__(self) -> str:
        return f"<MessageBatch {self.first_id} … {self.last_id}, seq {self.first_seq}>"
