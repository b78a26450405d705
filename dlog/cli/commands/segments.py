"""`dlog segments`: where the messages of a log lie, oldest segment first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dlog.cli import draw
from dlog.cli.moments import moment_text, size_text
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, only_tells, output_option

if TYPE_CHECKING:
    from dlog import SegmentSummary

COLUMNS = (
    draw.Column("SEGMENT", number=True),
    draw.Column("LEDGER", number=True),
    draw.Column("STATE"),
    draw.Column("EPOCH", number=True),
    draw.Column("FIRST SEQ", number=True),
    draw.Column("NEXT SEQ", number=True),
    draw.Column("LAST ENTRY", number=True),
    draw.Column("BYTES", number=True),
    draw.Column("FROM"),
    draw.Column("TO"),
)


@click.command("segments")
@click.argument("log")
@output_option
@common_options
@only_tells
def command(settings: Settings, log: str, output: str) -> None:
    """List the segments of LOG, the oldest first.

    What the log meta does not know yet (of a segment that is still written) shows as `-`.
    With -o json, one object a line.
    """
    with settings.connect() as client:
        found = client.admin.segments(log)
    if output == "json":
        for each in found:
            print_json(each)
        return
    show(found)


def show(found: Sequence[SegmentSummary]) -> None:
    draw.table(
        COLUMNS,
        [
            (
                each.number,
                each.ledger_id,
                each.state,
                each.epoch,
                "-" if each.base_seq is None else each.base_seq,
                "-" if each.next_seq is None else each.next_seq,
                "-" if each.last_entry is None else each.last_entry,
                size_text(each.bytes),
                moment_text(each.first_time_us),
                moment_text(each.last_time_us),
            )
            for each in found
        ],
    )
