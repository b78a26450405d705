"""A tape is a history: the same one twice, in processes that hash strings differently, gives the
same transcript byte by byte. Tapes that once broke a promise are kept, and played again by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dlog.testing.sim import story
from dlog.testing.sim.runs import load_tape, run_one
from dlog.testing.sim.tape import of_seed
from dlog.testing.sim.worlds import WORLDS

TAPES = sorted((Path(__file__).parent / "tapes").glob("*.json"))
COUNTS = {"log": 15, "log-abstract": 20, "log-cuts": 20}
LONG = {"log": 600, "log-abstract": 1_500, "log-cuts": 3_000}


def _digests(world: str, count: int, hash_seed: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dlog.testing.sim", "digest", world, "0", str(count)]
    return subprocess.Popen(
        command,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
    )


def _played_twice(world: str, count: int, timeout_s: float) -> None:
    running = [_digests(world, count, hash_seed) for hash_seed in ("0", "1")]
    told = [each.communicate(timeout=timeout_s)[0] for each in running]
    assert [each.returncode for each in running] == [0, 0]
    assert len(told[0].splitlines()) == count
    assert told[0] == told[1]


@pytest.mark.tier("test")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("world", sorted(COUNTS))
def test_a_tape_is_a_history(world: str) -> None:
    _played_twice(world, COUNTS[world], 170)


@pytest.mark.tier("full", seconds=30)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("world", sorted(LONG))
def test_thousands_of_tapes_are_histories(world: str) -> None:
    _played_twice(world, LONG[world], 590)


@pytest.mark.parametrize("path", TAPES, ids=[path.stem for path in TAPES])
def test_a_kept_tape_passes(path: Path) -> None:
    tape = load_tape(path)
    _, finding = run_one(tape.world, tape.chance(), **tape.fixed)
    assert finding is None, f"{finding}\nonce: {tape.promise}: {tape.note}"


def test_a_history_is_told_in_words() -> None:
    chance = of_seed(1, told=True)
    few = {"writers": 1, "incarnations": 1, "readers": 1, "standbys": 0}  # a column for each
    world = WORLDS["log-abstract"](chance, told=True, life=0.0, **few)
    assert "log meta: epoch 1" in story.transcript(world)
    chart = story.chart(world)
    assert "the world" in chart.splitlines()[0]
    table = story.table(chance.story)
    assert len(table.splitlines()) == len(chance.story) + 1
