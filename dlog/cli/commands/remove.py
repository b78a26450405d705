"""`dlog rm`: the end of a log. It shows what would go, and does it when told to."""

from __future__ import annotations

import sys

import click

from dlog.cli.escape import printable
from dlog.cli.failures import USAGE, Told, say
from dlog.cli.shared import Settings, common_options


@click.command("rm")
@click.argument("log")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@common_options
def command(settings: Settings, log: str, yes: bool) -> None:
    """Remove LOG and all its messages, for good.

    First it shows what would go. Without --yes it asks on a terminal and refuses elsewhere.
    """
    with settings.connect() as client:
        found = client.admin.describe(log)
        say(
            f"removing {log}: {found.messages} messages in {len(found.segments)} segments, "
            f"writer: {'nobody now' if found.writer is None else found.writer.name}"
        )
        if not yes:
            if not sys.stdin.isatty():
                raise Told("nothing was removed; add --yes to do it", USAGE)
            if not click.confirm(f"Remove {printable(log)} for good?", err=True):
                raise Told("nothing was removed")
        client.admin.remove(log)
        say(f"{log} is removed")
