"""`dlog gc`: apply retention, and delete what was truncated. It shows what would go, and does it
when told to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from dlog.cli import draw
from dlog.cli.agreed import agreed
from dlog.cli.failures import FAILED, OK, say
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.moments import size_text
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, output_option
from dlog.errors import DlogError, Moved, NotFound

if TYPE_CHECKING:
    from dlog import Client, Collection

COLUMNS = (
    draw.Column("LOG"),
    draw.Column("HEAD", number=True),
    draw.Column("TRUNCATED", number=True),
    draw.Column("DELETED", number=True),
    draw.Column("BYTES", number=True),
    draw.Column("WAITING", number=True),
    draw.Column("HELD BY"),
)


@click.command("gc")
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@output_option
@common_options
def command(settings: Settings, logs: tuple[str, ...], yes: bool, output: str) -> int:
    """Apply the retention of each LOG, or of all logs, and delete what was truncated.

    First it shows what would go. Without --yes it asks on a terminal and refuses elsewhere.
    TRUNCATED are ledgers that left the list in this pass; DELETED are those whose grace was over;
    WAITING are in their grace still. It can be run at any time, by anybody, and again after a
    failure. With -o json, one object a line.
    """
    with settings.connect() as client:
        is_needed, broken = False, set[str]()
        for name in _names(client, logs):
            for plan in _of(client, name, logs, broken, dry_run=True):
                say(f"{plan.log}: {_told(plan)}")
                is_needed |= plan.truncated + plan.deleted + plan.pages + plan.nodes > 0
        if is_needed:
            agreed(yes, "Do this for good?", otherwise="nothing was collected")
        elif not yes:
            say("there is nothing to collect now")
        found: list[Collection] = []
        try:
            for name in _names(client, logs):
                with INTERRUPTS.step():
                    found += _of(client, name, logs, broken, dry_run=not (is_needed or yes))
        finally:  # of those that are done; also if another one fails, or a signal arrives
            _show(found, output)
    return FAILED if broken or any(each.done and each.problems for each in found) else OK


def _show(found: list[Collection], output: str) -> None:
    for each in found:
        if each.done:
            for problem in each.problems:
                say(f"{each.log}: {problem}")
    if output == "json":
        for each in found:
            print_json(each)
    else:
        draw.table(COLUMNS, list(map(_row, found)))


def _names(client: Client, logs: tuple[str, ...]) -> list[str]:
    return list(dict.fromkeys(logs)) or [each.name for each in client.admin.list()]


def _of(
    client: Client, name: str, logs: tuple[str, ...], broken: set[str], *, dry_run: bool
) -> Iterator[Collection]:
    """Of all logs, one that cannot be collected (it is `broken`, and said so once) keeps no other
    from being."""
    try:
        yield client.admin.collect(name, dry_run=dry_run)
    except (Moved, NotFound):
        if logs:
            raise  # else it went meanwhile
    except DlogError as error:
        if logs:
            raise
        if name not in broken:
            say(f"{name}: {error}")
        broken.add(name)


def _told(plan: Collection) -> str:
    parts = []
    if plan.truncated:
        parts.append(f"{plan.truncated} ledgers would leave the list")
    if plan.deleted or plan.pages:
        size = size_text(plan.bytes)
        if plan.unsized:
            size += f", and {plan.unsized} of unknown size"
        parts.append(f"{plan.deleted} ledgers ({size}) would be deleted")
    if plan.pages:
        parts.append(f"{plan.pages} pages of them")
    if plan.nodes:
        parts.append(f"{plan.nodes} nodes that nothing names")
    if plan.waiting:
        parts.append(f"{plan.waiting} wait for the end of their grace")
    if plan.held_by:
        parts.append(f"held by {', '.join(plan.held_by)}")
    return "; ".join([*parts, *plan.problems]) or "nothing would go"


def _row(told: Collection) -> tuple[object, ...]:
    return (
        told.log,
        "-" if told.head_seq is None else told.head_seq,
        told.truncated,
        told.deleted,
        size_text(told.bytes),
        told.waiting,
        ", ".join(told.held_by) or "-",
    )
