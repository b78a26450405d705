"""`dlog rm`: the end of a log. It shows what would go, and does it when told to."""

from __future__ import annotations

import click

from dlog.cli.agreed import agreed
from dlog.cli.failures import say
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.shared import Settings, common_options
from dlog.errors import NotFound


@click.command("rm")
@click.argument("log")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@common_options
def command(settings: Settings, log: str, yes: bool) -> None:
    """Remove LOG and all its messages, for good.

    First it shows what would go. Without --yes it asks on a terminal and refuses elsewhere. A
    removal that was cut short goes on when it is run again with --yes.
    """
    with settings.connect() as client:
        try:
            found = client.admin.describe(log)
        except NotFound:  # unless an earlier run did not come to its end
            if not yes:
                raise
        else:
            say(
                f"removing {log}: {found.messages} messages in {len(found.segments)} segments, "
                f"writer: {'nobody now' if found.writer is None else found.writer.name}"
            )
        agreed(yes, f"Remove {log} for good?", otherwise="nothing was removed")
        with INTERRUPTS.step():
            client.admin.remove(log)
            say(f"{log} is removed")
