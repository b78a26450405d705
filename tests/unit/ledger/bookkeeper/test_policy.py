"""Where ledgers are placed by chance: never on a bookie that may not, and on one in trouble only
where no other is left."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import Unavailable
from dlog.ledger.bookkeeper.policy import RandomPlacement

BOOKIES = ("a", "b", "c", "d", "e")


class Drawn:
    """Chance that draws these fractions, over and over."""

    def __init__(self, *fractions: float) -> None:
        self._fractions = fractions
        self._at = 0

    def fraction(self) -> float:
        self._at += 1
        return self._fractions[self._at % len(self._fractions)]

    def token(self) -> str:
        return "00" * 16


draws = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=7)
some = st.frozensets(st.sampled_from(BOOKIES))


@settings(max_examples=50)
@given(draws, some, some, st.integers(1, 5))
def test_an_ensemble_has_those_in_trouble_only_where_no_other_is_left(
    fractions: list[float], writable: frozenset[str], avoided: frozenset[str], size: int
) -> None:
    placement = RandomPlacement(Drawn(*fractions))
    given = [*writable, *writable]  # a list that names a bookie twice has it once
    if len(writable) < size:
        with pytest.raises(Unavailable, match="more than the") as caught:
            placement.ensemble(size, writable=given, avoided=avoided)
        assert caught.value.needed == size - len(writable)
        assert list(caught.value.missing) == [f"{size - len(writable)} more bookies"]
        return
    found = placement.ensemble(size, writable=given, avoided=avoided)
    assert len(set(found)) == len(found) == size
    assert set(found) <= writable
    well = writable - avoided
    assert len(avoided.intersection(found)) == max(0, size - len(well))


@settings(max_examples=50)
@given(draws, some, some, some)
def test_a_replacement_is_in_trouble_only_where_no_other_is_left(
    fractions: list[float],
    writable: frozenset[str],
    avoided: frozenset[str],
    excluded: frozenset[str],
) -> None:
    placement = RandomPlacement(Drawn(*fractions))
    found = placement.replacement(excluded=excluded, writable=[*writable], avoided=avoided)
    others = writable - excluded
    if not others:
        assert found is None
    else:
        assert found in (others - avoided or others)


def placed(fractions: Collection[float]) -> tuple[str, ...]:
    return RandomPlacement(Drawn(*fractions)).ensemble(5, writable=BOOKIES)


def test_each_order_is_drawn() -> None:
    """Every bookie may come first, and every pair side by side: none is left out by the shuffle."""
    steps = [0.0, 0.2, 0.4, 0.6, 0.8, 0.99]
    found = {placed((x, y, z, w)) for x in steps for y in steps for z in steps for w in steps}
    assert {order[0] for order in found} == set(BOOKIES)
    assert {frozenset(order[:2]) for order in found} == {
        frozenset(pair) for pair in combinations(BOOKIES, 2)
    }
    assert len(found) == 120


def test_the_same_draws_place_alike_whatever_the_order_of_the_list() -> None:
    placement = [RandomPlacement(Drawn(0.1, 0.7, 0.4)) for _ in range(2)]
    first = placement[0].ensemble(3, writable=BOOKIES)
    assert placement[1].ensemble(3, writable=BOOKIES[::-1]) == first
