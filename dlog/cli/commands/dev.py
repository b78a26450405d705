"""`dlog dev`: a BookKeeper cluster on this machine, for trying things out. It is the cluster of the
tests, started so that it outlives the command; `down` ends exactly those processes."""

from __future__ import annotations

import click

from dlog.cli import draw
from dlog.cli.failures import FAILED, NOT_FOUND, OK, UNAVAILABLE, Told, say
from dlog.cli.shared import Settings, common_options
from dlog.errors import AlreadyExists, FormatError

BOOKIES_DEFAULT = 4
COLUMNS = (draw.Column("SERVER"), draw.Column("PID", number=True), draw.Column("STATE"))
NOTHING = "no cluster was started; `dlog dev up` starts one"


@click.group("dev")
def command() -> None:
    """Run ZooKeeper and a few bookies on this machine. Needs Java 17 and Maven.

    One cluster per user at a time, on loopback ports. It outlives the shell; its data goes away
    with `dlog dev down`. It is an ordinary cluster: stock BookKeeper clients reach it, too.
    """


@command.command("up")
@click.option(
    "--bookies",
    type=click.IntRange(1, 16),
    default=BOOKIES_DEFAULT,
    show_default=True,
    help="How many bookies.",
)
@click.option(
    "--version", metavar="RELEASE", help="Of BookKeeper; the newest known is the default."
)
@common_options
def up(settings: Settings, bookies: int, version: str | None) -> None:
    """Start a cluster and print the line that sets DLOG_URL to it.

    In a shell: eval "$(dlog dev up)"
    """
    from dlog.testing.cluster import BOOKKEEPER_VERSIONS, DetachedCluster, why_not

    wanted = next(iter(BOOKKEEPER_VERSIONS)) if version is None else version
    missing = why_not(wanted)
    if missing is not None:
        raise Told(missing, UNAVAILABLE)
    settings.done = lambda: "`dlog dev down` ends and removes whatever was started"
    progress = draw.Progress()
    progress.show(f"starting ZooKeeper and {bookies} bookies of {wanted} …")
    try:
        found = DetachedCluster().up(bookies=bookies, version=wanted)
    except AlreadyExists as error:
        raise Told(
            f"{error.message} (`dlog dev status` shows it, `dlog dev down` ends it)"
        ) from None
    finally:
        progress.done()
    print(f"export DLOG_URL='{found.url}'")


@command.command("status")
@common_options
def status(settings: Settings) -> int:
    """Show the servers of the cluster.

    The exit code is 1 if one of them has ended or the start did not come to its end, 3 if there is
    no cluster.
    """
    from dlog.testing.cluster import DetachedCluster

    cluster = DetachedCluster()
    try:
        found = cluster.find()
    except FormatError as error:
        raise Told(f"{error.message} (`dlog dev down` clears it)") from None
    if found is None:
        raise Told(NOTHING, NOT_FOUND)
    states = [(each.name, each.pid, "runs" if each.runs else "ended") for each in found.members]
    draw.fields([("url", found.url), ("release", found.version), ("data", cluster.data)])
    draw.table(COLUMNS, states)
    if not found.is_complete:
        say("it was never up: its start goes on elsewhere, or was killed (then start it again)")
        return FAILED
    return OK if all(state == "runs" for _, _, state in states) else FAILED


@command.command("down")
@common_options
def down(settings: Settings) -> None:
    """End the cluster and remove its data."""
    from dlog.testing.cluster import DetachedCluster

    settings.done = lambda: "`dlog dev down` ends what is left"
    ended = DetachedCluster().down()
    settings.done = None
    if ended is None:
        raise Told(NOTHING, NOT_FOUND)
    say(f"{ended} servers ended, their data is removed")
