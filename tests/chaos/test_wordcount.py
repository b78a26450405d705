"""`python -m examples.wordcount`: workers come and go, one is killed, one is frozen, and each word
is counted once; checked by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source import ROOT

ACTS = ("one worker", "three workers", "kill -9 of one", "frozen", "each counted once")


@pytest.mark.chaos
@pytest.mark.timeout(120)
def test_each_word_is_counted_once(tmp_path: Path) -> None:
    """LH-02, LH-04, LH-10, LH-12, LH-14, flaw 5: as a user would run it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DLOG")}
    done = subprocess.run(
        [sys.executable, "-m", "examples.wordcount"],
        cwd=ROOT,
        env=kept | {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert [act for act in ACTS if act not in done.stdout] == []
    assert done.stdout.count("  ok  ") == 5, "each claim holds"
    assert list(tmp_path.iterdir()) == [], "scratch is cleaned up"
