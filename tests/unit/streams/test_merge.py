"""Whose messages are next: in turn, or by time."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from dlog.reader.message import MessageBatch
from dlog.streams.merge import Arrival, ByTime, Choice, Ready


class _Entry:
    def __init__(self, times: list[int]) -> None:
        self.base_timestamp_us, self.last_timestamp_us = times[0], times[-1]
        self._times = times

    def timestamps_us(self) -> list[int]:
        return self._times


class _Batch:
    """As much of a batch as is looked at."""

    def __init__(self, times: list[int]) -> None:
        self.entry, self.start, self.end = _Entry(times), 0, len(times)

    def __len__(self) -> int:
        return self.end - self.start


def _ready(*times: int, is_idle: bool = False) -> Ready:
    head = cast(MessageBatch, _Batch(list(times))) if times else None
    return Ready(head, is_idle)


def test_shards_take_turns() -> None:
    order = Arrival()
    shards = {2: _ready(5), 0: _ready(1, 2), 7: _ready()}
    chosen = [order.choose(shards, 0) for _ in range(3)]
    assert chosen == [Choice(0, 2), Choice(2, 1), Choice(0, 2)]
    assert order.choose({7: _ready()}, 0) is None


def test_the_oldest_is_next_up_to_the_next_shards_oldest() -> None:
    order = ByTime(1000)
    shards = {0: _ready(10, 20, 30), 1: _ready(25, 26)}
    assert order.choose(shards, 0) == Choice(0, 2)
    assert order.choose({0: _ready(30), 1: _ready(25, 26)}, 0) == Choice(1, 2)
    assert order.late == 0


def test_a_shard_that_is_behind_keeps_the_others_waiting() -> None:
    order = ByTime(1000)
    assert order.choose({0: _ready(10), 1: _ready()}, 1 << 40) is None


def test_one_at_its_tail_is_waited_for_with_patience() -> None:
    order = ByTime(1000)
    shards = {0: _ready(500, 900), 1: _ready(is_idle=True)}
    assert order.choose(shards, 600) == 1500  # ask again then
    assert order.choose(shards, 1600) == Choice(0, 1)  # the second is not so old yet
    assert order.choose({1: _ready(is_idle=True)}, 0) is None


def test_what_comes_late_is_counted() -> None:
    order = ByTime(0)
    order.choose({0: _ready(50, 60)}, 0)
    assert order.choose({0: _ready(10, 20, 70)}, 0) == Choice(0, 3)
    assert order.late == 2


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=4))
def test_all_come_out_and_by_time_in_order(columns: list[list[int]]) -> None:
    columns = [sorted(each) for each in columns]
    for order in (Arrival(), ByTime(1000)):
        left = {number: list(times) for number, times in enumerate(columns)}
        out: list[int] = []
        while left:
            ready: dict[int, Any] = {n: _ready(*times) for n, times in left.items()}
            chosen = order.choose(ready, 0)
            assert isinstance(chosen, Choice)
            out += left[chosen.number][: chosen.messages]
            del left[chosen.number][: chosen.messages]
            left = {n: times for n, times in left.items() if times}
        assert sorted(out) == sorted(time for times in columns for time in times)
        if isinstance(order, ByTime):
            assert out == sorted(out)
            assert order.late == 0
