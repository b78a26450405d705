"""Builds the coverage map of a tier, some test files at a time. A build may be cut and resumed.

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

from tests.mutants.coverage_map import CoverageMap, digest, tiers_up_to
from tests.mutants.priority import give_way
from tests.tiers import tier_of_folder

# In the order in which they are traced: what covers much in little time comes first.
FOLDERS = (
    "tests/scenarios",
    *(f"tests/unit/{room}" for room in ("writer", "reader", "ledger", "meta", "groups")),
    *(f"tests/unit/{room}" for room in ("streams", "admin", "wire", "spark", "standby")),
    "tests/conformance",
    "tests/api",
    "tests/unit",
    "tests/sim",
    "tests/fuzz",
    "tests/chaos",
    "tests/spark",
)
# These use what the tracer uses, or run programs whose lines the tracer does not see.
NEVER = ("test_benchmarks_run.py", "test_planted.py", "test_benchmark.py", "test_core_coverage.py")
SLICE_FILES = 20
SLICE_S = 1_800.0


class NotTraced(ValueError):
    pass


def mapped_files(root: Path, tier: str, places: Sequence[str] = FOLDERS) -> list[str]:
    """The test files of these folders and files that are traced for this tier, in that order.
    Raises NotTraced if a place has none."""
    found: list[str] = []
    for place in places:
        path = (root / place).resolve()
        files = [path] if path.is_file() else sorted(path.rglob("test_*.py"))
        traced = [file.relative_to(root).as_posix() for file in files if _is_traced(root, file)]
        found += [file for file in traced if tier_of_folder(file) in tiers_up_to(tier)]
        if not traced:
            raise NotTraced(
                f"{place!r} must be a folder below tests/ with files test_*.py, or such a file; "
                f"these are never traced: {', '.join(NEVER)}"
            )
    return list(dict.fromkeys(found))


def _is_traced(root: Path, file: Path) -> bool:
    named = file.name.startswith("test_") and file.suffix == ".py" and file.name not in NEVER
    return named and file.is_relative_to(root / "tests")


def stale_files(root: Path, target: Path, tier: str, files: Iterable[str]) -> list[str]:
    kept = CoverageMap(target)
    known = kept.complete_files(tier)
    kept.close()
    return [file for file in files if known.get(file) != digest((root / file).read_bytes())]


def build(
    root: Path, target: Path, tier: str, files: Sequence[str], until: float | None = None
) -> list[str]:
    """Trace the tests of these files up to this tier. Returns the files that are not wholly mapped
    when time is up."""
    begun = time.monotonic()
    left = list(files)
    while left and (until is None or time.monotonic() < until):
        portion, left = left[:SLICE_FILES], left[SLICE_FILES:]
        spent = time.monotonic() - begun
        print(f"{spent:6.0f} s  {len(portion) + len(left)} files left: {portion[0]} …", flush=True)
        limit = SLICE_S if until is None else min(SLICE_S, until - time.monotonic())
        _trace(root, target, tier, portion, limit)
    missed = stale_files(root, target, tier, files)
    for file in missed:
        print(f"not mapped wholly: {file}")
    return missed


def _trace(root: Path, target: Path, tier: str, files: Sequence[str], seconds: float) -> None:
    path = [str(root), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "COVERAGE_CORE": "ctrace",  # the only one that knows contexts in every version
        "MUTANTS_MAP": str(target.absolute()),
    }
    with tempfile.TemporaryDirectory(prefix="dlog-map-") as scratch:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "tests.mutants.tracing", "--tb=line", f"--basetemp={scratch}/t"]
        command += ["--continue-on-collection-errors", "--timeout=240", "--tier", tier, *files]
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
                preexec_fn=give_way,
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
