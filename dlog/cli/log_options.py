"""The options of logs that are made: one log by `dlog create`, or all of a stream."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click

from dlog.cli import moments
from dlog.cli.shared import Function
from dlog.options import DIGESTS


def log_options(function: Function) -> Callable[..., Any]:
    """Adds them, handed to the command as one `log_options`: those that were given."""

    @click.option("--segment-bytes", type=moments.size, metavar="SIZE", help="Rotate at, as 64M.")
    @click.option("--segment-age", type=moments.span, metavar="SPAN", help="Rotate after, as 4h.")
    @click.option("--ensemble", type=int, metavar="N", help="Copies of each entry (on a cluster).")
    @click.option("--ack-quorum", type=int, metavar="N", help="Copies confirmed before an ack.")
    @click.option("--digest", type=click.Choice(DIGESTS), help="How bookies' entries are checked.")
    @click.option("--unsafe-single-copy", is_flag=True, help="Allow --ack-quorum 1.")
    @click.option("--retention-age", type=moments.span, metavar="SPAN", help="Keep for, as 7d.")
    @click.option("--retention-bytes", type=moments.size, metavar="SIZE", help="Keep, as 10G.")
    @click.option(
        "--deletion-grace",
        type=moments.span,
        metavar="SPAN",
        help="Delete what was truncated after.",
    )
    @functools.wraps(function)
    def wrapped(
        segment_bytes: int | None,
        segment_age: timedelta | None,
        ensemble: int | None,
        ack_quorum: int | None,
        digest: str | None,
        unsafe_single_copy: bool,
        retention_age: timedelta | None,
        retention_bytes: int | None,
        deletion_grace: timedelta | None,
        **rest: Any,
    ) -> Any:
        options = {
            "segment_bytes": segment_bytes,
            "segment_age_s": _seconds(segment_age),
            "ensemble": ensemble,
            "write_quorum": ensemble,  # a log keeps every entry on all bookies of its ensemble
            "ack_quorum": ack_quorum,
            "digest": digest,
            "unsafe_single_copy": unsafe_single_copy or None,
            "retention_age_s": _seconds(retention_age),
            "retention_bytes": retention_bytes,
            "deletion_grace_s": _seconds(deletion_grace),
        }
        given = {name: value for name, value in options.items() if value is not None}
        return function(log_options=given, **rest)

    return wrapped


def _seconds(span: timedelta | None) -> int | None:
    return None if span is None else int(span.total_seconds())
