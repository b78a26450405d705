"""A batch: the messages that will travel in one entry, and what became of them.

Plain data with slots: it is filled by user threads (see `batcher`), numbered and sent by the core,
and resolved once, for all its messages. `waiters` are called when it is resolved, on the thread
that resolves it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, TypeVar

from dlog.errors import DlogError, check
from dlog.ledger.store import Buffer
from dlog.wire.batch import Codec, Entry, Headers, copied, encode

UNSENT = -1
_Item = TypeVar("_Item")


class Origin(NamedTuple):
    """Whose messages these are: what tokens begin with."""

    log_uid: str
    epoch: int


_NOBODY = Origin("", 0)


class Batch:
    # Of processes: one more in the child of a fork, where nobody resolves copies of older batches.
    generation: ClassVar[int] = 0
    is_copy: ClassVar[bool] = False

    __slots__ = (
        "born_in",
        "bytes",
        "done",
        "entry_id",
        "error",
        "error_seen",
        "event_times_us",
        "first_seq",
        "headers",
        "keys",
        "ledger_id",
        "moved",
        "origin",
        "producer",
        "sent_s",
        "timestamp_us",
        "values",
        "waiters",
    )

    def __init__(self, values: list[bytes | None], size: int) -> None:
        self.values = values
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers | None] | None = None
        self.event_times_us: list[int | None] | None = None
        self.bytes = size
        self.ledger_id = UNSENT
        self.entry_id = UNSENT
        self.first_seq = UNSENT  # known once it is in line: seqs have no gaps
        self.origin = _NOBODY
        self.producer: tuple[int, int] | None = None  # its id, and the number of the first message
        self.timestamp_us = UNSENT
        self.sent_s = 0.0  # monotonic
        self.born_in = Batch.generation
        self.done = False
        self.error: DlogError | None = None
        self.error_seen = False  # somebody was told
        self.moved: list[Any] | None = None  # tickets of the messages that were sent elsewhere
        self.waiters: deque[Callable[[], None]] = deque()

    def append(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        event_time_us: int | None,
    ) -> int:
        """The new message's index. Columns begin with the first message that has something for
        them."""
        idx = len(self.values)
        self.values.append(value)
        if key is not None:
            self.keys = _place(self.keys, idx, key)
        if headers:
            self.headers = _place(self.headers, idx, headers)
        if event_time_us is not None:
            self.event_times_us = _place(self.event_times_us, idx, event_time_us)
        return idx

    def continues_with(self, producer: tuple[int, int] | None) -> bool:
        """A batch holds messages of one producer with numbers in a row, or of none."""
        if self.producer is None or producer is None:
            return self.producer is producer
        producer_id, first_number = self.producer
        return producer == (producer_id, first_number + len(self.values))

    def pad_columns(self) -> None:
        """Columns begin when the first message has something for them; fill them up to the last
        message."""
        count = len(self.values)
        for column in (self.keys, self.headers, self.event_times_us):
            if column is not None and len(column) < count:
                column.extend([None] * (count - len(column)))

    def entry(self, first_seq: int, timestamp_us: int, codec: Codec) -> list[Buffer]:
        """Its bytes, for a place in a segment. A batch that is rebuilt is asked again."""
        self.pad_columns()
        return encode(
            self.values,
            first_seq=first_seq,
            timestamp_us=timestamp_us,
            keys=self.keys,
            headers=self.headers,
            event_times_us=self.event_times_us,
            codec=codec,
            producer=self.producer,
        )

    def resolve(self, error: DlogError | None = None) -> None:
        """The end of waiting. `done` is set first: a waiter that comes later looks at it before it
        sleeps."""
        self.error = error
        self.done = True
        self.wake()

    def wake(self) -> None:
        """Call whoever waits. Both the resolver and a late waiter may be here at once: each waiter
        is called once."""
        while self.waiters:
            try:
                waiter = self.waiters.popleft()
            except IndexError:
                return
            waiter()

    def forget_waiter(self, waiter: Callable[[], None]) -> None:
        """It gave up waiting; perhaps it was called meanwhile."""
        with suppress(ValueError):
            self.waiters.remove(waiter)


class CopiedBatch(Batch):
    """Messages `start` … `end`-1 of an entry of another log: they keep their seqs, their times and
    their bytes. `values` only counts them."""

    is_copy = True
    __slots__ = ("_end", "_entry", "_seq", "_start")

    def __init__(self, entry: Entry, start: int, end: int, seq: int) -> None:
        super().__init__([None] * (end - start), len(entry.stored))
        self._entry = entry
        self._start = start
        self._end = end
        self._seq = seq  # that the first one had, and will have
        self.timestamp_us = entry.timestamps_us()[end - 1]  # of the last one
        if entry.producer is not None:
            self.producer = (entry.producer[0], entry.producer[1] + start)

    def entry(self, first_seq: int, timestamp_us: int, codec: Codec) -> list[Buffer]:
        check(self.first_seq == self._seq, "a copy keeps its seqs", self.first_seq, self._seq)
        return copied(self._entry, start=self._start, end=self._end, first_seq=first_seq)


def _place(column: list[_Item | None] | None, idx: int, item: _Item) -> list[_Item | None]:
    column = [] if column is None else column
    column.extend([None] * (idx - len(column)))
    column.append(item)
    return column
