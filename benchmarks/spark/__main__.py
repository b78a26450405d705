"""python -m benchmarks.spark [row …] [--rounds 3] [--quick] [--json FILE]

Measures the rows that are named, or all, each in a process of its own: what a JVM was started with
it keeps. A table goes to stdout, everything to a JSON file. The exit code says nothing of the
figures: a machine that is busy must not look like a defect.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.common import ROOT, Finding, Setting, machine, print_table, write_json
from benchmarks.spark.rows import ROWS

JSON_PATH = ROOT / "build" / "benchmarks" / "spark.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.spark",
        description="The table of docs/PERFORMANCE.md, for Spark.",
        epilog=f"rows: {', '.join(ROWS)}",
    )
    parser.add_argument("rows", nargs="*", metavar="row", help="which rows; all by default")
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many (default 3)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--json", type=Path, default=JSON_PATH, help="where all samples go")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="on the disk to measure")
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
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
            findings += apart.submit(ROWS[row], setting).result()
    print()
    print_table(findings)
    write_json(chosen.json, setting, findings, machine=where)
    print(f"\nall samples: {chosen.json}")


if __name__ == "__main__":
    main()
