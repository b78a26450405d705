"""`dlog create`: a new, empty log. Writing to a log that is not there creates it as well; this is
for giving it options of its own."""

from __future__ import annotations

from datetime import timedelta

import click

from dlog.cli import moments
from dlog.cli.shared import Settings, common_options
from dlog.errors import AlreadyExists


@click.command("create")
@click.argument("log")
@click.option("--segment-bytes", type=moments.size, metavar="SIZE", help="Rotate at, as 64M.")
@click.option("--segment-age", type=moments.span, metavar="SPAN", help="Rotate after, as 4h.")
@click.option("--ensemble", type=int, metavar="N", help="Copies of each entry (on a cluster).")
@click.option("--ack-quorum", type=int, metavar="N", help="Copies confirmed before an ack.")
@click.option("--exist-ok", is_flag=True, help="Succeed if there is such a log already.")
@common_options
def command(
    settings: Settings,
    log: str,
    segment_bytes: int | None,
    segment_age: timedelta | None,
    ensemble: int | None,
    ack_quorum: int | None,
    exist_ok: bool,
) -> None:
    """Create LOG, with options that hold for every writer of it."""
    options = {
        "segment_bytes": segment_bytes,
        "segment_age_s": None if segment_age is None else int(segment_age.total_seconds()),
        "ensemble": ensemble,
        "write_quorum": ensemble,  # a log keeps every entry on all bookies of its ensemble
        "ack_quorum": ack_quorum,
    }
    with settings.connect() as client:
        try:
            client.admin.create(log, **{k: v for k, v in options.items() if v is not None})
        except AlreadyExists:
            if not exist_ok:
                raise
