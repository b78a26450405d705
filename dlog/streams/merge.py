"""The order in which what lies ready in several shards is handed out. No IO, no clock.

`Arrival` takes from each shard in turn. `ByTime` hands out the oldest first, by the times that the
writers stamped: a shard that has nothing ready stands in the way, unless it is idle and what is
ready elsewhere is so old (`patience_us`) that nothing older can be expected from it. What comes
later all the same is handed out at once, and counted as late.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from dlog.reader.message import MessageBatch


class Ready(NamedTuple):
    """What a shard has to hand out next; None for nothing now."""

    head: MessageBatch | None
    is_idle: bool


class Choice(NamedTuple):
    """The shard whose head is next, and how many messages of it."""

    number: int
    messages: int


class Order(Protocol):
    late: int

    def choose(self, shards: Mapping[int, Ready], now_us: int) -> Choice | int | None:
        """What is next; a time to ask again at, when only that has to pass; None when more has to
        arrive first."""
        ...


class Arrival:
    def __init__(self) -> None:
        self.late = 0
        self._last = -1

    def choose(self, shards: Mapping[int, Ready], now_us: int) -> Choice | int | None:
        numbers = sorted(number for number, ready in shards.items() if ready.head is not None)
        if not numbers:
            return None
        self._last = next((number for number in numbers if number > self._last), numbers[0])
        head = shards[self._last].head
        assert head is not None
        return Choice(self._last, len(head))


class ByTime:
    def __init__(self, patience_us: int) -> None:
        self.late = 0
        self._patience_us = patience_us
        self._last_us = 0

    def choose(self, shards: Mapping[int, Ready], now_us: int) -> Choice | int | None:
        heads: list[tuple[int, int, MessageBatch]] = []
        is_waited_for = False
        for number, ready in shards.items():
            if ready.head is not None:
                heads.append((_first_us(ready.head), number, ready.head))
            elif not ready.is_idle:
                return None
            else:
                is_waited_for = True
        if not heads:
            return None
        heads.sort(key=lambda each: each[:2])
        first_us, number, head = heads[0]
        up_to_us = heads[1][0] if len(heads) > 1 else None
        if is_waited_for:
            old_us = now_us - self._patience_us
            if first_us > old_us:
                return first_us + self._patience_us
            up_to_us = old_us if up_to_us is None else min(up_to_us, old_us)
        times = _times(head)
        count = len(times) if up_to_us is None else max(1, bisect_right(times, up_to_us))
        if first_us < self._last_us:
            self.late += sum(1 for each in times[:count] if each < self._last_us)
        self._last_us = max(self._last_us, times[count - 1])
        return Choice(number, count)


def _first_us(batch: MessageBatch) -> int:
    return _times(batch)[0]


def _times(batch: MessageBatch) -> Sequence[int]:
    """Never going back within a log."""
    entry = batch.entry
    if entry.base_timestamp_us == entry.last_timestamp_us:
        return [entry.base_timestamp_us] * len(batch)
    return entry.timestamps_us()[batch.start : batch.end]
