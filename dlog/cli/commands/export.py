"""`dlog export`: a log, or a part of it, as a file that other programs read."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from dlog.cli import message_text
from dlog.cli.failures import say
from dlog.cli.interrupts import INTERRUPTS
from dlog.cli.output import Unheard
from dlog.cli.shared import Settings, common_options
from dlog.cli.whole_file import whole_file
from dlog.cli.window import window_of, window_options

if TYPE_CHECKING:
    from dlog import MessageBatch

FORMATS = ("jsonl", "parquet")


@click.command("export")
@click.argument("log")
@click.option(
    "-o", "--output", type=click.Path(allow_dash=True), default="-", metavar="FILE",
    help="Where to; - is standard output. [default: -]",
)  # fmt: skip
@click.option("--format", "form", type=click.Choice(FORMATS), help="[default: by the file's name]")
@window_options
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@common_options
def command(
    settings: Settings,
    log: str,
    output: str,
    form: str | None,
    since: datetime | None,
    until: datetime | None,
    from_id: str | None,
    seqs: str | None,
    force: bool,
) -> None:
    """Write LOG, or a part of it, to FILE: as JSON lines or as Parquet.

    A line is what `dlog tail -o json` prints; `dlog produce --json` reads it back. Parquet has a
    column for each of its fields, and needs pyarrow. FILE appears when it is complete. The end is
    the tail seen at the beginning.
    """
    window = window_of(since, until, from_id, seqs)
    to_file = output != "-"
    if form is None:
        form = "parquet" if output.endswith(".parquet") else "jsonl"
    if form == "parquet" and not to_file:
        raise click.UsageError("Parquet goes to a file: -o FILE")
    write = _WAYS[form]
    if not to_file:
        settings.output.unheard = Unheard.DONE
    with settings.connect() as client:
        start = "earliest" if window.start is None else window.start
        with client.open_reader(log, start=start, end=window.end) as reader:
            if to_file:
                INTERRUPTS.told = f"{output} is not written"
                with whole_file(Path(output), replace=force) as file:
                    count = write(file, reader.batches())
                INTERRUPTS.told = "what was told is done"
                say(f"{count} messages of {log} are in {output}")
            else:
                count = write(sys.stdout.buffer, reader.batches())


def _lines(file: BinaryIO, batches: Iterable[MessageBatch]) -> int:
    count = 0
    for batch in batches:
        file.write(b"".join(map(message_text.json_form, batch.to_pylist())))
        count += len(batch)
    return count


def _parquet(file: BinaryIO, batches: Iterable[MessageBatch]) -> int:
    from dlog.reader.parquet import ParquetFile  # not at the top: it needs an extra

    count = 0
    parquet = ParquetFile(file)
    for batch in batches:
        parquet.add(batch)
        count += len(batch)
    parquet.close()
    return count


_WAYS = {"jsonl": _lines, "parquet": _parquet}
