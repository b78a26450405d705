"""`python -m dlog.testing.sim`: runs, tells, shrinks, and counts planted bugs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dlog.testing.sim import corpus
from dlog.testing.sim.__main__ import main
from dlog.testing.sim.planted import all_plants, planted
from dlog.testing.sim.planted.shown import show
from dlog.testing.sim.runs import hunt
from dlog.testing.sim.tiers import death_of

ROOT = Path(__file__).parents[2]
PLANT = "a_dead_writer_comes_back"
# Weather of short histories, which are soon made small.
FEW = {"writers": 2, "incarnations": 2, "readers": 1, "standbys": 0, "life": 0.0}


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
    found = hunt(replace(all_plants()[PLANT], fixed=FEW), count=100).finding
    assert found is not None
    fix = [word for name, value in FEW.items() for word in ("--fix", f"{name}={value}")]
    history = ["log-abstract", str(found.seed), *fix, "--plant", PLANT]
    assert main(["tell", *history]) == 1
    kept = tmp_path / "small.json"
    assert main(["shrink", *history, "-o", str(kept)]) == 0
    assert "not benign" in capsys.readouterr().out
    assert json.loads(kept.read_text())["world"] == "log-abstract"
    assert main(["tell", "log-abstract", str(kept), "--plant", PLANT]) == 1
    assert main(["tell", "log-abstract", str(kept)]) == 0


@pytest.mark.tier("test")
def test_of_a_bug_that_no_history_shows_the_test_is_told_that_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "acks_count_after_a_failure"
    assert main(["plants", name, "--seconds", "0.5"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"shown     {name}")
    assert "by tests/unit/writer/test_core.py::" in told
    assert "0 of 1 killed by histories, 1 by the test that each names" in told


@pytest.mark.tier("test")
def test_a_test_that_does_not_notice_shows_nothing() -> None:
    passes = "tests/unit/test_ids.py::test_message_id_vectors"
    plant = replace(all_plants()["acks_count_after_a_failure"], shown_by=passes)
    assert show(plant) is None


@pytest.mark.parametrize("name", sorted(n for n, p in all_plants().items() if p.shown_by))
def test_the_test_that_shows_a_bug_is_there(name: str) -> None:
    where, _, test = (all_plants()[name].shown_by or "").partition("::")
    assert f"def {test}(" in (ROOT / where).read_text()
    assert all_plants()[name].survives


def test_the_table_names_the_tier_and_the_test_of_each_bug(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plants", "--table", "--tier", "check", PLANT, "no_barrier"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [row.split()[:3] for row in told[:2]] == [
        [PLANT, "log-abstract", "check"],
        ["no_barrier", "log-abstract", "check"],
    ]
    assert told[0].endswith("tests/sim/test_corpus.py [log-abstract]")
    assert told[-1] == (
        "2 of 2 planted bugs are noticed in check (100.0 %), 0 more in test, 0 by none"
    )


def test_a_bug_that_the_corpus_overlooks_dies_by_its_hunt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(corpus, "recorded", dict)
    death = death_of(all_plants()[PLANT])
    assert (death.tier, death.test) == ("test", f"test_a_planted_bug_is_noticed[{PLANT}]")
    assert death_of(all_plants()[PLANT], hunted=False).tier is None


def test_record_keeps_a_history_of_each_bug_that_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = corpus.load()[PLANT]
    covered = replace(own, name="no_barrier", by=PLANT)
    monkeypatch.setattr(corpus, "FILE", tmp_path / "telling.json")
    corpus.save([replace(own, seed=10_000), covered])
    assert main(["plants", "--record", "--seconds", "5", PLANT]) == 0
    assert capsys.readouterr().out.startswith(f"recorded  {PLANT}")
    kept = corpus.load()
    with planted(all_plants()[PLANT]):
        assert corpus.play(kept[PLANT]) is not None
    assert corpus.play(kept[PLANT]) is None
    assert kept["no_barrier"].is_played, "nobody knows whether the new history notices it"


def test_reduce_leaves_out_what_another_history_notices(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = corpus.load()[PLANT]
    monkeypatch.setattr(corpus, "FILE", tmp_path / "telling.json")
    monkeypatch.setattr(corpus, "EVENTS_KEPT_MAX", 0)
    bugs = {"again": all_plants()[PLANT], PLANT: all_plants()[PLANT]}
    corpus.save([own, replace(own, name="again")])
    reduced = {each.name: each.by for each in corpus.reduce(corpus.load(), bugs)}
    assert reduced == {PLANT: None, "again": PLANT}


def test_plants_says_who_killed_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plants", PLANT]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"killed    {PLANT}")
    assert told.endswith(
        "1 of 1 killed by histories, 0 by the test that each names, 0 of the others unexplained\n"
    )
