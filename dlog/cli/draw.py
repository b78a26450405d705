"""Tables and progress for people. rich draws where standard output is a terminal and rich is
installed; everywhere else a table is plain aligned text, which also suits `awk`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TextIO

from dlog.cli.escape import printable


@dataclass(frozen=True)
class Column:
    title: str
    number: bool = False  # numbers stand right


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[object]], *, stream: TextIO | None = None
) -> None:
    """Draw a table; every cell is made safe to show."""
    out = sys.stdout if stream is None else stream
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if out.isatty() and find_spec("rich") is not None:
        _rich_table(columns, cells, out)
        return
    for line in plain_table(columns, cells):
        print(line, file=out)


def plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[str]:
    titles = [column.title for column in columns]
    widths = [max(map(len, each)) for each in zip(titles, *rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column.number else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in (titles, *rows)
    ]


def fields(pairs: Sequence[tuple[str, object]], *, stream: TextIO | None = None) -> None:
    """Name and value, a line each, aligned."""
    out = sys.stdout if stream is None else stream
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{name.ljust(width)}  {printable(str(value))}".rstrip(), file=out)


def _rich_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], out: TextIO) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # never markup: a cell holds what somebody else chose

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        drawn.add_column(Text(column.title), justify="right" if column.number else "left")
    for row in rows:
        drawn.add_row(*map(Text, row))
    Console(file=out, highlight=False).print(drawn)


class Progress:
    """One line on standard error that says how far long work is; nothing when piped."""

    def __init__(self) -> None:
        self._shown = 0

    def show(self, line: str) -> None:
        if sys.stderr.isatty():
            line = printable(line)
            sys.stderr.write("\r" + line.ljust(self._shown))
            sys.stderr.flush()
            self._shown = len(line)

    def done(self) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0
