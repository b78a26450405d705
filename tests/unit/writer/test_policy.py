"""When a log's own limits advise to rotate: each of them by itself, below, at and above a bound."""

from __future__ import annotations

import pytest

from dlog import limits
from dlog.options import LogOptions
from dlog.writer.policy import Advice, BySizeAndAge

BYTES, AGE_S, ENTRIES = 10_000, 100, limits.SEGMENT_ENTRIES_MAX
POLICY = BySizeAndAge(LogOptions(segment_bytes=BYTES, segment_age_s=AGE_S))
STAY, PREPARE, ROTATE, WAIT = Advice


@pytest.mark.parametrize(
    ("segment_bytes", "entries", "age_s", "advice"),
    [
        (1, 1, 0.0, STAY),
        # each limit alone
        (7_999, 1, 0.0, STAY),
        (8_000, 1, 0.0, PREPARE),
        (9_999, 1, 0.0, PREPARE),
        (10_000, 1, 0.0, ROTATE),
        (19_999, 1, 0.0, ROTATE),
        (20_000, 1, 0.0, WAIT),
        (1, ENTRIES * 79 // 100, 0.0, STAY),
        (1, ENTRIES * 81 // 100, 0.0, PREPARE),
        (1, ENTRIES - 1, 0.0, PREPARE),
        (1, ENTRIES, 0.0, ROTATE),
        (1, 2 * ENTRIES - 1, 0.0, ROTATE),
        (1, 2 * ENTRIES, 0.0, WAIT),
        (1, 1, 79.9, STAY),
        (1, 1, 80.0, PREPARE),
        (1, 1, 99.9, PREPARE),
        (1, 1, 100.0, ROTATE),
        # however old it is, messages never wait for a segment's age
        (1, 1, 200.0, ROTATE),
        (1, 1, 1e9, ROTATE),
        # the strictest of them counts
        (8_000, 1, 100.0, ROTATE),
        (10_000, 1, 80.0, ROTATE),
        (7_999, 1, 79.9, STAY),
        (20_000, 1, 1e9, WAIT),
    ],
)
def test_advice(segment_bytes: int, entries: int, age_s: float, advice: Advice) -> None:
    told = POLICY.advise(segment_bytes=segment_bytes, entries=entries, age_s=age_s)
    assert told is advice
