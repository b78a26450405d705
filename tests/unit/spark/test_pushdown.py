"""Filters narrow a plan to what must hold, and to nothing less than that."""

from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from dlog.spark.places import Place
from dlog.spark.pushdown import Bounds, Span, narrowed_end, narrowed_start

TOP = 12  # seqs of the little log are those below this
T0 = datetime(2024, 5, 6, tzinfo=UTC)
KINDS: dict[type[Filter], Any] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


def seconds(number: int) -> datetime:
    return T0 + timedelta(seconds=number)


@st.composite
def comparisons(draw: Any) -> Filter:
    """Of the offset or the time; message n of the little log has time n."""
    is_time = draw(st.booleans())
    path = ("timestamp",) if is_time else ("offset",)
    numbers = st.integers(-2, TOP + 2)
    value = numbers.map(seconds) if is_time else numbers
    kind = draw(st.sampled_from([*KINDS, In]))
    if kind is In:
        return In(path, tuple(draw(st.lists(value, max_size=3))))
    return kind(path, draw(value))


def holds(given: Filter, seq: int) -> bool:
    value: Any = seconds(seq) if given.attribute == ("timestamp",) else seq
    if isinstance(given, In):
        return value in given.value
    return bool(KINDS[type(given)](value, given.value))


def is_in(seq: int, start: Place, end: Place) -> bool:
    """Would a plan from `start` to `end` have this message?"""
    if isinstance(start, datetime):
        begins = seconds(seq) >= start
    else:
        begins = start == "earliest" or (type(start) is int and seq >= start)
    if isinstance(end, datetime):
        return begins and seconds(seq) < end
    return begins and (end == "latest" or (type(end) is int and seq < end))


STARTS = st.one_of(
    st.just("earliest"), st.integers(0, TOP), st.integers(-1, TOP).map(seconds), st.just("latest")
)
ENDS = st.one_of(st.just("latest"), st.integers(0, TOP), st.integers(-1, TOP + 1).map(seconds))


@given(st.lists(comparisons(), max_size=4), STARTS, ENDS, st.integers(0, TOP))
def test_a_narrowed_plan_has_all_that_the_filters_let_through(
    filters: list[Filter], start: Place, end: Place, head: int
) -> None:
    bounds = Bounds().of(filters)
    less, fewer = narrowed_start(start, bounds, head), narrowed_end(end, bounds)
    for seq in range(head, TOP):
        if start != "latest" and is_in(seq, start, end) and all(holds(f, seq) for f in filters):
            assert is_in(seq, less, fewer), seq
        if is_in(seq, less, fewer):
            assert is_in(seq, start, end), "never more than without a filter"


END, MICRO, WEST = (
    datetime.max.replace(tzinfo=UTC),
    timedelta(microseconds=1),
    timezone(timedelta(hours=-8)),
)
OFFSETS = ("offset",)
TIMES = ("timestamp",)


@pytest.mark.parametrize(
    ("filters", "span"),
    [
        ([], Span()),
        ([EqualTo(OFFSETS, 5)], Span(5, 5)),
        ([EqualNullSafe(OFFSETS, 5)], Span(5, 5)),
        ([GreaterThan(OFFSETS, 5)], Span(5, None)),
        ([GreaterThanOrEqual(OFFSETS, 5)], Span(5, None)),
        ([LessThan(OFFSETS, 5)], Span(None, 5)),
        ([LessThanOrEqual(OFFSETS, 5)], Span(None, 5)),
        ([In(OFFSETS, (7, 3, 5))], Span(3, 7)),
        ([In(OFFSETS, (7, None))], Span()),
        ([In(OFFSETS, ())], Span()),
        ([GreaterThan(OFFSETS, 2), GreaterThan(OFFSETS, 5)], Span(5, None)),
        ([GreaterThan(OFFSETS, 5), GreaterThan(OFFSETS, 2)], Span(5, None)),
        ([LessThan(OFFSETS, 2), LessThan(OFFSETS, 5)], Span(None, 2)),
        ([LessThan(OFFSETS, 5), LessThan(OFFSETS, 2)], Span(None, 2)),
        ([GreaterThan(OFFSETS, 2), LessThan(OFFSETS, 5)], Span(2, 5)),
        ([EqualTo(OFFSETS, "5")], Span()),
        ([EqualTo(OFFSETS, True)], Span()),
        ([EqualTo(OFFSETS, None)], Span()),
        ([IsNotNull(OFFSETS)], Span()),
        ([Not(EqualTo(OFFSETS, 5))], Span()),
        ([EqualTo(("value", "offset"), 5)], Span()),
        ([EqualTo(("size",), 5)], Span()),
    ],
)
def test_what_a_filter_says_of_a_number(filters: list[Filter], span: Span) -> None:
    bounds = Bounds().of(filters)
    assert bounds == Bounds(offsets=span)
    for column, field in (("partition", "shards"), ("ledgerId", "ledgers")):
        moved = [type(f)((column,), f.value) for f in filters if hasattr(f, "value")]
        if len(moved) == len(filters) and all(f.attribute == OFFSETS for f in filters):
            assert Bounds().of(moved) == Bounds(**{field: span})


def test_a_time_without_a_zone_says_nothing() -> None:
    assert Bounds().of([EqualTo(TIMES, T0)]) == Bounds(times=Span(T0, T0))
    assert Bounds().of([EqualTo(TIMES, T0.replace(tzinfo=None))]) == Bounds()
    assert Bounds().of([EqualTo(TIMES, 5)]) == Bounds()


def test_topics_that_are_asked_for_together() -> None:
    one, two = In(("topic",), ("a", "b")), In(("topic",), ("b", "c"))
    bounds = Bounds().of([one, two])
    assert [name for name in "abc" if bounds.may_have(name, 0)] == ["b"]
    assert Bounds().of([EqualTo(("topic",), 5)]) == Bounds()
    assert Bounds().of([In(("topic",), ("a", None))]) == Bounds()
    assert not Bounds().of([EqualTo(("topic",), "a")]).may_have("b", 0)
    assert not Bounds().of([EqualNullSafe(("topic",), "a")]).may_have("b", 0)


def test_a_shard_is_wanted_within_the_bounds_and_not_outside() -> None:
    bounds = Bounds().of([GreaterThan(("partition",), 2), LessThan(("partition",), 5)])
    assert [shard for shard in range(8) if bounds.may_have("a", shard)] == [2, 3, 4, 5]
    assert Bounds().may_have("a", 7)


@pytest.mark.parametrize(
    ("start", "filters", "narrowed"),
    [
        ("earliest", [GreaterThan(OFFSETS, 5)], 5),
        ("earliest", [GreaterThan(OFFSETS, 3)], "earliest"),  # not before the head
        ("earliest", [GreaterThan(OFFSETS, 4)], 4),
        (7, [GreaterThan(OFFSETS, 5)], 7),
        (4, [GreaterThan(OFFSETS, 5)], 5),
        (1, [GreaterThan(OFFSETS, 3)], 1),  # an error without a filter is one with it
        ("latest", [GreaterThan(OFFSETS, 5)], "latest"),
        (T0, [GreaterThan(OFFSETS, 5)], T0),
        ("earliest", [GreaterThan(TIMES, T0)], T0),
        (seconds(1), [GreaterThan(TIMES, T0)], seconds(1)),
        (seconds(-1), [GreaterThan(TIMES, T0)], T0),
        (7, [GreaterThan(TIMES, T0)], 7),
        ("earliest", [LessThan(OFFSETS, 5), LessThan(TIMES, T0)], "earliest"),
    ],
)
def test_where_a_narrowed_plan_begins(start: Place, filters: list[Filter], narrowed: Place) -> None:
    assert narrowed_start(start, Bounds().of(filters), 3) == narrowed


@pytest.mark.parametrize(
    ("end", "filters", "narrowed"),
    [
        ("latest", [LessThan(OFFSETS, 5)], 6),
        ("latest", [LessThan(OFFSETS, -9)], 0),
        (4, [LessThan(OFFSETS, 5)], 4),
        (7, [LessThan(OFFSETS, 5)], 6),
        (T0, [LessThan(OFFSETS, 5)], T0),
        ("latest", [LessThan(TIMES, T0)], T0 + timedelta(microseconds=1)),
        (seconds(1), [LessThan(TIMES, T0)], T0 + timedelta(microseconds=1)),
        (seconds(-1), [LessThan(TIMES, T0)], seconds(-1)),
        (7, [LessThan(TIMES, T0)], 7),
        ("latest", [LessThan(TIMES, END)], "latest"),  # there is no time behind it
        (T0, [LessThan(TIMES, END)], T0),
        ("latest", [LessThan(TIMES, END - MICRO)], END),
        ("latest", [LessThan(TIMES, END.replace(tzinfo=WEST))], "latest"),
        ("latest", [GreaterThan(OFFSETS, 5), GreaterThan(TIMES, T0)], "latest"),
    ],
)
def test_where_a_narrowed_plan_ends(end: Place, filters: list[Filter], narrowed: Place) -> None:
    assert narrowed_end(end, Bounds().of(filters)) == narrowed
