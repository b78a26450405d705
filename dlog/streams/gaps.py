"""Numbers of producers that failed in a writer of a stream while the writer itself goes on.

A shard takes the numbers of a producer in rising order only. So when a number failed in one shard,
a later one that goes to a shard which follows it would make that shard refuse the first one as
taken, though it is in no shard. Until a producer sends what failed again, it is refused all that
comes behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dlog.errors import Conflict, Outcome, Retry
from dlog.writer.batch import Batch


class Gaps:
    def __init__(self) -> None:
        self._first: dict[int, int] = {}  # by producer: the first number that failed

    def failed(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            if batch.producer is not None:
                self.add(batch.producer)

    def add(self, producer: tuple[int, int]) -> None:
        id, number = producer
        self._first[id] = min(number, self._first.get(id, number))

    def close(self, producer: tuple[int, int]) -> None:
        """It is sent again from here on."""
        id, number = producer
        if number <= self._first.get(id, -1):
            del self._first[id]

    def error(self, producer: tuple[int, int]) -> Conflict | None:
        """For a number behind one that failed; nothing was sent of it."""
        id, number = producer
        first = self._first.get(id)
        if first is None or number <= first:
            return None
        return Conflict(
            f"number {first} of producer {id} failed before: send it again before number {number}, "
            "which the shards that follow would take in its place",
            retry=Retry.AFTER_REOPEN,
            outcome=Outcome.NOT_HAPPENED,
            producer=id,
        )
