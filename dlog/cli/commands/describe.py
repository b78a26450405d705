"""`dlog describe`: all that is known about a log, for people or as JSON."""

from __future__ import annotations

import click

from dlog.cli import draw
from dlog.cli.commands import segments
from dlog.cli.moments import moment_text, size_text
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, only_tells, output_option


@click.command("describe")
@click.argument("log")
@output_option
@common_options
@only_tells
def command(settings: Settings, log: str, output: str) -> None:
    """Say everything about LOG: state, writer, options, head, tail and segments."""
    with settings.connect() as client:
        found = client.admin.describe(log)
    if output == "json":
        print_json(found)
        return
    writer = "nobody now"
    if found.writer is not None:
        writer = f"{found.writer.name}, since {moment_text(found.writer.since_us)}"
    pairs: list[tuple[str, object]] = [
        ("log", found.name),
        ("uid", found.uid),
        ("state", found.state),
        ("epoch", found.epoch),
        ("writer", writer),
        ("messages", found.messages),
        ("bytes", f"{size_text(found.bytes)} in closed segments"),
        ("head", f"seq {found.head_seq}"),
        (
            "tail",
            "nothing yet" if found.tail is None else f"{found.tail}, seq {found.next_seq - 1}",
        ),
        ("last message", moment_text(found.last_time_us)),
        ("options", " ".join(f"{name}={value}" for name, value in found.options.items())),
        ("next segment", found.next_number),
        ("ledger id floor", found.ledger_floor),
    ]
    if found.hand_over is not None:
        pairs.append(("handed over to", found.hand_over))
    if found.truncate_before is not None:
        pairs.append(("truncated before", found.truncate_before))
    for hold in found.holds:
        about = f"from seq {hold.seq} on, by {hold.who} since {moment_text(hold.since_us)}"
        pairs.append((f"hold {hold.name}", about if hold.note is None else f"{about}: {hold.note}"))
    if found.deleting or found.deleting_pages:
        waiting = ", ".join(map(str, found.deleting)) or "whole pages"
        pairs.append(("being deleted", waiting))
    draw.fields(pairs)
    print()
    segments.show(found.segments)
