"""`dlog fsck`: are the logs whole, and what can be done where they are not? What would be done is
shown first, and done when told to."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from dlog.cli import draw
from dlog.cli.failures import FAILED, OK, UNAVAILABLE, USAGE, Told, say
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.plain import print_json
from dlog.cli.shared import Settings, common_options, output_option
from dlog.limits import (
    FSCK_GRACE_S_DEFAULT,
    FSCK_PARALLEL_DEFAULT,
    FSCK_PARALLEL_MAX,
    FSCK_SAMPLE_DEFAULT,
    FSCK_SAMPLE_MAX,
)

if TYPE_CHECKING:
    from dlog import Client


@click.command("fsck")
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@click.option("--all", "is_all", is_flag=True, help="All logs, and what belongs to none of them.")
@click.option("--deep", is_flag=True, help="Read every copy of every entry.")
@click.option("--replication", is_flag=True, help="Only ask which bookies keep what; read nothing.")
@click.option(
    "--sample",
    type=click.IntRange(0, FSCK_SAMPLE_MAX),
    default=FSCK_SAMPLE_DEFAULT,
    show_default=True,
    help="How many entries of each segment are read, besides its first and last.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, FSCK_PARALLEL_MAX),
    default=FSCK_PARALLEL_DEFAULT,
    show_default=True,
    help="How many segments are looked at side by side.",
)
@click.option(
    "--grace",
    "grace_s",
    type=click.IntRange(0),
    default=FSCK_GRACE_S_DEFAULT,
    show_default=True,
    help="Seconds after which what a living writer would have deleted is nobody's.",
)
@click.option("--repair", is_flag=True, help="Show what can be repaired, and do it when told to.")
@click.option("-y", "--yes", is_flag=True, help="With --repair: do it without asking.")
@output_option
@common_options
def command(
    settings: Settings,
    logs: tuple[str, ...],
    is_all: bool,
    deep: bool,
    replication: bool,
    sample: int,
    parallel: int,
    grace_s: int,
    repair: bool,
    yes: bool,
    output: str,
) -> int:
    """Check logs: their lists, their ledgers, a sample of their entries, and what is nobody's.

    The exit code is 0 if nothing is wrong, 1 if anything is, and 5 if nothing is but not all could
    be looked at. With --repair it is that of another look afterwards. Nothing is changed without
    --yes, or a yes on a terminal. With -o json, one object a line.
    """
    if bool(logs) == is_all:
        raise click.UsageError("name some logs, or say --all")
    if deep and replication:
        raise click.UsageError("--deep reads every copy, --replication reads none: choose one")
    if yes and not repair:
        raise click.UsageError("--yes belongs to --repair")

    def look() -> Any:
        return client.admin.fsck(
            *logs,
            deep=deep,
            replication=replication,
            samples=sample,
            parallel=parallel,
            grace_s=grace_s,
        )

    with settings.connect() as client:
        report = look()
        _show(report, output, replication=replication)
        if repair and report.plan:
            _show_plan(report, output)
            if _is_wanted(yes):
                _repair(client, report, output)
                report = look()
                say("after the repair:")
                _show(report, output, replication=replication)
        elif repair:
            say("there is nothing that could be repaired from here")
    if report.damage or report.more_findings:
        return FAILED
    return UNAVAILABLE if report.not_checked else OK


def _is_wanted(yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        say("nothing was changed; add --yes to do it")
        return False
    if not click.confirm("Do this?", err=True):
        raise Told("nothing was changed", USAGE)
    return True


def _repair(client: Client, report: Any, output: str) -> None:
    with INTERRUPTS.step():
        _show_done(client.admin.repair(report), output)


def _show_done(done: Any, output: str) -> None:
    if output == "json":
        print_json(done)
        return
    columns = (draw.Column("STEP"), draw.Column("WHERE"), draw.Column("ENDED"), draw.Column("TOLD"))
    draw.table(columns, [(d.step.action, d.step.where, d.ended, d.told) for d in done.steps])


def _show_plan(report: Any, output: str) -> None:
    if output != "json":  # else it stands in the report
        columns = (draw.Column("STEP"), draw.Column("WHERE"), draw.Column("WHAT IT DOES"))
        draw.table(columns, [(each.action, each.where, each.told) for each in report.plan])


def _show(report: Any, output: str, *, replication: bool) -> None:
    if output == "json":
        print_json(report)
    else:
        if report.findings:
            columns = tuple(map(draw.Column, ("STATE", "KIND", "WHERE", "FOUND")))
            draw.table(columns, [_row(each) for each in report.findings])
        if report.not_checked:
            columns = (draw.Column("NOT CHECKED"), draw.Column("WHY"))
            draw.table(columns, [(each.where, each.why) for each in report.not_checked])
        if replication and report.under_replicated:
            _show_replication(report)
    say(_summary(report))


def _row(finding: Any) -> tuple[object, ...]:
    told = f"{finding.told} ({finding.advice})" if finding.advice else finding.told
    return finding.severity, finding.kind, finding.where, told


def _show_replication(report: Any) -> None:
    columns = (
        draw.Column("LOG"),
        draw.Column("LEDGER", number=True),
        draw.Column("ENTRIES"),
        draw.Column("COPIES LEFT", number=True),
        draw.Column("AWAY"),
        draw.Column("LOST WITH ONE MORE"),
    )
    rows = [
        (
            ledger.log,
            ledger.ledger_id,
            f"{part.first_entry} to {part.last_entry if part.last_entry >= 0 else 'the end'}",
            part.copies_left,
            ", ".join(part.away),
            "yes" if part.is_lost_with_one_more else "no",
        )
        for ledger in report.under_replicated
        for part in ledger.fragments
    ]
    draw.table(columns, rows)


def _summary(report: Any) -> str:
    told = [
        f"{len(report.logs)} logs, {sum(log.segments for log in report.logs)} segments",
        f"{report.ledgers} ledgers, {report.entries} entries read",
    ]
    if report.copies:
        told.append(f"{report.copies} copies read one by one")
    damage = len(report.damage) + report.more_findings
    told.append(f"{damage} findings" if damage else "nothing wrong")
    if report.not_checked:
        told.append(f"{len(report.not_checked)} things not checked")
    if report.under_replicated:
        told.append(f"{len(report.under_replicated)} ledgers with less copies than they should")
    return "; ".join(told)
