"""python -m benchmarks.spark [row …] [--rounds 3] [--quick] [--json FILE]

Measures the rows that are named, or all, each in a process of its own: what a JVM was started with
it keeps. A table goes to stdout, everything to a JSON file. The exit code says nothing of the
figures: a machine that is busy must not look like a defect.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from benchmarks.command import Row, measure
from benchmarks.common import Finding, Setting
from benchmarks.spark.rows import ROWS


def _apart(row: Row, setting: Setting) -> list[Finding]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
        return apart.submit(row, setting).result()


if __name__ == "__main__":
    measure("spark", "The table of docs/PERFORMANCE.md, for Spark.", ROWS, _apart)
