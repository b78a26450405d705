"""python -m benchmarks.bookkeeper [row …] [--rounds 3] [--quick] [--json FILE] [--directory DIR]"""

from __future__ import annotations

from benchmarks.bookkeeper.command import measure
from benchmarks.bookkeeper.rows import ROWS
from benchmarks.common import ROOT

if __name__ == "__main__":
    measure(
        "benchmarks.bookkeeper",
        "The table of docs/PERFORMANCE.md, for ledgers on bookies.",
        ROWS,
        ROOT / "build" / "benchmarks" / "bookkeeper.json",
    )
