"""`dlog hold`: who keeps what from being truncated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from dlog.cli import draw
from dlog.cli.failures import say
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.moments import moment_text
from dlog.cli.places import Place, place
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, only_tells, output_option
from dlog.cli.stream_messages import is_stream
from dlog.errors import NotFound

if TYPE_CHECKING:
    from dlog import StreamHoldSummary

COLUMNS = (
    draw.Column("HOLD"),
    draw.Column("SEQ", number=True),
    draw.Column("WHO"),
    draw.Column("SINCE"),
    draw.Column("MOVED"),
    draw.Column("NOTE"),
)
OF_STREAM = (COLUMNS[0], COLUMNS[2], COLUMNS[3])


@click.group("hold")
def command() -> None:
    """Keep messages from being truncated: what is at a hold, and behind it, stays.

    No retention and no `dlog truncate` goes past a hold; `dlog truncate --force` does. A hold on a
    stream keeps all of it, shards to come included; a hold of the same name on a shard's log says
    how far its holder is there.
    """


@command.command("ls")
@click.argument("log")
@output_option
@common_options
@only_tells
def ls(settings: Settings, log: str, output: str) -> None:
    """List the holds of LOG, or those on a stream as a whole. With -o json, one object a line."""
    with settings.connect() as client:
        if is_stream(client, log):
            _show_stream(client.stream(log).holds(), output)
            return
        found = client.admin.holds(log)
    if output == "json":
        for each in found:
            print_json(each)
        return
    rows = [
        (
            each.name,
            each.seq,
            each.who,
            moment_text(each.since_us),
            moment_text(each.moved_us),
            each.note or "-",
        )
        for each in found
    ]
    draw.table(COLUMNS, rows)


def _show_stream(found: Iterable[StreamHoldSummary], output: str) -> None:
    if output == "json":
        for each in found:
            print_json(each)
        return
    rows = [(each.name, each.who, moment_text(each.since_us)) for each in found]
    draw.table(OF_STREAM, rows)


@command.command("set")
@click.argument("log")
@click.argument("name")
@click.argument("at", type=place, default="earliest")
@click.option("--note", help="What it is for.")
@common_options
def set_(settings: Settings, log: str, name: str, at: Place, note: str | None) -> None:
    """Hold what is AT a place of LOG, and behind it: a new hold, or one that moves forward.

    AT is a seq, a message id, a time, latest, or earliest (which it is when not given). A stream is
    held as a whole, from the earliest on.
    """
    with settings.connect() as client:
        if is_stream(client, log):
            if at != "earliest" or note is not None:
                raise click.UsageError(f"{log} is a stream: it is held as a whole, without a note")
            with INTERRUPTS.step():
                client.stream(log).hold(name)
                print(f"{name} holds the stream {log}, shards to come included")
            return
        with INTERRUPTS.step():
            held = client.admin.hold(log, name, at, note=note)
            print(f"{name} holds {log} from seq {held.seq} on")


@command.command("drop")
@click.argument("log")
@click.argument("name")
@common_options
def drop(settings: Settings, log: str, name: str) -> None:
    """Drop a hold: what it kept may be truncated from now on."""
    with settings.connect() as client:
        whole = is_stream(client, log)
        with INTERRUPTS.step():
            try:  # of a plain log, too: it may be held with what it will be split into
                client.stream(log).drop_hold(name)
            except NotFound:
                if whole:
                    raise
                client.admin.drop_hold(log, name)  # the same, in the words of a log
            say(f"{log} is held by {name} no more")
