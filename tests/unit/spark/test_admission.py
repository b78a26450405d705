"""How much a micro-batch takes: never more than it may, never nothing where there is something."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.spark.admission import Part, fitting, is_enough, shares
from dlog.spark.options import Pace

COUNTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000), max_size=6)


@given(COUNTS, st.integers(1, 2000))
def test_shares_are_what_may_be_taken_and_no_more(available: dict[str, int], most: int) -> None:
    taken = shares(available, most)
    assert taken.keys() == available.keys()
    assert all(0 <= taken[log] <= available[log] for log in available)
    assert sum(taken.values()) == min(most, sum(available.values()))


def test_shares_are_by_what_a_log_has() -> None:
    assert shares({"a": 900, "b": 100}, 100) == {"a": 90, "b": 10}
    assert shares({"a": 1, "b": 1, "c": 1}, 2) == {"a": 1, "b": 1, "c": 0}
    assert shares({"a": 5}, 10) == {"a": 5}


@given(
    st.dictionaries(
        st.sampled_from("abc"),
        st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=6),
    ),
    st.integers(1, 20_000),
)
def test_parts_fit(parts: dict[str, list[tuple[int, int]]], most: int) -> None:
    made = {log: [Part(*each) for each in of_log] for log, of_log in parts.items()}
    taken = fitting(made, most)
    there = sum(part.messages for of_log in made.values() for part in of_log)
    assert taken.keys() == made.keys()
    for log, count in taken.items():
        assert 0 <= count <= sum(part.messages for part in made[log])
    assert (sum(taken.values()) > 0) == (there > 0)
    if sum(part.bytes for of_log in made.values() for part in of_log) <= most:
        assert sum(taken.values()) == there


def test_parts_are_taken_in_turn() -> None:
    parts = {"a": [Part(10, 100)] * 3, "b": [Part(10, 100)] * 3}
    assert fitting(parts, 400) == {"a": 20, "b": 20}
    assert fitting(parts, 450) == {"a": 25, "b": 20}
    assert fitting(parts, 1) == {"a": 1, "b": 0}


@pytest.mark.parametrize(
    ("available", "waited_ms", "enough"),
    [
        (0, None, False),
        (0, 1e9, False),
        (9, 0.0, False),
        (9, 999.0, False),
        (9, 1000.0, True),
        (9, None, True),  # the first batch waits for nobody
        (10, 0.0, True),
    ],
)
def test_a_batch_waits_for_enough_or_long_enough(
    available: int, waited_ms: float | None, enough: bool
) -> None:
    assert is_enough(available, Pace(None, None, 10, 1000), waited_ms) is enough
    assert is_enough(available, Pace(), waited_ms) is (available > 0)
