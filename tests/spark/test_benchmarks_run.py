"""The rows of the benchmarks on Spark run, with tiny sizes, and tell what they should. Those beside
Kafka fetch a broker, and are left to who measures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FINDINGS = {"read": 6, "scaling": 1, "sink": 1, "micro_batch": 1, "export": 1}

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.tier("full", seconds=50),
    pytest.mark.skipif(shutil.which("java") is None, reason="no Java for Spark"),
]


def run_quick(where: Path, *rows: str) -> list[dict[str, Any]]:
    told = where / "told.json"
    command = [sys.executable, "-m", "benchmarks.spark", *rows, "--quick", "--rounds", "1"]
    command += ["--directory", str(where), "--json", str(told)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=390)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [path.name for path in where.iterdir()] == ["told.json"], "scratch is cleaned up"
    found: list[dict[str, Any]] = json.loads(told.read_text())["findings"]
    return found


@pytest.mark.parametrize("row", FINDINGS)
def test_a_row_runs(row: str, tmp_path: Path) -> None:
    found = run_quick(tmp_path, row)
    assert [each["row"] for each in found] == [row] * FINDINGS[row]
    assert all(each["measured"] for each in found)


@pytest.mark.chaos
def test_each_message_once_though_tasks_and_commits_are_killed(tmp_path: Path) -> None:
    """Whoever looks at the time sees nothing; whoever looks at the messages sees each once."""
    (found,) = run_quick(tmp_path, "once")
    assert found["values"]["kills"] >= 4
    assert (found["values"]["lost"], found["values"]["doubled"]) == (0, 0)
    assert "0 strange, 0 damages" in found["measured"]
