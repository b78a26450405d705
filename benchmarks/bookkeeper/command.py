"""The command line of a table that is measured on servers: the rows that are named, or all. A table
goes to stdout, everything to a JSON file. The exit code says nothing of the figures: a machine that
is busy must not look like a defect. It takes Java 17 with its compiler, Maven, and up to 20 GB in
the directory, which are given back."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.bookkeeper.stage import Stages
from benchmarks.common import Finding, Setting, machine, print_table, write_json
from dlog.testing.cluster import why_not
from dlog.testing.cluster.java_program import why_not_compiled

Rows = Mapping[str, Callable[[Stages], list[Finding]]]


def measure(program: str, description: str, rows: Rows, json_path: Path) -> None:
    """Ends the process."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, epilog=f"rows: {', '.join(rows)}"
    )
    parser.add_argument("rows", nargs="*", metavar="row", help="which rows; all by default")
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many (default 3)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--json", type=Path, default=json_path, help="where all samples go")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="on the disk to measure (default: the temporary directory)",
    )
    chosen = parser.parse_args()
    strange = [row for row in chosen.rows if row not in rows]
    if strange:
        parser.error(f"no row {', '.join(strange)}; there are {', '.join(rows)}")
    missing = why_not() or why_not_compiled()
    if missing is not None:
        parser.error(missing)
    setting = Setting(chosen.directory, chosen.rounds, chosen.quick)
    where = machine(chosen.directory)
    for name, value in where.items():
        print(f"{name:14} {value}")
    findings: list[Finding] = []
    failed = False
    stages = Stages(setting)
    try:
        for row in chosen.rows or rows:
            print(f"measuring {row} …", file=sys.stderr, flush=True)
            try:
                found = rows[row](stages)
            except Exception as error:  # noqa: BLE001 - an hour of other rows must not be lost
                traceback.print_exc()
                failed = True
                found = [Finding(row, "did not end", type(error).__name__, passed=False)]
            for each in found:  # at once: whoever stops an hour's run keeps what it had
                print(f"  {each.what}: {each.measured} {each.verdict}", file=sys.stderr, flush=True)
            findings += found
    finally:
        stages.close()
    print()
    print_table(findings)
    write_json(chosen.json, setting, findings, machine=where)
    print(f"\nall samples: {chosen.json}")
    sys.exit(1 if failed else 0)
