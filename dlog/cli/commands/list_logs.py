"""`dlog ls`: the logs whose names begin with a prefix, a line each."""

from __future__ import annotations

import click

from dlog.cli import draw
from dlog.cli.failures import OK, Told
from dlog.cli.lost import unlisted_told
from dlog.cli.moments import moment_text, size_text
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, only_tells, output_option

COLUMNS = (
    draw.Column("LOG"),
    draw.Column("STATE"),
    draw.Column("EPOCH", number=True),
    draw.Column("SEGMENTS", number=True),
    draw.Column("MESSAGES", number=True),
    draw.Column("SEALED", number=True),
    draw.Column("LAST"),
    draw.Column("WRITER"),
)


@click.command("ls")
@click.argument("prefix", default="")
@output_option
@common_options
@only_tells
def command(settings: Settings, prefix: str, output: str) -> int:
    """List the logs, or those whose names begin with PREFIX.

    SEALED is the size of the segments that are closed for good. With -o json, one object a line.
    The exit code is 1 where no log is known and ledgers of logs are there all the same.
    """
    with settings.connect() as client:
        found = client.admin.list(prefix)
        lost = None if found else unlisted_told(client, prefix)
    if lost is not None:
        raise Told(f"no log is listed, and {lost}")
    if output == "json":
        for each in found:
            print_json(each)
        return OK
    rows = [
        (
            each.name,
            each.state,
            each.epoch,
            each.segments,
            each.messages,
            size_text(each.bytes),
            moment_text(each.last_time_us),
            each.writer or "-",
        )
        for each in found
    ]
    draw.table(COLUMNS, rows)
    return OK
