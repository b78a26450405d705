"""Times and sizes as people type and read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dlog.cli.moments import moment_text, parse_moment, parse_size, parse_span, size_text

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("250ms", 0.25),
        ("1w", 604800),
    ],
)
def test_spans(text: str, seconds: float) -> None:
    assert parse_span(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "1", "h", "1y", "-1h", "1h 30m", "1hx", "9" * 400 + "d", "9" * 99 + "d"]
)
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="time") as caught:
        parse_span(text)
    assert len(str(caught.value)) < 200


def test_a_span_counts_back_from_now() -> None:
    assert parse_moment("1h", NOW) == datetime(2025, 3, 1, 11, tzinfo=UTC)


def test_iso_times_with_and_without_a_zone() -> None:
    assert parse_moment("2025-03-01T12:00+01:00", NOW) == datetime(2025, 3, 1, 11, tzinfo=UTC)
    local = parse_moment("2025-03-01T12:00", NOW)
    assert local == datetime(2025, 3, 1, 12).astimezone()
    assert local.tzinfo is not None


@pytest.mark.parametrize("text", ["yesterday", "2025-13-01", "99999999w", "0001-01-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"time|clock"):
        parse_moment(text, NOW)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("64K", 65_536), ("1.5MiB", 1_572_864), ("1g", 1 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "-1", "1X", "1e3", "9" * 400])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size") as caught:
        parse_size(text)
    assert len(str(caught.value)) < 200


def test_sizes_for_people() -> None:
    assert [size_text(n) for n in (None, 0, 1023, 1024, 1536, 5 << 20, 3 << 40, 1 << 52)] == [
        "-", "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3.0 TiB", "4096.0 TiB",
    ]  # fmt: skip


def test_times_for_people() -> None:
    assert moment_text(None) == "-"
    assert moment_text(0) == "1970-01-01T00:00:00.000Z"
    assert moment_text(1_700_000_000_123_456) == "2023-11-14T22:13:20.123Z"
    assert moment_text(1 << 62) == f"{1 << 62}us"  # beyond the years a clock can tell
