"""A program that retries without guessing, and whose writers are killed again and again.

DLOG_CHAOS_KILLS=1000 python -m pytest tests/chaos/test_outcomes.py      longer
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlog.chance import SYSTEM_CHANCE
from tests.tidy.source import ROOT

KILLS = int(os.environ.get("DLOG_CHAOS_KILLS", "25"))
SEED = os.environ.get("DLOG_CHAOS_SEED") or SYSTEM_CHANCE.token()[:8]

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(KILLS * 5 + 60),
    pytest.mark.skipif(os.name != "posix", reason="kills by signals, and forks"),
]


def retried(where: Path, *, by: str, kills: int, url: str) -> dict[str, Any]:
    return told_by(where, "--url", url, by=by, kills=kills)


def told_by(where: Path, *place: str, by: str, kills: int) -> dict[str, Any]:
    told = where / f"{by}.json"
    command = [sys.executable, "-m", "benchmarks.outcomes", "--kills", str(kills), "--by", by]
    command += [*place, "--seed", SEED, "--json", str(told)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {SEED}: {done.stdout}{done.stderr[-3000:]}"
    tally: dict[str, Any] = json.loads(told.read_text())
    assert tally["kills"] >= kills
    assert tally["lost"] == tally["doubled"] == tally["misplaced"] == 0
    return tally


@pytest.mark.parametrize("by", ["numbers", "tails"])
def test_nothing_is_lost_and_nothing_is_there_twice(by: str, tmp_path: Path) -> None:
    tally = retried(tmp_path, by=by, kills=KILLS, url=f"file:{tmp_path / 'data'}")
    assert tally["sent"] > tally["messages"] > 0, "some were sent again"
