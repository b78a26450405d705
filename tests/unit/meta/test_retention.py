"""What a log's options no longer keep, over pages and segments of many shapes, beside a walk that
looks at one segment after the other."""

from __future__ import annotations

import itertools

import pytest

from dlog.meta.layout import Layout
from dlog.meta.listed import Point
from dlog.meta.retention import SECOND_US, find_point, is_limited
from dlog.options import LogOptions
from tests.unit.reader.small_log import NAME, SmallLog, with_options

NOW_US = 1_000 * SECOND_US


def log_of(pages: str, **options: int | None) -> SmallLog:
    """Nine sealed segments that end at seconds 10, 20 … 90, and one that is written."""
    log = with_options(SmallLog(), **options)
    for number in range(1, 10):
        log.begin(at_us=(10 * number - 5) * SECOND_US)
        log.write(10 * number * SECOND_US, size=100 if number % 3 else 10)
        if number % 4 == 0:
            log.write(10 * number * SECOND_US, size=700)
        log.seal()
    for count in map(int, pages):
        log.page(count)
    if pages == "33":
        log.page_of_pages(2)
    log.begin()
    log.write(95 * SECOND_US, size=50)
    return log


def wanted_seq(whole: SmallLog, now_us: int, age_s: int | None, most: int | None) -> int:
    """The oldest segments that are too old, or whose bytes the rest does not need."""
    seq = 0
    sizes = [0 if s.sealed is None else s.sealed.bytes for s in whole.meta.segments]
    for number, segment in enumerate(whole.meta.segments):
        end = segment.sealed
        if end is None:
            return seq
        too_old = age_s is not None and end.last_time_us < now_us - age_s * SECOND_US
        too_much = most is not None and sum(sizes[number + 1 :]) >= most
        if not too_old and not too_much:
            return seq
        seq = end.next_seq
    return seq


AGES = [None, 1, 904, 905, 909, 910, 911, 930, 950, 989, 990, 991, 1000]
WHOLE = log_of("")
SIZES = [s.sealed.bytes for s in WHOLE.meta.segments if s.sealed is not None]
LEFT = [sum(SIZES[number:]) for number in range(len(SIZES) + 1)]
MOST = [None, 0, 1, *(left + off for left in LEFT[:8:2] for off in (-1, 0, 1))]


@pytest.mark.parametrize("pages", ["", "1", "3", "33", "333"])
def test_what_is_too_old_or_too_much_goes_whatever_page_it_is_in(pages: str) -> None:
    for age_s, most in itertools.product(AGES, MOST):
        if age_s is not None and most is not None and age_s % 5:
            continue  # some pairs will do
        log = log_of(pages, retention_age_s=age_s, retention_bytes=most)
        point = log.run(find_point(NAME, Layout(), log.meta, NOW_US))
        assert point == Point(seq=wanted_seq(WHOLE, NOW_US, age_s, most)), (age_s, most)


def test_a_page_that_stays_as_a_whole_is_not_read() -> None:
    log = log_of("333", retention_age_s=2000)
    log.run(find_point(NAME, Layout(), log.meta, NOW_US))
    assert log.asked == []
    log = log_of("333", retention_bytes=LEFT[4])
    log.run(find_point(NAME, Layout(), log.meta, NOW_US))
    assert len(log.asked) == 1


def test_a_point_that_is_further_stays() -> None:
    log = log_of("3", retention_age_s=950)
    log.truncate(Point(seq=8))
    assert log.run(find_point(NAME, Layout(), log.meta, NOW_US)) == Point(seq=8)


@pytest.mark.parametrize(
    ("options", "limited"),
    [
        ({}, False),
        ({"retention_age_s": 1}, True),
        ({"retention_bytes": 0}, True),
        ({"retention_age_s": 1, "retention_bytes": 1}, True),
    ],
)
def test_whether_there_is_a_limit(options: dict[str, int], limited: bool) -> None:
    assert is_limited(LogOptions(**options)) is limited  # type: ignore[arg-type]
