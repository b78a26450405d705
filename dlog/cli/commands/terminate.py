"""`dlog terminate`: the end of writing, for good. What is there stays readable."""

from __future__ import annotations

import click

from dlog.cli.agreed import agreed
from dlog.cli.failures import say
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.shared import Settings, common_options


@click.command("terminate")
@click.argument("log")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@common_options
def command(settings: Settings, log: str, yes: bool) -> None:
    """End LOG: it takes no more messages from anybody, for good.

    A writer is fenced; readers that follow come to their end behind the last message. What is there
    stays readable until it is truncated or removed. Without --yes it asks on a terminal and refuses
    elsewhere.
    """
    with settings.connect() as client:
        found = client.admin.describe(log)
        say(
            f"terminating {log}: {found.messages} messages stay, "
            f"writer: {'nobody now' if found.writer is None else found.writer.name}"
        )
        agreed(yes, f"Terminate {log} for good?", otherwise="nothing was terminated")
        with INTERRUPTS.step():
            client.admin.terminate(log)
            say(f"{log} is terminated")
