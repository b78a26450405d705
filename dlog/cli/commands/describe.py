"""`dlog describe`: all that is known about a log, for people or as JSON."""

from __future__ import annotations

import click

from dlog.cli import draw
from dlog.cli.commands import segments
from dlog.cli.moments import moment_text, size_text
from dlog.cli.plain import plain, print_json
from dlog.cli.shared import Settings, common_options, output_option


@click.command("describe")
@click.argument("log")
@output_option
@common_options
def command(settings: Settings, log: str, output: str) -> None:
    """Say everything about LOG: state, writer, options, head, tail and segments."""
    with settings.connect() as client:
        found = client.admin.describe(log)
    if output == "json":
        print_json(found)
        return
    writer = found.writer
    told = "nobody yet"
    if writer is not None:
        told = f"{writer.name}, since {moment_text(writer.since_us)}"
    draw.fields(
        [
            ("log", found.name),
            ("uid", found.uid),
            ("state", found.state),
            ("epoch", found.epoch),
            ("writer", told),
            ("messages", "-" if found.messages is None else found.messages),
            ("bytes", size_text(found.bytes)),
            ("head", "-" if found.head is None else found.head),
            ("tail", "-" if found.tail is None else found.tail),
            ("next seq", "-" if found.next_seq is None else found.next_seq),
            ("last message", moment_text(found.last_time_us)),
            ("options", _pairs(plain(found.options))),
            ("end of the sealed", _pairs(plain(found.end))),
            ("ledger id floor", found.ledger_floor),
            ("being deleted", ", ".join(map(str, found.deleting)) or "nothing"),
        ]
    )
    print()
    segments.show(found.segments)


def _pairs(told: object) -> str:
    if not isinstance(told, dict):
        return str(told)
    return " ".join(f"{name}={value}" for name, value in told.items())
