"""Random histories of writers, readers, removers and foreign recoverers under faults: no promise
breaks, and once the faults end everything comes right. DLOG_SIM_SECONDS runs for longer,
DLOG_SIM_FIRST from another seed on; a failure names its seed and how to see it again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter

import pytest

from dlog import trace
from tests.sim.history import run_histories, run_history
from tests.sim.world import Violation

SECONDS = float(os.environ.get("DLOG_SIM_SECONDS", "15"))
FIRST = int(os.environ.get("DLOG_SIM_FIRST", "0"))
ENOUGH = 600  # histories, however slow the machine

# Points of rooms that are not simulated, or that only the real drivers announce.
ELSEWHERE = ("ledger.", "meta.", "recover.", "append.confirmed", "append.published")

FACTS = (
    "append failed, bounded read, closed, crash, foreign recovery, freeze, healed, id went back, "
    "late write, lost, recovery cut, remove, reply lost, request lost, resumed, rotated, tail asked"
).split(", ")


@pytest.mark.timeout(60 + 2 * SECONDS)
def test_no_history_breaks_a_promise_and_all_of_them_heal() -> None:
    """I1–I9, I15–I17, I24, I27; DL-01, DL-02, DL-03a, DL-03b, DL-04, DL-05, DL-09, DL-10, DL-11,
    DL-13, DL-23, DL-26, DL-27, DL-28, DL-30, DL-31, DL-32, DL-33 in every interleaving drawn."""
    facts: Counter[str] = Counter()
    points: Counter[str] = Counter()
    ends_s = time.monotonic() + SECONDS
    seed = FIRST
    while seed < FIRST + ENOUGH or time.monotonic() < ends_s:
        world = run_history(seed)
        facts += world.marks
        points += world.points
        seed += 1
    print(f"{seed - FIRST} histories, {sum(points.values())} announced steps")
    never = [fact for fact in FACTS if not facts[fact]]
    assert not never, f"these faults never bit: {never}"
    simulated = [point for point in trace.POINTS if not point.startswith(ELSEWHERE)]
    assert not [point for point in simulated if not points[point]], "steps that no history reached"


def test_a_seed_is_a_history() -> None:
    """The same seed gives the same transcript, whatever the hash seed of the process."""
    for seed in range(3):
        told = {_told(seed, hash_seed) for hash_seed in ("0", "1")}
        assert len(told) == 1
        assert "log meta: epoch 1" in told.pop()


def _told(seed: int, hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.stdout


def test_a_violation_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.sim.planted import PLANTS

    PLANTS["release_out_of_order"](monkeypatch)
    with pytest.raises(Violation, match=r"I4a: .*\n.*python -m tests\.sim \d+"):
        run_histories(50)
