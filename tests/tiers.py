"""The three tiers of the tests in one table: which folder is in which, and how a test deviates.

`check` is for while one works, `test` proves everything once, `full` is for a release. A tier
holds those before it. A folder has a tier; a test, class or module that differs says so, as in
`@pytest.mark.tier("full")`. `--tier test` runs a slice of the tier `full` as well, drawn by the
commit's hash, so that nothing in there rots. Without `--tier` pytest runs what it is given.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
TIERS = ("check", "test", "full")

# The first folder that matches wins. What needs Java, Spark or a network is never in `check`.
FOLDERS = {
    "tests/chaos": "test",
    "tests/mutants": "test",
    "tests/fuzz": "test",
    "tests/spark": "test",
    "tests/handles": "check",
    "tests": "check",
    "integration": "test",
}

# The slice of `full` that each `make test` runs: seconds of a quiet machine, all items together.
SLICE_S = 60.0
FULL_S_DEFAULT = 20.0


def tier_of_folder(where: str) -> str:
    """Of a test file, by its path from the root of the repository."""
    for folder, tier in FOLDERS.items():
        if where.startswith(f"{folder}/"):
            return tier
    raise pytest.UsageError(f"{where} is in no folder that has a tier: {sorted(FOLDERS)}")


def tier_of(item: pytest.Item) -> str:
    mark = item.get_closest_marker("tier")
    if mark is None:
        return tier_of_folder(item.path.relative_to(ROOT).as_posix())
    if len(mark.args) != 1 or mark.args[0] not in TIERS or set(mark.kwargs) - {"seconds"}:
        raise pytest.UsageError(
            f"{item.nodeid}: tier{mark.args!r} must name one of {TIERS}, and seconds= if it is full"
        )
    return str(mark.args[0])


def seconds_of(item: pytest.Item) -> float:
    """What an item of the tier `full` takes on a quiet machine, as it says itself."""
    mark = item.get_closest_marker("tier")
    return float(mark.kwargs.get("seconds", FULL_S_DEFAULT)) if mark is not None else 0.0


def draw_slice(
    names: Iterable[tuple[str, float]], seed: str, budget_s: float = SLICE_S
) -> set[str]:
    """As many of these (name, seconds) as fit the budget, in an order that the seed decides."""

    def order(each: tuple[str, float]) -> bytes:
        return hashlib.sha256(f"{seed} {each[0]}".encode()).digest()

    drawn: set[str] = set()
    left_s = budget_s
    for name, seconds in sorted(names, key=order):
        if seconds <= left_s:
            drawn.add(name)
            left_s -= seconds
    return drawn


def in_full(values: Iterable[Any], *, but: Iterable[Any], seconds: float) -> list[Any]:
    """Parameters that are in `make full`, but for some that are in the tier of their test."""
    kept = list(but)
    full = pytest.mark.tier("full", seconds=seconds)
    return [each if each in kept else pytest.param(each, marks=full) for each in values]


def commit() -> str:
    """The hash of HEAD; a copy without git has one slice for ever."""
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "no commit"


def select(items: Sequence[pytest.Item], tier: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """What the tier runs, and what it leaves out."""
    wanted = TIERS[: TIERS.index(tier) + 1]
    drawn: set[str] = set()
    if tier == "test":
        full = [(item.nodeid, seconds_of(item)) for item in items if tier_of(item) == "full"]
        drawn = draw_slice(full, commit())
    kept, left = [], []
    for item in items:
        runs = tier_of(item) in wanted or item.nodeid in drawn
        (kept if runs else left).append(item)
    return kept, left
