"""A number of a producer that failed is sent again before any later one."""

from __future__ import annotations

import pytest

from dlog.errors import Outcome, Retry
from dlog.streams.gaps import Gaps

ANA, BOB = 1, 2


def _refused(gaps: Gaps, producer: int, *numbers: int) -> list[int]:
    return [number for number in numbers if gaps.error((producer, number)) is not None]


def test_numbers_behind_one_that_failed_are_refused_until_it_is_sent_again() -> None:
    gaps = Gaps()
    assert _refused(gaps, ANA, 0, 5, 9) == []
    gaps.add((ANA, 5))
    assert _refused(gaps, ANA, 4, 5, 6, 9) == [6, 9]
    assert _refused(gaps, BOB, 6) == [], "of another producer"
    gaps.close((ANA, 6))
    assert _refused(gaps, ANA, 6) == [6], "5 was not sent again"
    gaps.close((ANA, 5))
    assert _refused(gaps, ANA, 6, 9) == []


@pytest.mark.parametrize("order", [(5, 7), (7, 5)])
def test_the_first_of_several_that_failed_counts(order: tuple[int, int]) -> None:
    gaps = Gaps()
    for number in order:
        gaps.add((ANA, number))
    assert _refused(gaps, ANA, 5, 6, 8) == [6, 8]


def test_what_is_refused_was_not_sent_and_names_its_producer() -> None:
    gaps = Gaps()
    gaps.add((ANA, 5))
    error = gaps.error((ANA, 6))
    assert error is not None
    assert (error.outcome, error.retry) == (Outcome.NOT_HAPPENED, Retry.AFTER_REOPEN)
    assert error.producer == ANA
    assert "number 5" in error.message
