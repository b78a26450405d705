"""A mutant of a toy package is noticed or lives, as its tests have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.coverage_map import MappedTest
from tests.mutants.draw import Mutant
from tests.mutants.edits import Edit
from tests.mutants.report import as_json, rate, summary
from tests.mutants.runs import Runner
from tests.mutants.scratch import Scratch
from tests.mutants.trials import LIVES, NOT_COVERED, NOTICED, Unsteady, Verdict, try_one

SOURCE = """
LIMIT = 3


def fits(count: int) -> bool:
    return count <= LIMIT
"""
TESTS = """
import os
import toy

def test_far_away():
    assert toy.fits(1) and not toy.fits(9)

def test_at_the_limit():
    assert toy.fits(3)

def test_fails_always():
    assert False

def test_dies():
    if not toy.fits(3):
        os._exit(3)
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "toy.py").write_text(SOURCE)
    (tmp_path / "test_toy.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


@pytest.fixture(params=["alone", "forked"])
def runner(request: pytest.FixtureRequest, toy: Path) -> Iterator[Runner]:
    made = Runner(Scratch(toy), ["test_toy.py"] if request.param == "forked" else [])
    yield made
    made.close()


def _mutant(old: str, new: str) -> Mutant:
    at = SOURCE.index(old)
    line = SOURCE[:at].count("\n") + 1
    here = (line, line)
    function = here if line > 4 else None
    edit = Edit("toy.py", "comparison", at, at + len(old), new, here, here, function)
    return Mutant(1, edit, SOURCE)


def _try(runner: Runner, mutant: Mutant, *names: str) -> Verdict:
    tests = [MappedTest(f"test_toy.py::{name}", 0.01, True, 1) for name in names]
    return try_one(runner, mutant, tests, len(tests), 60.0, Unsteady())


def test_a_mutant_is_noticed_by_the_test_that_fails_with_it_only(runner: Runner, toy: Path) -> None:
    names = ("test_far_away", "test_fails_always", "test_at_the_limit")
    told = _try(runner, _mutant("<=", "<"), *names)
    assert (told.outcome, told.by) == (NOTICED, "test_toy.py::test_at_the_limit")
    assert (toy / "toy.py").read_text() == SOURCE


def test_a_mutant_lives_if_all_that_run_it_pass(runner: Runner) -> None:
    told = _try(runner, _mutant("<=", "<"), "test_far_away")
    assert (told.outcome, told.ran, told.time_was_up) == (LIVES, 1, False)


def test_a_mutant_that_ends_the_process_is_noticed(runner: Runner) -> None:
    told = _try(runner, _mutant("<=", "<"), "test_dies")
    assert (told.outcome, told.by) == (NOTICED, "test_toy.py::test_dies (ended the process)")


def test_a_mutant_that_cannot_be_imported_is_noticed(runner: Runner) -> None:
    assert _try(runner, _mutant("LIMIT = 3", "LIMIT = y"), "test_far_away").by == "import"


def test_a_mutant_without_tests_is_not_covered(runner: Runner) -> None:
    assert _try(runner, _mutant("<=", "<")).outcome == NOT_COVERED
    assert _try(runner, _mutant("LIMIT = 3", "LIMIT = y")).by == "import"


def test_tests_run_in_the_order_in_which_they_are_named(runner: Runner) -> None:
    names = [f"test_toy.py::{name}" for name in ("test_at_the_limit", "test_far_away")]
    ran = runner.run(dict.fromkeys(names, 10.0), 60.0)
    assert (ran.begun, ran.failed, ran.ended) == (names, None, 2)


def test_the_report_shows_what_lives_and_the_rate() -> None:
    mutant = _mutant("<=", "<")
    verdicts = [Verdict(mutant, NOTICED, "t", 1.0, 3), Verdict(mutant, LIVES, "", 2.0, 7, 7)]
    told = summary(verdicts, ["tests/x.py::shaky"])
    assert "-    return count <= LIMIT\n+    return count < LIMIT" in told
    assert "covered by 7 tests, 7 ran" in told
    assert "tests/x.py::shaky" in told
    assert told.endswith("1 of 2 mutants noticed: 50.0%")
    assert rate(verdicts) == 0.5
    assert '"outcome": "lives"' in as_json("s", verdicts, [])
