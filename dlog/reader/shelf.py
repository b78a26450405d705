"""Batches that were read and not yet handed out, and exactly how far the user got. No IO; one user
at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from dlog.ids import Position
from dlog.reader.message import Message, MessageBatch


class Shelf:
    def __init__(self, start: Position) -> None:
        self._start = start
        self._line: deque[MessageBatch] = deque()
        self._batch: MessageBatch | None = None  # the one being handed out
        self._taken = 0  # how many messages of it were

    def put(self, batches: Iterable[MessageBatch]) -> None:
        self._line.extend(batches)

    def clear(self) -> None:
        """Forget it all; whoever iterates over it is at the end."""
        self._start = self.position
        self._line.clear()
        self._batch, self._taken = None, 0

    @property
    def is_empty(self) -> bool:
        return not self._line and (self._batch is None or self._taken == len(self._batch))

    @property
    def position(self) -> Position:
        """After the last message handed out."""
        if self._batch is None or self._taken == 0:
            return self._start
        return self._batch.position_after(self._start.log_uid, self._taken)

    def batch(self) -> MessageBatch:
        """The next batch, handed out as a whole. Not of an empty shelf."""
        batch = self._open_next()
        self._taken = len(batch)
        return batch

    def messages(self) -> Iterator[Message]:
        """All that is here, one by one. Whoever stops early goes on at the next message later."""
        while not self.is_empty:
            batch = self._open_next()
            for taken, message in enumerate(batch.to_pylist(), 1):
                self._taken = taken
                yield message
                if self._batch is not batch:  # something else was done with us meanwhile
                    break

    def take(self, messages_max: int) -> list[Message]:
        taken: list[Message] = []
        while len(taken) < messages_max and not self.is_empty:
            batch = self._open_next()
            self._taken = min(len(batch), messages_max - len(taken))
            taken += batch.cut(0, self._taken).to_pylist()
        return taken

    def _open_next(self) -> MessageBatch:
        """The rest of the batch at hand, or the next one, with nothing of it taken."""
        batch = self._batch
        if batch is None or self._taken == len(batch):
            batch = self._line.popleft()
        elif self._taken:
            batch = batch.cut(self._taken, len(batch))
        if self._batch is not None and self._taken:
            self._start = self._batch.position_after(self._start.log_uid, self._taken)
        self._batch, self._taken = batch, 0
        return batch
