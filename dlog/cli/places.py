"""Places in a log as people type them: a seq, a message id, a time, or a word for an end of it."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Literal

import click

from dlog.cli.moments import parse_moment, utc_now
from dlog.ids import MessageId

Place = Literal["earliest", "latest"] | int | MessageId | datetime

_SEQ = re.compile(r"[0-9]{1,19}")
_ID = re.compile(r"[0-9]+:[0-9]+:[0-9]+")


def parse_place(text: str, now: datetime) -> Place:
    """`1200`, `12:345:6`, `1h`, `2025-03-01T12:00`, `latest`."""
    if text in ("earliest", "latest"):
        return text  # type: ignore[return-value]
    if _SEQ.fullmatch(text):
        return int(text)
    if _ID.fullmatch(text):
        return MessageId.parse(text)
    try:
        return parse_moment(text, now)
    except ValueError:
        raise ValueError(
            f"{text[:100]!r} is no place: a seq (1200), a message id (12:345:6), a time (1h, "
            "2025-03-01T12:00), or latest"
        ) from None


def place(text: str) -> Place:
    """The same as the type of a click argument."""
    try:
        return parse_place(text, utc_now())
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
