"""`dlog rm`: the end of a log. It shows what would go, and does it when told to."""

from __future__ import annotations

import click

from dlog.cli.agreed import agreed
from dlog.cli.failures import say
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
        agreed(yes, f"Remove {log} for good?", otherwise="nothing was removed")
        client.admin.remove(log)
        say(f"{log} is removed")
