"""`dlog create`: a new, empty log. Writing to a log that is not there creates it as well; this is
for giving it options of its own."""

from __future__ import annotations

from datetime import timedelta

import click

from dlog.cli import moments
from dlog.cli.shared import Settings, common_options
from dlog.errors import AlreadyExists
from dlog.options import DIGESTS


@click.command("create")
@click.argument("log")
@click.option("--segment-bytes", type=moments.size, metavar="SIZE", help="Rotate at, as 64M.")
@click.option("--segment-age", type=moments.span, metavar="SPAN", help="Rotate after, as 4h.")
@click.option("--ensemble", type=int, metavar="N", help="Copies of each entry (on a cluster).")
@click.option("--ack-quorum", type=int, metavar="N", help="Copies confirmed before an ack.")
@click.option("--digest", type=click.Choice(DIGESTS), help="How bookies' entries are checked.")
@click.option("--unsafe-single-copy", is_flag=True, help="Allow --ack-quorum 1.")
@click.option("--retention-age", type=moments.span, metavar="SPAN", help="Keep for, as 7d.")
@click.option("--retention-bytes", type=moments.size, metavar="SIZE", help="Keep of it, as 10G.")
@click.option(
    "--deletion-grace", type=moments.span, metavar="SPAN", help="Delete what was truncated after."
)
@click.option("--exist-ok", is_flag=True, help="Succeed if there is such a log already.")
@common_options
def command(
    settings: Settings,
    log: str,
    segment_bytes: int | None,
    segment_age: timedelta | None,
    ensemble: int | None,
    ack_quorum: int | None,
    digest: str | None,
    unsafe_single_copy: bool,
    retention_age: timedelta | None,
    retention_bytes: int | None,
    deletion_grace: timedelta | None,
    exist_ok: bool,
) -> None:
    """Create LOG, with options that hold for every writer of it."""
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
    with settings.connect() as client:
        try:
            client.admin.create(log, **{k: v for k, v in options.items() if v is not None})
        except AlreadyExists:
            if not exist_ok:
                raise


def _seconds(span: timedelta | None) -> int | None:
    return None if span is None else int(span.total_seconds())
