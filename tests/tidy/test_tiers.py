"""Each test has a tier, a tier holds those before it, and a slice of the longest runs every day."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source import ROOT, sources
from tests.tiers import FOLDERS, SLICE_S, TIERS, draw_slice, tier_of_folder

TESTS = """
import pytest

def test_quick(): pass

@pytest.mark.tier("test")
def test_once(): pass

@pytest.mark.tier("full", seconds=9_999)
def test_long(): pass
"""


def collected(where: Path, *arguments: str, text: str = TESTS) -> subprocess.CompletedProcess[str]:
    """What pytest would run of this file, in a copy of the folders that decides about tiers."""
    folder = where / "tests" / "unit"
    folder.mkdir(parents=True)
    for name in ("conftest.py", "tests/tiers.py"):
        (where / name).write_text((ROOT / name).read_text())
    (folder / "test_planted.py").write_text(text)
    (where / "pytest.ini").write_text(
        "[pytest]\npythonpath = .\nmarkers = tier(name, seconds): x\naddopts = --strict-markers\n"
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", *arguments],
        cwd=where,
        env={"PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


@pytest.mark.parametrize(
    ("tier", "names"),
    [
        ("check", ["test_quick"]),
        ("test", ["test_quick", "test_once"]),
        ("full", ["test_quick", "test_once", "test_long"]),
        (None, ["test_quick", "test_once", "test_long"]),
    ],
)
def test_a_tier_holds_those_before_it(tmp_path: Path, tier: str | None, names: list[str]) -> None:
    done = collected(tmp_path, *([] if tier is None else ["--tier", tier]))
    told = [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    assert told == names, done.stdout + done.stderr


@pytest.mark.parametrize("bad", ['"ful"', '"full", minutes=1', ""])
def test_a_tier_that_is_none_is_refused(tmp_path: Path, bad: str) -> None:
    text = f"import pytest\n@pytest.mark.tier({bad})\ndef test_odd(): pass\n"
    done = collected(tmp_path, "--tier", "check", text=text)
    assert done.returncode != 0
    assert "must name one of ('check', 'test', 'full')" in done.stdout + done.stderr


def test_each_folder_of_tests_has_a_tier() -> None:
    files = [source.where for source in sources("tests") + sources("integration")]
    assert {tier_of_folder(where) for where in files} == {"check", "test"}
    assert set(FOLDERS.values()) <= set(TIERS)


def test_the_slice_fits_its_budget_and_every_test_comes_into_it_in_time() -> None:
    long = [(f"tests/test_{number}", 7.0) for number in range(100)]
    seen: set[str] = set()
    for commit in range(200):
        drawn = draw_slice(long, f"commit {commit}")
        assert 7.0 * len(drawn) <= SLICE_S < 7.0 * (len(drawn) + 1)
        seen |= drawn
    assert seen == {name for name, _ in long}
    assert draw_slice(long, "a") == draw_slice(reversed(long), "a") != draw_slice(long, "b")
