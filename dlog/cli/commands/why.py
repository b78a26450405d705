"""`dlog why`: what a log waits for, as it can be seen from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dlog.cli import draw
from dlog.cli.moments import moment_text
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, only_tells, output_option

if TYPE_CHECKING:
    from dlog.admin.why import Diagnosis

COLUMNS = (
    draw.Column("SEGMENT", number=True),
    draw.Column("LEDGER", number=True),
    draw.Column("STATE"),
    draw.Column("EPOCH", number=True),
    draw.Column("READABLE TO", number=True),
    draw.Column("BOOKIES"),
    draw.Column("MISSING"),
)


@click.command("why")
@click.argument("log")
@output_option
@common_options
@only_tells
def command(settings: Settings, log: str, output: str) -> None:
    """Say what LOG waits for, as it can be seen from outside.

    Its holder and whether that one is present, its open ledgers and the bookies they need, its
    holds, and whether the metadata store answers. What waits inside a program, its writer.why()
    and reader.why() say, and the warnings that it logs.
    """
    with settings.connect() as client:
        found = client.admin.why(log)
    if output == "json":
        print_json(found)
        return
    show(found)


def show(found: Diagnosis) -> None:
    draw.fields(
        [
            ("log", found.name),
            ("state", found.state),
            ("epoch", found.epoch),
            ("writer", writer_text(found)),
        ]
    )
    if found.ledgers:
        print()
        draw.table(
            COLUMNS,
            [
                (
                    each.segment,
                    each.ledger_id,
                    each.state,
                    each.epoch,
                    "-" if each.last_readable is None else each.last_readable,
                    ",".join(each.bookies) or "-",
                    ",".join(each.missing) or "-",
                )
                for each in found.ledgers
            ],
        )
    print()
    if not found.reasons:
        print("nothing is in the way, as far as it can be seen from here")
    draw.fields([(reason.code.value, reason.sentence) for reason in found.reasons])


def writer_text(found: Diagnosis) -> str:
    if found.writer is None:
        return "nobody now"
    presence = {True: "present", False: "not present", None: "presence unknown"}[found.present]
    return f"{found.writer.name} ({presence}), since {moment_text(found.writer.since_us)}"
