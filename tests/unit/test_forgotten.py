"""What was forgotten: sets that may claim too much, and never too little."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog import limits
from dlog.errors import FormatError
from dlog.forgotten import ALL_IDS, ALL_NAMES, ID_MAX, ForgottenIds, ForgottenNames, GrowingIds

ids = st.one_of(st.integers(0, 40), st.integers(0, ID_MAX))


def all_of(some: list[int]) -> ForgottenIds:
    found = GrowingIds()
    for id in some:
        found.add(id)
    return found.frozen()


@given(st.lists(ids, max_size=60))
def test_ids_are_those_that_were_added(some: list[int]) -> None:
    found = all_of(some)
    assert found == ForgottenIds.of(some)
    assert {id for id in (*some, *range(42)) if id in found} == set(some)
    assert ForgottenIds.from_stored([list(each) for each in found.ranges], "here") == found


@given(st.lists(ids, max_size=30), st.lists(ids, max_size=30))
def test_ids_grow_from_what_was_there(before: list[int], more: list[int]) -> None:
    growing = GrowingIds(ForgottenIds.of(before))
    for id in more:
        growing.add(id)
        assert id in growing
    assert bool(growing) is bool(before or more)
    assert {id for id in (*before, *more, *range(42)) if id in growing} == {*before, *more}
    assert growing.frozen() == ForgottenIds.of((*before, *more))


@given(st.lists(ids, min_size=1, max_size=60), st.integers(0, 5))
def test_fewer_ranges_lose_no_id(some: list[int], most: int) -> None:
    found = all_of(some).coarser(most)
    assert 1 <= len(found.ranges) <= max(1, most)
    assert all(id in found for id in some)
    free = found.widest_free
    assert free is None or not any(free[0] <= id <= free[1] for id in some)


@given(st.lists(ids, max_size=30), st.lists(ids, max_size=30))
def test_joined_has_both(one: list[int], other: list[int]) -> None:
    assert all_of(one).joined(all_of(other)) == all_of([*one, *other])


def test_past_their_bound_the_closest_ranges_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FORGOTTEN_RANGES_MAX", 4)
    found = all_of([0, 10, 100, 103, 1000])
    assert found.ranges == ((0, 10), (100, 103), (1000, 1000))
    assert found.widest_free == (1001, ID_MAX)


def test_ids_in_a_row_are_one_range() -> None:
    found = all_of([*range(0, 50_000, 2), *range(1, 50_000, 2)][:10_000])
    assert len(found.ranges) <= limits.FORGOTTEN_RANGES_MAX
    assert all_of(list(range(10_000))).ranges == ((0, 9_999),)


def test_of_all_ids_none_is_free() -> None:
    assert ALL_IDS.widest_free is None
    assert {0, ID_MAX} == {id for id in (0, ID_MAX) if id in ALL_IDS}
    growing = GrowingIds(ALL_IDS)
    growing.add(5)
    assert growing.frozen() == ALL_IDS
    assert ForgottenIds().widest_free == (0, ID_MAX)


@pytest.mark.parametrize(
    "raw",
    [None, 5, "ab", [[1]], [[2, 1]], [[-1, 4]], [[1, 2], [3, 4]], [[5, 6], [1, 2]], [[1, 1 << 63]],
     [[0, True]], [["0", "1"]]],
)  # fmt: skip
def test_what_are_no_ranges_is_refused(raw: object) -> None:
    with pytest.raises(FormatError, match="here"):
        ForgottenIds.from_stored(raw, "here")


@given(st.lists(st.text(min_size=1, max_size=20), max_size=20))
def test_names_that_were_added_are_there(some: list[str]) -> None:
    found = ForgottenNames()
    for name in some:
        found = found.with_name(name)
    assert all(name in found and name in ALL_NAMES for name in some)
    if some:
        assert ForgottenNames.from_text(found.to_text(), "here") == found


def test_new_names_are_seldom_taken_for_forgotten_ones() -> None:
    found = ForgottenNames()
    assert "new" not in found
    for number in range(5_000):
        found = found.with_name(f"old {number}")
    mistaken = sum(f"new {number}" in found for number in range(10_000))
    assert mistaken < 60
    assert len(found.to_text()) < 12_000


@pytest.mark.parametrize("text", ["?", "AAAA", ForgottenNames(b"short").to_text(), ""])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="here"):
        ForgottenNames.from_text(text, "here")
