"""How evenly a ring spreads keys, over a hundred sets of servers, and that the command which
measures it runs."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common import ROOT
from benchmarks.streams.routing import (
    DEVIATION_MAX,
    MOVED_OFF_MAX,
    PEAK_MAX,
    load_spreads,
    moved_fractions,
)
from benchmarks.streams.rows import ROWS
from dlog.testing.cluster import why_not


def test_cl16_a_server_that_comes_moves_its_part() -> None:
    ratios = [moved * (count + 1) for count, moved in moved_fractions()]
    assert len(ratios) == 100
    assert abs(statistics.mean(ratios) - 1) <= MOVED_OFF_MAX


def test_cl17_load_is_even() -> None:
    spreads = load_spreads()
    assert statistics.mean(deviation for deviation, _ in spreads) <= DEVIATION_MAX
    assert max(peak for _, peak in spreads) <= PEAK_MAX


def _param(row: str) -> object:
    """Rows on bookies start a cluster: they are a part of `make full`. So is the row of changes,
    which tests/unit/test_benchmarks_run.py runs in `make test`."""
    full = (pytest.mark.tier("full", seconds=25), pytest.mark.timeout(120))
    is_full = row.endswith("_bookies") or row == "stream_changes"
    return pytest.param(row, marks=full if is_full else pytest.mark.tier("test"))


@pytest.mark.parametrize("row", list(map(_param, ROWS)))
def test_a_row_of_the_benchmarks_runs_alone(row: str, tmp_path: Path) -> None:
    missing = why_not() if row.endswith("_bookies") else None
    if missing is not None:
        pytest.skip(missing)
    told = tmp_path / "told.json"
    command = [sys.executable, "-m", "benchmarks.streams", row, "--quick", "--rounds", "1"]
    command += ["--directory", str(tmp_path), "--json", str(told)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    findings = json.loads(told.read_text())["findings"]
    assert {each["row"] for each in findings} == {row}
    assert all(each["measured"] in done.stdout for each in findings)
    assert [path.name for path in tmp_path.iterdir()] == ["told.json"], "scratch is cleaned up"


def test_an_unknown_row_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.streams", "routing"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 2
    assert "route_key" in done.stderr
