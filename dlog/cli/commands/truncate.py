"""`dlog truncate`: let a log begin later. It shows what would go, and does it when told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dlog.cli.agreed import agreed
from dlog.cli.failures import say
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.moments import size_text
from dlog.cli.places import Place, place
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, output_option

if TYPE_CHECKING:
    from dlog import Truncation


@click.command("truncate")
@click.argument("log")
@click.argument("before", type=place)
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@click.option("--force", is_flag=True, help="Whatever holds say; those that it overruns are named.")
@output_option
@common_options
def command(
    settings: Settings, log: str, before: Place, yes: bool, force: bool, output: str
) -> None:
    """Let LOG begin at BEFORE: what is there stays, what is before it is gone.

    BEFORE is a seq (1200), a message id (12:345:6), a time (7d, 2025-03-01T12:00), or latest: then
    everything goes that is there now. First it shows what would go. Without --yes it asks on a
    terminal and refuses elsewhere. Ledgers are deleted by `dlog gc`, after the log's grace.
    """
    with settings.connect() as client:
        verb = client.admin.force_truncate if force else client.admin.truncate
        plan = verb(log, before, dry_run=True)
        say(f"truncating {log} before {plan.asked}: {_told(plan)}")
        agreed(
            yes,
            f"Truncate {log} before {plan.asked} for good?",
            otherwise="nothing was truncated",
        )
        with INTERRUPTS.step():
            told = verb(log, before)
            if output == "json":
                print_json(told)
            else:
                print(f"{log} begins {_head(told)}")


def _told(plan: Truncation) -> str:
    parts = [f"it would begin {_head(plan)}"]
    if plan.ledgers > 0:
        parts.append(f"{plan.ledgers} ledgers ({size_text(plan.bytes)}) would go")
    else:
        parts.append("no ledger would go as a whole")
    if plan.forced and plan.held_by:
        parts.append(f"over the holds of {', '.join(plan.held_by)}")
    return "; ".join([*parts, *plan.reasons])


def _head(told: Truncation) -> str:
    return f"at {told.point}" if told.head_seq is None else f"at seq {told.head_seq}"
