"""`make demo`: the story runs, checks itself, fits the picture in the README, leaves nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import ROOT


def _shape(line: str) -> str:
    """A drawn line without its numbers and without how long its gaps are."""
    return re.sub(r"[ ·]+", " ", re.sub(r"\d+", "N", line)).strip()


@pytest.mark.tier("test")  # it reads with Spark
@pytest.mark.timeout(120)
@pytest.mark.chaos
def test_the_demo_tells_its_story_and_every_claim_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "dlog.Fenced: " in done.stdout
    assert "Everything above was checked." in done.stdout
    assert list(tmp_path.iterdir()) == []
    picture = (ROOT / "README.md").read_text().split("```text\n")[1].split("```")[0].splitlines()
    shown = {_shape(line) for line in done.stdout.splitlines()}
    assert len(picture) == 3
    assert {_shape(line) for line in picture} <= shown


def test_a_claim_that_does_not_hold_ends_the_demo() -> None:
    from examples.demo import story

    with pytest.raises(SystemExit, match="the demo failed: one is two, but: 3"):
        story.check(False, "one is two", 3)
    with pytest.raises(SystemExit, match="nothing is missing or repeated"):
        story.check_seen([{"value": "a"}, {"value": "a"}], ["a"], [])
