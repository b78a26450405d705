"""A test that fails beside others gets one try alone; more, and other failures, get none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.run import SECOND_TRIES_MAX, counted_again

ROOT = Path(__file__).resolve().parents[2]
UNSTEADY = """
import pathlib, pytest
@pytest.mark.parametrize("number", range({count}))
def test_unsteady(number):
    seen = pathlib.Path(f"seen-{{number}}")
    before = seen.exists()
    seen.touch()
    assert before
def test_steady(): pass
"""
BROKEN = "def test_broken(): assert False\n"


TIERS = """
def pytest_addoption(parser):
    parser.addoption("--tier")
"""
# Fails at each first, third, fifth … time.
WAVERING = """
import pathlib
def test_wavering():
    seen = pathlib.Path("seen")
    count = int(seen.read_text()) + 1 if seen.exists() else 1
    seen.write_text(str(count))
    assert count % 2 == 0
"""


def run(where: Path, *arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
    (where / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (where / f"test_{name}.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "tests.tidy.run", *arguments, "--rootdir=.", "--", "-n2"],
        cwd=where,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )


def test_what_passes_only_alone_is_named(tmp_path: Path) -> None:
    done = run(tmp_path, unsteady=UNSTEADY.format(count=2))
    assert done.returncode == 0, done.stdout
    *_, heading, one, other, closing = done.stdout.splitlines()
    assert heading == "passed only alone:"
    assert one.strip() == "test_unsteady.py::test_unsteady[0]"
    assert other.strip() == "test_unsteady.py::test_unsteady[1]"
    assert closing.startswith("3 passed in ")
    assert done.stdout.count("assert before") >= 2, "how it failed stays to be read"


def test_what_fails_alone_has_failed(tmp_path: Path) -> None:
    done = run(tmp_path, unsteady=UNSTEADY.format(count=1), broken=BROKEN)
    assert done.returncode == 1
    assert "FAILED test_broken.py::test_broken" in done.stdout
    assert "passed only alone" not in done.stdout


def test_what_needed_its_second_try_in_both_runs_has_failed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(TIERS)
    done = run(tmp_path, "--twice", "--tier", "full", wavering=WAVERING)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("passed only alone:") == 2
    assert (
        "FAILED test_wavering.py::test_wavering: it passed only alone in both runs" in done.stdout
    )


def test_what_needed_its_second_try_in_one_of_two_runs_has_passed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(TIERS)
    done = run(tmp_path, "--twice", unsteady=UNSTEADY.format(count=1))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed only alone:") == 1


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    done = run(tmp_path, unsteady=UNSTEADY.format(count=SECOND_TRIES_MAX + 1))
    assert done.returncode == 1
    assert done.stdout.count("FAILED test_unsteady.py") == SECOND_TRIES_MAX + 1


def test_a_file_that_cannot_be_read_gets_no_second_try(tmp_path: Path) -> None:
    done = run(tmp_path, unsteady=UNSTEADY.format(count=1), broken="import nothing_of_this_name\n")
    assert done.returncode != 0
    assert "once more" not in done.stdout.lower()


def test_a_run_that_was_given_up_gets_no_second_try(tmp_path: Path) -> None:
    endless = "import time\ndef test_slow(): time.sleep(3)\ndef test_never(): pass\n"
    (tmp_path / "conftest.py").write_text(
        "def pytest_runtest_teardown(item):\n"
        "    if item.name == 'test_unsteady[0]':\n"
        "        item.session.shouldfail = 'session-timeout: over'\n"
    )
    done = run(tmp_path, unsteady=UNSTEADY.format(count=1), zlow=endless)
    assert done.returncode != 0
    assert "once more" not in done.stdout.lower()


@pytest.mark.parametrize(
    ("closing", "again"),
    [
        ("2 failed, 9 passed, 3 skipped in 3.10s", "11 passed, 3 skipped in 3.10s"),
        ("1 failed, 9 passed, 1 error in 3.10s", "11 passed in 3.10s"),
        ("2 failed in 3.10s", "2 passed in 3.10s"),
    ],
)
def test_the_closing_line_counts_them_as_passed(closing: str, again: str) -> None:
    assert counted_again(closing, 2) == again
