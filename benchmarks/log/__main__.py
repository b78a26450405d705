"""python -m benchmarks.log [row …] [--rounds 3] [--quick] [--json FILE] [--directory DIR]"""

from __future__ import annotations

from benchmarks.bookkeeper.command import measure
from benchmarks.common import ROOT
from benchmarks.log.rows import ROWS

if __name__ == "__main__":
    measure(
        "benchmarks.log",
        "The table of docs/PERFORMANCE.md, for logs on a cluster.",
        ROWS,
        ROOT / "build" / "benchmarks" / "log.json",
    )
