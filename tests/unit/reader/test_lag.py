"""How far a place is behind the tail, for every place of a small log, beside a count of messages
and of the bytes of entries behind it."""

from __future__ import annotations

import pytest

from dlog.meta.listed import Point
from dlog.reader.lag import Lag, lag_of
from tests.unit.reader.small_log import SmallLog, seven_segments

NOW_US = 10_000


def lag(log: SmallLog, next_seq: int, message_bytes: float | None = None) -> Lag:
    view = log.view()
    return log.run(lag_of(view, next_seq, NOW_US, message_bytes))


def evenly(*, sealed: int, open_messages: int = 0, pages: int = 0) -> SmallLog:
    """Segments of four entries of five messages, all of the same size."""
    log = SmallLog()
    for _ in range(sealed):
        log.begin()
        for entry in range(4):
            log.write(*[entry + 1] * 5, size=100)
        log.seal()
    if pages:
        log.page(pages)
    if open_messages:
        log.begin()
        for entry in range(open_messages):
            log.write(50 + entry, size=100)
    return log


def test_messages_are_counted_exactly() -> None:
    log = seven_segments()
    end = len(log.messages)
    for seq in range(end + 1):
        assert lag(log, seq).messages == end - seq
    assert lag(log, end) == lag(log, end + 5) == Lag(0, 0, 0.0)


def test_seconds_are_the_age_of_the_oldest_message_that_is_missing() -> None:
    """By the time of its entry."""
    log = seven_segments()
    first_of_entry: dict[tuple[int, int], int] = {}
    for message in log.messages:
        key = message.id.ledger_id, message.id.entry_id
        time_us = first_of_entry.setdefault(key, message.time_us)
        assert lag(log, message.seq).seconds == pytest.approx((NOW_US - time_us) / 1e6, abs=1e-9)


def test_a_message_of_the_future_is_no_time_behind() -> None:
    log = SmallLog()
    log.begin()
    log.write(NOW_US + 5)
    assert lag(log, 0).seconds == 0.0


@pytest.mark.parametrize("pages", [0, 1, 2, 3])
def test_bytes_of_whole_segments_are_theirs(pages: int) -> None:
    log = evenly(sealed=3, pages=pages)
    sizes = [sum(map(len, log.ledgers[10 * number])) for number in (1, 2, 3)]
    for whole in range(3):
        assert lag(log, 20 * whole).bytes == sum(sizes[whole:])


@pytest.mark.parametrize("pages", [0, 1, 2])
def test_bytes_inside_a_segment_are_the_share_of_its_messages(pages: int) -> None:
    log = evenly(sealed=3, pages=pages)
    size = sum(map(len, log.ledgers[10]))
    for seq in range(61):
        assert lag(log, seq).bytes == pytest.approx(size * (60 - seq) / 20, abs=1)


def test_bytes_of_the_segment_that_is_written_go_by_the_size_of_messages() -> None:
    log = evenly(sealed=1, open_messages=10)
    of_sealed = sum(map(len, log.ledgers[10]))
    for seq in range(31):
        of_open = min(10, 30 - seq)
        rest = of_sealed * (20 - min(seq, 20)) / 20
        assert lag(log, seq).bytes == pytest.approx(of_open * of_sealed / 20 + rest, abs=1)
        assert lag(log, seq, 1000.0).bytes == pytest.approx(of_open * 1000 + rest, abs=1)


def test_bytes_of_a_log_without_sealed_messages_go_by_the_last_entry() -> None:
    log = SmallLog()
    log.begin()
    log.seal()
    log.begin()
    log.write(1, 1, size=50)
    log.write(2, 2, 2, 2, size=200)
    of_message = len(log.ledgers[20][-1]) / 4
    for seq in range(6):
        assert lag(log, seq).bytes == pytest.approx((6 - seq) * of_message, abs=1)


def test_the_newest_sealed_segment_with_messages_says_their_size() -> None:
    """Not one before it, and not one behind it that is empty."""
    log = SmallLog()
    for size in (10, 1000):
        log.begin()
        log.write(1, 1, 1, 1, size=size)
        log.seal()
    log.begin()
    log.seal()
    log.begin()
    log.write(9, 9, size=10)
    of_message = sum(map(len, log.ledgers[20])) / 4
    assert lag(log, 8).bytes == pytest.approx(2 * of_message, abs=1)


def test_bytes_grow_with_the_distance_in_every_log() -> None:
    log = seven_segments()
    end = len(log.messages)
    sizes = [lag(log, seq).bytes for seq in range(end + 1)]
    assert sizes == sorted(sizes, reverse=True)
    all_bytes = sum(len(entry) for entries in log.ledgers.values() for entry in entries)
    assert sizes[0] == pytest.approx(all_bytes, rel=0.2)


def test_what_was_truncated_is_not_behind() -> None:
    log = seven_segments()
    end = len(log.messages)
    whole = [lag(log, seq) for seq in range(end + 1)]
    for seq in (1, 5, 20, end - 1, end):
        log.truncate(Point(seq=seq))
        for start in (0, seq - 1, seq):
            assert lag(log, start) == whole[seq]
