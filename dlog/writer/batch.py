"""A batch: the messages that will travel in one entry, and what became of them.

Plain data with slots: it is filled by user threads (see `batcher`), numbered and sent by the core,
and resolved once, for all its messages. `waiters` are called when it is resolved, on the thread
that resolves it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, TypeVar

from dlog.errors import DlogError
from dlog.wire.batch import Headers

UNSENT = -1
_Item = TypeVar("_Item")


class Batch:
    # Of processes: one more in the child of a fork, where nobody resolves copies of older batches.
    generation: ClassVar[int] = 0

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
        self.first_seq = UNSENT
        self.timestamp_us = UNSENT
        self.born_in = Batch.generation
        self.done = False
        self.error: DlogError | None = None
        self.error_seen = False  # somebody was told
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

    def pad_columns(self) -> None:
        """Columns begin when the first message has something for them; fill them up to the last
        message."""
        count = len(self.values)
        for column in (self.keys, self.headers, self.event_times_us):
            if column is not None and len(column) < count:
                column.extend([None] * (count - len(column)))

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


def _place(column: list[_Item | None] | None, idx: int, item: _Item) -> list[_Item | None]:
    column = [] if column is None else column
    column.extend([None] * (idx - len(column)))
    column.append(item)
    return column
