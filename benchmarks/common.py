"""What the benchmarks share: where they run, how rounds interleave, and how findings are told.

A *row* is a function from a `Setting` to findings, one for each figure it measures. What is
compared is measured in the same rounds, turn by turn; ratios are taken within a round, and then
the median over the rounds: a machine that is slow for a second is slow for both. Payload is random
bytes, so that no disk or codec can make it smaller.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
KIB, MIB = 1 << 10, 1 << 20
DISTINCT_BYTES = 64 * MIB  # of payload; a longer run begins it again


@dataclass(frozen=True)
class Setting:
    """Where and how much. `directory` should be on the disk in question, not in memory."""

    directory: Path
    rounds: int = 3
    quick: bool = False
    minutes: float = 1.0

    def pick(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.directory, prefix="dlog-bench-") as name:
            yield Path(name)


@dataclass
class Finding:
    """One figure: what was measured, what it should be, and whether it is. `passed` is None where
    there is no figure to reach."""

    row: str
    what: str
    measured: str
    figure: str = ""
    passed: bool | None = None
    beside: str = ""
    values: dict[str, float] = field(default_factory=dict)
    rounds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return {True: "passed", False: "missed", None: ""}[self.passed]


def interleaved(rounds: int, cases: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Each case once per round, turn by turn."""
    results: dict[str, list[T]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            results[name].append(case())
    return results


def median(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Per round first: what disturbed a round disturbed both."""
    return median([our / their for our, their in zip(ours, theirs, strict=True)])


def quantile(samples: Sequence[float], fraction: float) -> float:
    ordered = sorted(samples)
    return ordered[min(int(len(ordered) * fraction), len(ordered) - 1)]


def slope_per_minute(times_s: Sequence[float], values: Sequence[float]) -> float:
    """The median of the slopes between all pairs: a single step, of an allocator that took one more
    arena, is no slope; what goes on rising is."""
    points = list(zip(times_s, values, strict=True))
    pairs = itertools.combinations(points, 2)
    slopes = [(later - here) / (then - at) for (at, here), (then, later) in pairs if then != at]
    return median(slopes) * 60 if slopes else 0.0


def random_values(count: int, size: int) -> list[bytes]:
    distinct = max(1, min(count, DISTINCT_BYTES // size))
    raw = os.urandom(distinct * size)
    values = [raw[at : at + size] for at in range(0, len(raw), size)]
    return (values * (count // distinct + 1))[:count]


# --- telling


def machine(directory: Path) -> dict[str, Any]:
    from dlog.wire.crc32c import IMPLEMENTATION

    return {
        "cores": os.cpu_count(),
        "cpu": _cpu_name(),
        "memory_gib": round(_memory_bytes() / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": file_system_of(directory),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "crc32c": IMPLEMENTATION,
        "versions": _versions("numpy", "pyarrow", "lmdb"),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def file_system_of(directory: Path) -> str:
    """Of the mount that holds it; the longest prefix wins."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    place = directory.resolve()
    holding = [(len(at), kind) for at, kind in mounts if place.is_relative_to(at)]
    return max(holding)[1] if holding else "unknown"


def _versions(*names: str) -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def print_table(findings: Sequence[Finding]) -> None:
    heads = ("row", "what", "measured", "beside it", "figure", "")
    rows = [heads] + [
        (each.row, each.what, each.measured, each.beside, each.figure, each.verdict)
        for each in findings
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())


def write_json(path: Path, setting: Setting, findings: Sequence[Finding], **more: Any) -> None:
    told = {
        "command": ["python", "-m", *_module_and_arguments()],
        "setting": {"rounds": setting.rounds, "quick": setting.quick, "minutes": setting.minutes},
        **more,
        "findings": [{**asdict(each), "verdict": each.verdict} for each in findings],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=1) + "\n")


def _module_and_arguments() -> list[str]:
    return [f"benchmarks.{Path(sys.argv[0]).parent.name}", *sys.argv[1:]]
