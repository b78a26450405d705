"""What comes of a range beside what was planned: all of it, in order and nothing else; and what is
left of it, where a truncation may be jumped over."""

from __future__ import annotations

import pytest

from dlog.errors import ConfigError, Corrupt
from dlog.options import OnTruncated
from dlog.reader.message import MessageBatch
from dlog.reader.places import Place
from dlog.reader.ranges import LedgerPart, LedgerRange, RangeCount, options_of_range
from dlog.wire.batch import decode, encode

PARTS = (LedgerPart(3, 30, 4, 1, 9, 100, 6, 600), LedgerPart(4, 40, 2, 0, 5, 106, 4, 50))
RANGE = LedgerRange("orders", "uid", PARTS)


def batch(first_seq: int, count: int) -> MessageBatch:
    entry = decode(b"".join(encode([b"x"] * count, first_seq=0, timestamp_us=0)), where="here")
    return MessageBatch(
        entry,
        ledger_id=30,
        entry_id=7,
        epoch=1,
        entry_seq=first_seq,
        start=0,
        end=count,
        size=10,
    )


def counted(*runs: tuple[int, int], on_truncated: OnTruncated = "raise") -> None:
    count = RangeCount(RANGE, on_truncated)
    for first_seq, messages in runs:
        count.take(batch(first_seq, messages))
    count.end()


def test_a_range_sums_up_its_parts() -> None:
    assert (RANGE.first_seq, RANGE.next_seq, RANGE.messages, RANGE.bytes) == (100, 110, 10, 650)
    assert RANGE.place == Place(3, 4, 1, 100)
    assert RANGE.last_entry == (4, 5)
    assert [part.next_seq for part in PARTS] == [106, 110]


@pytest.mark.parametrize(
    ("parts", "told"),
    [(1, "30"), (2, "30, 40"), (3, "30, 40, 50"), (4, "30, 40, 50 and 1 more"),
     (6, "30, 40, 50 and 3 more")],
)  # fmt: skip
def test_a_range_names_its_first_ledgers(parts: int, told: str) -> None:
    many = tuple(LedgerPart(i, 10 * i, 1, 0, 2, i, 1, 5) for i in range(3, 3 + parts))
    text = f"{parts} messages of log 'orders' from seq 3 on (ledgers {told})"
    assert str(LedgerRange("orders", "uid", many)) == text


@pytest.mark.parametrize("on_truncated", ["raise", "jump"])
def test_what_was_planned_is_taken(on_truncated: OnTruncated) -> None:
    counted((100, 10), on_truncated=on_truncated)
    counted((100, 1), (101, 4), (105, 5), on_truncated=on_truncated)


@pytest.mark.parametrize(
    "runs",
    [
        [(99, 1)],
        [(100, 1), (100, 1)],
        [(100, 3), (102, 1)],
        [(100, 11)],
        [(100, 10), (110, 1)],
        [(109, 2)],
    ],
)
@pytest.mark.parametrize("on_truncated", ["raise", "jump"])
def test_what_comes_twice_or_was_not_planned_is_corrupt(
    runs: list[tuple[int, int]], on_truncated: OnTruncated
) -> None:
    with pytest.raises(Corrupt, match="what was planned as 10 messages") as told:
        counted(*runs, on_truncated=on_truncated)
    assert (told.value.about["ledger_id"], told.value.about["entry_id"]) == (30, 7)


@pytest.mark.parametrize(
    "runs", [[(101, 9)], [(100, 2), (103, 7)], [(100, 9)], [(100, 1), (108, 2)], [(105, 2)], []]
)
def test_what_is_missing_is_corrupt_unless_it_may_have_been_truncated(
    runs: list[tuple[int, int]],
) -> None:
    with pytest.raises(Corrupt, match="messages"):
        counted(*runs)
    counted(*runs, on_truncated="jump")


def test_the_end_of_a_range_is_followed_to_and_nothing_else() -> None:
    assert options_of_range(RANGE, {"read_ahead_bytes": 5}).follow is True
    assert options_of_range(RANGE, {"read_ahead_bytes": 5}).read_ahead_bytes == 5
    with pytest.raises(ConfigError, match="cannot be followed"):
        options_of_range(RANGE, {"follow": True})
    for wrong in (LedgerRange("orders", "uid", ()), None, "orders"):
        with pytest.raises(ConfigError, match=r"what admin\.plan_ranges gives"):
            options_of_range(wrong, {})  # type: ignore[arg-type]


@pytest.mark.parametrize("gap", [1, 2, 5])
def test_a_gap_is_told_before_what_stands_behind_it_is_handed_out(gap: int) -> None:
    count = RangeCount(RANGE)
    count.take(batch(100, 2))
    with pytest.raises(Corrupt, match=f"messages {102 + gap} to {102 + gap} came where 102 was"):
        count.take(batch(102 + gap, 1))
