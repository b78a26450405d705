"""`dlog copy`: a log from one place to another. Cut short, it goes on when it is run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dlog.cli import diagnostics, draw
from dlog.cli.failures import say
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.moments import size_text
from dlog.cli.shared import Settings, common_options
from dlog.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from dlog import CopyProgress

SHOWN_EVERY_S = 0.1


class Shown:
    """How far it came, drawn now and then."""

    def __init__(self, name: str) -> None:
        self.progress: CopyProgress | None = None
        self._name = name
        self._line = draw.Progress()
        self._began_s = self._drawn_s = SYSTEM_CLOCK.monotonic_s()

    def tell(self, progress: CopyProgress) -> None:
        self.progress = progress
        now_s = SYSTEM_CLOCK.monotonic_s()
        if now_s - self._drawn_s >= SHOWN_EVERY_S:
            self._drawn_s = now_s
            rate = int(progress.bytes / max(now_s - self._began_s, 0.001))
            share = 100 * (progress.next_seq - progress.first_seq)
            share //= max(progress.end_seq - progress.first_seq, 1)
            self._line.show(
                f"{share:3d} %  seq {progress.next_seq:,} of {progress.end_seq:,}  "
                f"{size_text(progress.bytes)}, {size_text(rate)}/s"
            )

    def end(self, how: str) -> None:
        """Of a run that ended or was cut short: what is there for certain."""
        self._line.done()
        progress = self.progress
        if progress is None:
            return
        resumed = progress.resumed_seq > progress.first_seq
        say(
            f"{how}: {progress.messages} messages, {size_text(progress.bytes)}"
            + (f", going on at seq {progress.resumed_seq}" if resumed else "")
            + f"; {self._name} has seqs {progress.first_seq} up to {progress.next_seq}"
        )


@click.command("copy")
@click.argument("source_url", metavar="SOURCE-URL")
@click.argument("log")
@click.argument("target_url", metavar="TARGET-URL")
@click.argument("name", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on as messages come, until Ctrl-C.")
@click.option("--owner", help="Who we are, told to whoever we fence. [default: user@host:pid]")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
@common_options
def command(
    settings: Settings,
    source_url: str,
    log: str,
    target_url: str,
    name: str | None,
    follow: bool,
    owner: str | None,
    quiet: bool,
) -> None:
    """Copy LOG from SOURCE-URL to TARGET-URL, there called NAME or the same.

    The copy has the same messages: seqs, keys, values, headers and times; ids are its own. Cut
    short, it goes on when the same command is run again. A log that is there already and is no copy
    of LOG is left alone. Without --follow it ends at the tail seen at the beginning.
    """
    from dlog import aio

    if settings.url is not None:
        raise click.UsageError("the two places are arguments here; --url would be a third")
    diagnostics.start(settings.verbosity)
    shown = None if quiet else Shown(log if name is None else name)
    tell = None if shown is None else shown.tell
    how = "cut short"
    INTERRUPTS.told = "the same command goes on with the copy"
    try:
        INTERRUPTS.run(
            aio.copy_log(source_url, log, target_url, name, follow=follow, owner=owner, tell=tell)
        )
        how = "copied"
    finally:
        if shown is not None:
            shown.end(how)
