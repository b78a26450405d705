"""Builds the coverage map, a few test files at a time, so that a build may be cut and resumed.

Only files that are new, or that changed since, are run. One process at low priority does it. Tests
that need servers are not traced.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutants.coverage_map import CoverageMap, digest

# In the order in which they are traced: what covers much in little time comes first.
FOLDERS = (
    "tests/scenarios",
    *(f"tests/unit/{room}" for room in ("writer", "reader", "ledger", "meta", "groups")),
    *(f"tests/unit/{room}" for room in ("streams", "admin", "standby")),
    "tests/api",
    "tests/unit/wire",
    "tests/conformance",
    "tests/sim",
    "tests/fuzz",
    "tests/unit",
    "tests/chaos",
    "tests/spark",
)
# These use what the tracer uses, or run programs whose lines the tracer does not see.
NEVER = ("test_benchmarks_run.py", "test_planted.py", "test_benchmark.py", "test_core_coverage.py")
SLICE_FILES = 8
SLICE_S = 900.0
SIM_SECONDS = "1"


def mapped_files(root: Path, folders: Sequence[str] = FOLDERS) -> list[str]:
    """The test files that are traced, in the order in which they are."""
    found = [
        path.relative_to(root).as_posix()
        for folder in folders
        for path in sorted((root / folder).rglob("test_*.py"))
        if path.name not in NEVER
    ]
    return list(dict.fromkeys(found))


def stale_files(root: Path, target: Path, files: Iterable[str]) -> list[str]:
    kept = CoverageMap(target)
    known = kept.complete_files()
    kept.close()
    return [file for file in files if known.get(file) != digest((root / file).read_bytes())]


def build(root: Path, target: Path, files: Sequence[str], until: float | None = None) -> list[str]:
    """Trace these test files; the ones that are left when time is up are returned."""
    begun = time.monotonic()
    left = list(files)
    while left and (until is None or time.monotonic() < until):
        portion, left = left[:SLICE_FILES], left[SLICE_FILES:]
        spent = time.monotonic() - begun
        print(f"{spent:6.0f} s  {len(portion) + len(left)} files left: {portion[0]} …", flush=True)
        limit = SLICE_S if until is None else min(SLICE_S, until - time.monotonic())
        _trace(root, target, portion, limit)
    missed = stale_files(root, target, files)
    for file in missed:
        print(f"not mapped wholly: {file}")
    return missed


def _trace(root: Path, target: Path, files: Sequence[str], seconds: float) -> None:
    path = [str(root), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "COVERAGE_CORE": "ctrace",  # the only one that knows contexts in every version
        "MUTANTS_MAP": str(target.absolute()),
        "DLOG_SIM_SECONDS": SIM_SECONDS,
    }
    with tempfile.TemporaryDirectory(prefix="dlog-map-") as scratch:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "tests.mutants.tracing", "--tb=line", f"--basetemp={scratch}/t"]
        command += ["--timeout=240", *files]
        with (
            open(target.with_suffix(".log"), "ab") as output,
            subprocess.Popen(
                command,
                cwd=root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: os.nice(10),
            ) as run,
        ):
            end_within(run, seconds, signal.SIGINT)


def end_within(
    run: subprocess.Popen[bytes], seconds: float, first: signal.Signals = signal.SIGKILL
) -> bool:
    """Whether it ended by itself in time. If not, it and all that it started are ended."""
    try:
        run.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        run.send_signal(first)
        try:
            run.wait(20)
        except subprocess.TimeoutExpired:
            pass
        return False
    finally:
        try:
            os.killpg(run.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        run.wait()


if __name__ == "__main__":
    ROOT = Path(__file__).resolve().parents[2]
    TARGET = Path(os.environ.get("MUTANTS_MAP", ROOT / ".mutants" / "map.sqlite"))
    WANTED = mapped_files(ROOT, sys.argv[1:] or FOLDERS)
    build(ROOT, TARGET, stale_files(ROOT, TARGET, WANTED))
