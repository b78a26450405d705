"""`python -m dlog.testing.sim`: runs, tells, shrinks, and counts planted bugs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dlog.testing.sim.__main__ import main
from dlog.testing.sim.planted import all_plants
from dlog.testing.sim.planted.shown import show

ROOT = Path(__file__).parents[2]
PLANT = "a_dead_writer_comes_back"


def test_run_counts_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "log-abstract", "--seeds", "0", "8"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("8 histories of log-abstract in ")
    assert "a minute" in told
    assert "takeover.read" in told
    assert told.endswith("0 violations\n")


def test_run_fixes_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "log-abstract", "--seeds", "0", "3", "--fix", "readers=3"]) == 0
    assert "read.entered" in capsys.readouterr().out


def test_tell_shows_draws_and_a_chart(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tell", "log-abstract", "1"]) == 0
    told = capsys.readouterr().out
    assert "what it was for" in told
    assert "log meta: epoch 1" in told


@pytest.mark.timeout(120)
def test_a_failure_is_shrunk_kept_and_told(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    seed = _first_failure(capsys)
    kept = tmp_path / "small.json"
    assert main(["shrink", "log-abstract", seed, "--plant", PLANT, "-o", str(kept)]) == 0
    assert "not benign" in capsys.readouterr().out
    assert json.loads(kept.read_text())["world"] == "log-abstract"
    assert main(["tell", "log-abstract", str(kept), "--plant", PLANT]) == 1
    assert main(["tell", "log-abstract", str(kept)]) == 0


def _first_failure(capsys: pytest.CaptureFixture[str]) -> str:
    for seed in range(100):
        if main(["tell", "log-abstract", str(seed), "--plant", PLANT]):
            capsys.readouterr()
            return str(seed)
    raise AssertionError("none of these fails")


def test_of_a_bug_that_no_history_shows_the_test_is_told_that_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "acks_count_after_a_failure"
    assert main(["plants", name, "--seconds", "0.5"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"shown     {name}")
    assert "by tests/unit/writer/test_core.py::" in told
    assert "0 of 1 killed by histories, 1 by the test that each names" in told


def test_a_test_that_does_not_notice_shows_nothing() -> None:
    plant = replace(all_plants()["acks_count_after_a_failure"], shown_by="tests/unit/test_ids.py")
    assert show(plant) is None


@pytest.mark.parametrize("name", sorted(n for n, p in all_plants().items() if p.shown_by))
def test_the_test_that_shows_a_bug_is_there(name: str) -> None:
    where, _, test = (all_plants()[name].shown_by or "").partition("::")
    assert f"def {test}(" in (ROOT / where).read_text()
    assert all_plants()[name].survives


def test_plants_says_who_killed_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plants", PLANT]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"killed    {PLANT}")
    assert told.endswith(
        "1 of 1 killed by histories, 0 by the test that each names, 0 of the others unexplained\n"
    )
