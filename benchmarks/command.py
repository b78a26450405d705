"""The command line of a table: the rows that are named, or all. A table goes to stdout, everything
to a JSON file. The exit code says nothing of the figures: a machine that is busy must not look like
a defect."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.common import ROOT, Finding, Setting, machine, print_table, write_json

Row = Callable[[Setting], list[Finding]]


def _here(row: Row, setting: Setting) -> list[Finding]:
    return row(setting)


def measure(
    table: str,
    description: str,
    rows: Mapping[str, Row],
    run: Callable[[Row, Setting], list[Finding]] = _here,
) -> None:
    """`run` says where a row is measured: here, unless it has to be elsewhere."""
    json_path = ROOT / "build" / "benchmarks" / f"{table}.json"
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{table}",
        description=description,
        epilog=f"rows: {', '.join(rows)}",
    )
    parser.add_argument("rows", nargs="*", metavar="row", help="which rows; all by default")
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many (default 3)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--json", type=Path, default=json_path, help="where all samples go")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="on the disk to measure")
    chosen = parser.parse_args()
    strange = [row for row in chosen.rows if row not in rows]
    if strange:
        parser.error(f"no row {', '.join(strange)}; there are {', '.join(rows)}")
    setting = Setting(chosen.directory, chosen.rounds, chosen.quick)
    where = machine(chosen.directory)
    for name, value in where.items():
        print(f"{name:14} {value}")
    findings: list[Finding] = []
    for row in chosen.rows or rows:
        print(f"measuring {row} …", file=sys.stderr)
        findings += run(rows[row], setting)
    print()
    print_table(findings)
    write_json(chosen.json, setting, findings, machine=where)
    print(f"\nall samples: {chosen.json}")
