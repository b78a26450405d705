"""python -m benchmarks.streams [row …] [--rounds 3] [--quick] [--json FILE]

Measures the rows that are named, or all. A table goes to stdout, everything to a JSON file. The
exit code says nothing of the figures: a machine that is busy must not look like a defect.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.common import ROOT, Finding, Setting, machine, print_table, write_json
from benchmarks.streams.rows import ROWS

JSON_PATH = ROOT / "build" / "benchmarks" / "streams.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.streams",
        description="What streams cost.",
        epilog=f"rows: {', '.join(ROWS)}",
    )
    parser.add_argument("rows", nargs="*", metavar="row", help="which rows; all by default")
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many (default 3)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--json", type=Path, default=JSON_PATH, help="where all samples go")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="for what needs a disk")
    chosen = parser.parse_args()
    strange = [row for row in chosen.rows if row not in ROWS]
    if strange:
        parser.error(f"no row {', '.join(strange)}; there are {', '.join(ROWS)}")
    setting = Setting(chosen.directory, chosen.rounds, chosen.quick)
    where = machine(chosen.directory)
    for name, value in where.items():
        print(f"{name:14} {value}")
    findings: list[Finding] = []
    for row in chosen.rows or ROWS:
        print(f"measuring {row} …", file=sys.stderr)
        findings += ROWS[row](setting)
    print()
    print_table(findings)
    write_json(chosen.json, setting, findings, machine=where)
    print(f"\nall samples: {chosen.json}")


if __name__ == "__main__":
    main()
