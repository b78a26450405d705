"""Which part of a log: the options that say where to begin and where to stop, of all commands that
read messages."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, NamedTuple

import click

from dlog.cli import moments
from dlog.cli.shared import Function
from dlog.errors import FormatError
from dlog.ids import MessageId

Start = Literal["earliest"] | int | datetime | MessageId | None
SEQS = re.compile(r"([0-9]{1,19})?:([0-9]{1,19})?")


class Window(NamedTuple):
    """From `start` up to `end` (exclusive); None: nothing was said."""

    start: Start
    end: int | datetime | None


def window_options(function: Function) -> Callable[..., Any]:
    """Adds --since, --until, --from and --seqs."""

    @click.option(
        "--since", type=moments.moment, metavar="TIME", help="Begin there: 1h, or ISO 8601."
    )
    @click.option("--until", type=moments.moment, metavar="TIME", help="Stop there, exclusively.")
    @click.option("--from", "from_id", metavar="ID", help="Begin at this message id, as 12:345:6.")
    @click.option(
        "--seqs", metavar="A:B", help="From seq A up to B, exclusively; either may be left."
    )
    @functools.wraps(function)
    def wrapped(**given: Any) -> Any:
        return function(**given)

    return wrapped


def window_of(
    since: datetime | None, until: datetime | None, from_id: str | None, seqs: str | None
) -> Window:
    first, end = _seqs(seqs)
    begun = [each for each in (since, from_id, first) if each is not None]
    if len(begun) > 1 or (until is not None and end is not None):
        raise click.UsageError("one beginning and one end: --since, --from or A:; --until or :B")
    if from_id is not None:
        try:
            start: Start = MessageId.parse(from_id)
        except FormatError as error:
            raise click.UsageError(error.message) from None
    else:
        start = since if since is not None else first
    stop = until if until is not None else end
    if start is None and (stop is not None or seqs is not None):
        start = "earliest"
    return Window(start, stop)


def _seqs(text: str | None) -> tuple[int | None, int | None]:
    if text is None:
        return None, None
    found = SEQS.fullmatch(text)
    if found is None:
        raise click.UsageError(f"a range of seqs reads A:B, A: or :B, not {text!r}")
    first, end = (None if part is None else int(part) for part in found.groups())
    if first is not None and end is not None and first > end:
        raise click.UsageError(f"a range of seqs begins before it ends, unlike {text}")
    return first, end
