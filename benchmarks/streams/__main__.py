"""python -m benchmarks.streams [row …] [--rounds 3] [--quick] [--json FILE] [--directory DIR]"""

from __future__ import annotations

from benchmarks.command import measure
from benchmarks.streams.rows import ROWS

if __name__ == "__main__":
    measure("streams", "What streams cost.", ROWS)
