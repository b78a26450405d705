"""One pytest process over chosen tests of a tree: how far it came, and what failed first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.mapping import end_within

TOOL = Path(__file__).resolve().parents[2]
IMPORT_S = 60.0
SLOWNESS_MAX = 8.0


@dataclass(slots=True)
class Ran:
    """`failed` is what failed, hung or took the process down; `ended` counts what passed."""

    failed: str | None = None
    manner: str = ""
    ended: int = 0
    finished: bool = False  # in time
    begun: list[str] = field(default_factory=list)


def slowness() -> float:
    """How many times as long as on a quiet machine things take, by those that wait for a core."""
    return min(SLOWNESS_MAX, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def environment(tree: Path, scratch: Path) -> dict[str, str]:
    """With the tree before all else, and nothing of the caller's that tests go by."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DLOG_")}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(tree), str(TOOL)]),
        "TMPDIR": str(scratch),
        "DLOG_SIM_SECONDS": "1",
    }


def imports(tree: Path, module: str) -> bool:
    """Whether a module of the tree can be imported."""
    with tempfile.TemporaryDirectory(prefix="dm-") as scratch:
        done = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            cwd=tree,
            env=environment(tree, Path(scratch)),
            capture_output=True,
            check=False,
            timeout=IMPORT_S * SLOWNESS_MAX,
        )
    return done.returncode == 0


def run(
    tree: Path,
    limits: Mapping[str, float],
    seconds: float,
    *,
    modules: Sequence[str] = (),
    without: Sequence[str] = (),
) -> Ran:
    """Run these tests, each within its limit, until one fails or the seconds are over. All times
    are those of a quiet machine. If one of `modules` cannot be imported, that is what failed."""
    slow = slowness()
    limits = {name: slow * limit for name, limit in limits.items()}
    with tempfile.TemporaryDirectory(prefix="dm-", ignore_cleanup_errors=True) as made:
        scratch = Path(made)
        chosen, told = scratch / "chosen.json", scratch / "told"
        asked = {"limits": limits, "without": list(without), "modules": list(modules)}
        chosen.write_text(json.dumps(asked), encoding="utf-8")
        told.touch()
        files = list(dict.fromkeys(name.partition("::")[0] for name in limits))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
        command += ["-p", "tests.mutants.chosen", f"--basetemp={made}/t", *files]
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment(tree, scratch)
            | {"MUTANTS_CHOSEN": str(chosen), "MUTANTS_TOLD": str(told)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        finished = end_within(process, slow * seconds)
        return _told(told, limits, finished, time.monotonic())


def _told(told: Path, limits: Mapping[str, float], finished: bool, now: float) -> Ran:
    ran = Ran(finished=finished)
    under_way, since = "", now
    complete = False
    for line in told.read_text(encoding="utf-8").splitlines():
        what, name, at = json.loads(line)
        if what == "begun":
            under_way, since = name, at
            ran.begun.append(name)
        elif what == "ended":
            under_way = ""
            ran.ended += 1
        elif what == "done":
            complete = True
        elif what in ("failed", "broken", "unimportable") and ran.failed is None:
            ran.failed, ran.manner = name, what
    if ran.failed is None and under_way:
        if finished:
            ran.failed, ran.manner = under_way, "ended the process"
        elif now - since > _limit(limits, under_way):
            ran.failed, ran.manner = under_way, "hangs"
    elif ran.failed is None and finished and not complete:
        ran.failed, ran.manner = next(iter(limits)), "ended the process"
    return ran


def _limit(limits: Mapping[str, float], name: str) -> float:
    return limits.get(name) or limits.get(name.partition("::")[0], 0.0)
