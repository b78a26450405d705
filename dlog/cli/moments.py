"""Times and sizes as people type them: `1h`, `2025-03-01T12:00`, `64M`."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import click

from dlog import reason
from dlog.clock import us_datetime

Value = TypeVar("Value")

_CHARS_MAX = 100
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")
_SPAN_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def utc_now() -> datetime:
    return datetime.now(UTC)


def parse_span(text: str) -> timedelta:
    """`90s`, `1.5h`, `1h30m`."""
    # Searched for a unit from each of its digits, a long text takes the square of its length.
    parts = list(_SPAN.finditer(text)) if len(text) <= _CHARS_MAX else []
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError(f"{text[:_CHARS_MAX]!r} is not a span of time, as 90s, 15m, 1h30m or 2d")
    try:
        return timedelta(seconds=sum(float(part[1]) * _SPAN_SECONDS[part[2]] for part in parts))
    except OverflowError:
        raise ValueError(f"{text!r} is longer than any time") from None


def parse_moment(text: str, now: datetime) -> datetime:
    """A span counts back from now; else ISO 8601, in local time where it names no zone."""
    try:
        return now - parse_span(text)
    except ValueError as not_a_span:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(
                f"{text!r} is neither a span of time (90s, 15m, 1h) nor an ISO 8601 time "
                "(2025-03-01T12:00+01:00)"
            ) from not_a_span
        try:
            return found if found.tzinfo is not None else found.astimezone()
        except (OverflowError, OSError, ValueError):
            raise ValueError(f"{text!r} is outside the years a clock can tell") from None
    except OverflowError:
        raise ValueError(f"{text!r} is before all time") from None


def parse_size(text: str) -> int:
    """`1000`, `64K`, `1.5MiB`: powers of 1024."""
    found = _SIZE.fullmatch(text.strip()) if len(text) <= _CHARS_MAX else None
    if found is None:
        raise ValueError(f"{text[:_CHARS_MAX]!r} is not a size, as 4096, 64K or 1.5M")
    return int(float(found[1]) * _SIZE_FACTORS[found[2].lower()])


def moment_text(at_us: int | None) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC, milliseconds shown; `-` for none."""
    if at_us is None:
        return "-"
    try:
        moment = us_datetime(at_us)
    except OverflowError:
        return f"{at_us}us"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size_text(size_bytes: int | None) -> str:
    """Bytes for people: `1.5 MiB`; `-` for unknown."""
    return "-" if size_bytes is None else reason.size_text(size_bytes)


# The same as types of click options. An error raised by a function type would lose its text, unless
# it is click's own.


def moment(text: str) -> datetime:
    return _convert(lambda given: parse_moment(given, utc_now()), text)


def span(text: str) -> timedelta:
    return _convert(parse_span, text)


def size(text: str) -> int:
    return _convert(parse_size, text)


def _convert(parse: Callable[[str], Value], text: str) -> Value:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
