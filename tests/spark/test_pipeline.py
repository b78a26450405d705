"""The example that is killed while it works, as its readers run it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.chaos
@pytest.mark.timeout(400)
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java for Spark")
def test_each_order_once_though_the_job_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.pipeline"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=390,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("was killed") == 3
    assert "each of 6000 orders once, after 3 kills" in done.stdout
