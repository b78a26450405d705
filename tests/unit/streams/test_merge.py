"""Whose messages are next: in turn, or by time."""

from __future__ import annotations

from typing import Any, cast

import pytest
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


def test_turns_go_round_and_on_with_whoever_is_next() -> None:
    """The first shard is first, and one that has nothing, or is gone, keeps no turn."""
    order = Arrival()
    assert order.choose({4: _ready(1), 0: _ready(1, 2, 3), 6: _ready(9)}, 0) == Choice(0, 3)
    assert order.choose({4: _ready(1), 0: _ready(1), 6: _ready(9)}, 0) == Choice(4, 1)
    assert order.choose({5: _ready(), 0: _ready(1), 6: _ready(9)}, 0) == Choice(6, 1)
    assert order.choose({5: _ready(7, 8), 6: _ready(9)}, 0) == Choice(5, 2)
    assert order.choose({5: _ready(7)}, 0) == Choice(5, 1), "alone it is next again"
    assert order.late == 0


@pytest.mark.parametrize(
    ("shards", "now_us", "expected"),
    [
        # Of equal times the lower number is first; what is as old as the other's oldest comes, too.
        ({1: _ready(10, 11), 0: _ready(10, 10, 11)}, 0, Choice(0, 2)),
        ({0: _ready(11), 1: _ready(10, 11, 12)}, 0, Choice(1, 2)),
        ({0: _ready(10, 30), 1: _ready(20), 2: _ready(15)}, 0, Choice(0, 1)),
        # Alone, all of it comes, whatever time it is.
        ({0: _ready(10, 1 << 50)}, 0, Choice(0, 2)),
        ({}, 0, None),
        ({0: _ready()}, 0, None),
        # Beside an idle shard, what is exactly so old is old enough.
        ({0: _ready(500, 900), 1: _ready(is_idle=True)}, 1499, 1500),
        ({0: _ready(500, 900), 1: _ready(is_idle=True)}, 1500, Choice(0, 1)),
        ({0: _ready(500, 900), 1: _ready(is_idle=True)}, 1899, Choice(0, 1)),
        ({0: _ready(500, 900), 1: _ready(is_idle=True)}, 1900, Choice(0, 2)),
        # Whichever is nearer: the other's oldest, or what is old enough.
        ({0: _ready(1, 2, 3), 1: _ready(2), 2: _ready(is_idle=True)}, 5000, Choice(0, 2)),
        ({0: _ready(1, 2, 3), 1: _ready(3), 2: _ready(is_idle=True)}, 1002, Choice(0, 2)),
        ({0: _ready(1, 2, 3), 1: _ready(), 2: _ready(is_idle=True)}, 5000, None),
        # Messages of one time are looked at as one.
        ({0: _ready(5, 5, 5), 1: _ready(4)}, 0, Choice(1, 1)),
        ({0: _ready(5, 5, 5), 1: _ready(6)}, 0, Choice(0, 3)),
    ],
)
def test_what_is_next_by_time(shards: dict[int, Ready], now_us: int, expected: Any) -> None:
    assert ByTime(1000).choose(shards, now_us) == expected


def test_late_is_what_is_older_than_anything_that_was_handed_out() -> None:
    order = ByTime(0)
    for times, late in [((50, 60), 0), ((60, 61), 0), ((10,), 1), ((60, 61), 2), ((61, 70), 2)]:
        order.choose({0: _ready(*times)}, 0)
        assert order.late == late
    order.choose({0: _ready(1, 2, 69, 70, 71)}, 0)
    assert order.late == 5


def test_only_the_part_of_an_entry_that_is_left_counts() -> None:
    """The first of its messages may have been handed out before."""
    entry = _Batch([10, 20, 30, 40])
    entry.start, entry.end = 1, 3
    left = Ready(cast(MessageBatch, entry), False)
    assert ByTime(0).choose({0: left, 1: _ready(25)}, 0) == Choice(0, 1)
    assert ByTime(0).choose({0: left, 1: _ready(15)}, 0) == Choice(1, 1)
    assert ByTime(0).choose({0: left, 1: _ready(35)}, 0) == Choice(0, 2)


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
