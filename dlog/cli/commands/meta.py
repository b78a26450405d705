"""`dlog meta`: the metadata of a log as a document, and moving it to another metadata store. It
shows what it would do, and does it when told to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from dlog.cli.agreed import agreed
from dlog.cli.failures import Told, describe, say
from dlog.cli.input_file import read_whole
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.output import Output, Unheard, check
from dlog.cli.output import told as lost
from dlog.cli.shared import Settings, common_options
from dlog.cli.whole_file import whole_file
from dlog.errors import DlogError, Moved, NotFound
from dlog.limits import META_DOCUMENT_BYTES_MAX

if TYPE_CHECKING:
    from dlog import Client

MORE_BYTES = 65_536  # in the document of a log that left: where to, and by whose hand


@click.group("meta")
def command() -> None:
    """Write out the metadata of a log, or move it to another metadata store.

    The metadata of a log is its list of ledgers, its options and its holds. The messages stay where
    they are, in the ledgers: the other metadata store has to have the same ones.
    """


@command.command("export")
@click.argument("log")
@click.option(
    "-o", "--output", type=click.Path(allow_dash=True), default="-", metavar="FILE",
    help="Where to; - is standard output. [default: -]",
)  # fmt: skip
@click.option("--freeze", is_flag=True, help="Let the log leave here, for --to.")
@click.option("--to", metavar="URL", help="Where it will be kept: the only place to import it at.")
@click.option(
    "--retarget", is_flag=True, help="It left for another place, and was never imported there."
)
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@common_options
def export(
    settings: Settings,
    log: str,
    output: str,
    freeze: bool,
    to: str | None,
    retarget: bool,
    force: bool,
    yes: bool,
) -> None:
    """Write the metadata of LOG to FILE, as one JSON document with a checksum.

    With --freeze the log leaves: its writer is fenced, and from then on it can be opened at --to
    alone, once `dlog meta import` brought it there. The same command again writes the document
    again.
    """
    if freeze != (to is not None):
        raise click.UsageError("--freeze and --to go together: a log leaves for one place")
    if retarget and not freeze:
        raise click.UsageError("--retarget goes with --freeze")
    with settings.connect() as client:
        if to is None:
            settings.output.unheard = Unheard.DONE
            with _target(output, force) as file:
                file.write(client.admin.export_meta(log))
            return
        _tell_plan(client, log, to)
        agreed(yes, f"Let {log} leave for {to}?", otherwise="nothing was changed")
        try:
            with INTERRUPTS.step():
                with _target(output, force) as file:
                    _take_room(client, log, file, settings.output, is_file=output != "-")
                    document = client.admin.move_meta(log, to, retarget=retarget)
                    settings.done = lambda: (
                        f"{log} left for {to}, and its document is not written; the same command "
                        "writes it again, to a file: -o FILE"
                    )
                    file.write(document)
                    if output != "-":
                        file.truncate()
                if settings.output.error is None:
                    settings.done = None
                    say(
                        f"{log} left for {to}: `dlog meta import` brings it there, "
                        "from this document"
                    )
        except OSError as error:
            if settings.done is None:
                raise
            settings.output.error = settings.output.error or error
        if settings.output.error is not None:
            why = settings.output.error
            raise Told(lost(why) if output == "-" else describe(why))


@contextmanager
def _target(output: str, force: bool) -> Iterator[BinaryIO]:
    if output == "-":
        yield sys.stdout.buffer
        sys.stdout.flush()
        return
    with whole_file(Path(output), replace=force) as file:
        yield file


def _tell_plan(client: Client, log: str, to: str) -> None:
    """What leaving would do. That there is another log of this name is found out before."""
    import dlog

    try:
        found = client.admin.describe(log)
    except dlog.Moved as gone:  # before; it is only written out once more
        say(gone.message)
    else:
        writer = "nobody" if found.writer is None else found.writer.name
        say(
            f"{log} leaves {client.url} for {to}: {found.messages} messages in "
            f"{len(found.segments)} segments; fenced is its writer, {writer}; its ledgers stay"
        )
    try:
        with dlog.connect(to) as other:
            there = other.admin.describe(log)
    except (NotFound, dlog.Moved):
        return
    except DlogError as error:
        say(f"nobody knows whether it may come there: {describe(error)}")
        return
    raise dlog.AlreadyExists(f"there is a log {log!r} at {to} already, epoch {there.epoch}")


def _take_room(client: Client, log: str, file: BinaryIO, output: Output, *, is_file: bool) -> None:
    """What can be refused is, before the log leaves: on the disk of a file, room for a document
    that is a little longer than it would be now."""
    if not is_file:
        check(output)
        return
    with suppress(Moved):  # it left before, and is only written out once more
        file.write(bytes(len(client.admin.export_meta(log)) + MORE_BYTES))
        file.flush()
        file.seek(0)


@command.command("import")
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("-y", "--yes", is_flag=True, help="Do it without asking.")
@common_options
def bring(settings: Settings, file: str, yes: bool) -> None:
    """Bring the log of FILE here, which left for this place: see `dlog meta export --freeze`.

    Refused is what is too old, what left for another place, and what would stand beside another log
    of its name or over other ledgers. Cut short, the same command goes on.
    """
    document = read_whole(file, META_DOCUMENT_BYTES_MAX)
    with settings.connect() as client:
        found = client.admin.import_meta(document, dry_run=True)
        say(
            f"{found.log} comes from {found.place} to {client.url}: {found.segments} segments, "
            f"{found.holds} holds, seqs up to {found.next_seq}, epoch {found.epoch}; its ledgers "
            "are here"
        )
        agreed(yes, f"Bring {found.log} here?", otherwise="nothing was changed")
        with INTERRUPTS.step():
            client.admin.import_meta(document)
            say(f"{found.log} is here")
