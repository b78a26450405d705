"""What it costs to begin: `startup`.

`import dlog` and `dlog --help`, each in a fresh process, less a bare interpreter in the same turn;
the median of the differences over 21 turns after one that warms the caches.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.common import ROOT, Finding, Setting, interleaved, median

IMPORT_MS, HELP_MS = 60.0, 80.0
RUNS = 21


def startup(setting: Setting) -> list[Finding]:
    cases = {
        "bare": _timed("-c", "pass"),
        "import dlog": _timed("-c", "import dlog"),
        "open_writer": _timed("-c", "import dlog; dlog.open_writer"),
        "dlog --help": _timed("-c", "from dlog.cli.main import main; main()", "--help"),
    }
    interleaved(1, cases)
    taken = interleaved(setting.pick(RUNS, 2), cases)
    bare = taken["bare"]
    above = {
        name: median([own - base for own, base in zip(runs, bare, strict=True)]) * 1e3
        for name, runs in taken.items()
    }
    figures = {"import dlog": IMPORT_MS, "dlog --help": HELP_MS, "open_writer": None}
    return [
        Finding(
            "startup",
            f"{name}" if limit_ms is not None else "import dlog; dlog.open_writer",
            f"+ {above[name]:.1f} ms",
            "" if limit_ms is None else f"≤ + {limit_ms:.0f} ms",
            None if limit_ms is None else above[name] <= limit_ms,
            beside=f"bare interpreter {median(bare) * 1e3:.1f} ms",
            values={"above_ms": above[name]},
            rounds={"s": taken[name], "bare s": bare},
        )
        for name, limit_ms in figures.items()
    ]


def _timed(*arguments: str) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, cwd=ROOT
        )
        return time.perf_counter() - began

    return run
