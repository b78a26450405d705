"""What would prove nothing is refused: no history, no seconds, a bug or a tape that is not there, a
tape of another world; and a planted bug that does not fit the code is not noticed, but stale."""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog.testing.sim import __main__ as command
from dlog.testing.sim import corpus, coverage, planted
from dlog.testing.sim.__main__ import main
from dlog.testing.sim.planted import Plant, Plants, all_plants, shown
from dlog.testing.sim.runs import Hunt, SavedTape, StalePlant, Tally, hunt, load_tape, run_many
from dlog.testing.sim.shrink import shrink
from dlog.testing.sim.tiers import Death
from tests.sim.histories import Stretch, noticed, play, play_and_meet

pytestmark = pytest.mark.tier("check")

PLANT = "a_dead_writer_comes_back"

REFUSED = [
    "run log-abstract --seeds 0 0",
    "run log-abstract --seeds 0 -5",
    "run log-abstract --seconds 0",
    "run log-abstract --seconds -1",
    "run log-abstract --seconds nan",
    "run log-abstract --seeds 0 1 --fix readers",
    "run log-abstract --seeds 0 1 --fix =3",
    "run no-world --seeds 0 1",
    "tell log-abstract nowhere.json",
    "tell log-abstract x",
    "tell log-abstract 1 --plant no_such_bug",
    "shrink log-abstract nowhere.json",
    "shrink log-abstract 1 --seconds 0",
    "plants no_such_bug",
    "plants --seconds 0",
    "plants --table no_such_bug",
    "plants --record no_such_bug",
    "shrinkage no_such_bug",
    "shrinkage --seconds -1",
    "digest log-abstract 0 0",
    "nothing",
    "",
]


@pytest.mark.parametrize("words", REFUSED)
def test_a_command_that_would_prove_nothing_is_refused(words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2


@pytest.mark.parametrize("verb", ["tell", "shrink"])
def test_a_tape_of_another_world_is_refused(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tape = tmp_path / "tape.json"
    SavedTape("log-cuts", [0.5], None).save(tape)
    with pytest.raises(SystemExit):
        main([verb, "log-abstract", str(tape)])
    assert "the tape is of the world log-cuts" in capsys.readouterr().err


def test_an_option_that_the_weather_does_not_have_fails() -> None:
    assert main(["run", "log-abstract", "--seeds", "0", "1", "--fix", "nothing=1"]) == 1


@pytest.mark.parametrize("verb", ["run", "digest"])
def test_a_history_that_breaks_a_promise_fails_the_command(verb: str) -> None:
    told = corpus.recorded()[PLANT]
    words = {
        "run": ["run", told.world, "--seeds", str(told.seed), "1"],
        "digest": ["digest", told.world, str(told.seed), "1"],
    }[verb]
    for name, value in told.fixed.items() if verb == "run" else ():
        words += ["--fix", f"{name}={json.dumps(value)}"]
    assert main(words) == 0
    real = command.run_one
    with pytest.MonkeyPatch.context() as patch, planted.planted(all_plants()[PLANT]):
        if verb == "digest":
            patch.setattr(
                command, "run_one", lambda *about, **how: real(*about, **how, **told.fixed)
            )
        assert main(words) == 1


def test_shrink_of_a_history_with_nothing_wrong_fails() -> None:
    assert main(["shrink", "log-abstract", "1"]) == 1
    with pytest.raises(ValueError, match="nothing is wrong"):
        shrink([0.5], lambda values: (None, 1))


# --- planted bugs


def _plants(patch: pytest.MonkeyPatch, plant: Plant) -> None:
    patch.setattr(command, "all_plants", lambda: {plant.name: plant})
    patch.setattr(command, "hunt", lambda plant, **_: Hunt(plant, 1, 0.0, None))


@pytest.mark.parametrize(
    ("survives", "shown_by", "code"),
    [
        (None, None, 1),
        ("another rule", None, 0),
        ("another rule", "tests/no_such_test.py::test_nothing", 1),
    ],
)
def test_a_bug_whose_test_does_not_show_it_is_unexplained(
    survives: str | None, shown_by: str | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = replace(all_plants()[PLANT], survives=survives, shown_by=shown_by)
    _plants(monkeypatch, plant)
    assert main(["plants", PLANT]) == code


def test_a_bug_that_is_not_found_fails_the_shrinkage(monkeypatch: pytest.MonkeyPatch) -> None:
    _plants(monkeypatch, all_plants()[PLANT])
    assert main(["shrinkage", PLANT]) == 1


def test_a_bug_that_no_tier_notices_fails_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    death = Death(PLANT, "log-abstract", None, "not noticed", 0.0)
    monkeypatch.setattr(command.tiers, "death_of", lambda plant, **_: death)
    assert main(["plants", "--table", PLANT]) == 1


def test_a_bug_that_no_history_tells_fails_the_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(corpus, "FILE", tmp_path / "telling.json")
    corpus.save([])
    monkeypatch.setattr(corpus, "find_telling", lambda plant, **_: None)
    assert main(["plants", "--record", PLANT]) == 1


def _raises(error: type[Exception]) -> Callable[[Any], None]:
    def bug(patch: Any) -> None:
        def broken(*_: Any, **__: Any) -> None:
            raise error("this name is gone")

        from dlog.writer.core import WriterCore

        patch.setattr(WriterCore, "push", broken)

    return bug


@pytest.mark.parametrize("error", [AttributeError, NameError, TypeError])
def test_a_bug_that_does_not_fit_the_code_is_stale(error: type[Exception]) -> None:
    plant = Plant("stale", "none", _raises(error), "log-abstract")
    with pytest.raises(StalePlant, match="stale does not fit the code"):
        hunt(plant, count=20)
    with pytest.raises(StalePlant):
        noticed(plant, count=20)


def test_a_stale_bug_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant(PLANT, "none", _raises(TypeError), "log-abstract", survives="another rule")
    monkeypatch.setattr(command, "all_plants", lambda: {PLANT: plant})
    assert main(["plants", PLANT]) == 1


def test_a_bug_that_plants_nothing_is_not_noticed() -> None:
    plant = Plant("harmless", "none", lambda patch: None, "log-abstract")
    with pytest.raises(AssertionError, match="2 histories"):
        noticed(plant, count=2)


def test_a_room_of_bugs_that_is_gone_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted, "ROOMS", (*planted.ROOMS, "no_such_room"))
    with pytest.raises(ModuleNotFoundError):
        all_plants()


def test_two_bugs_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Plants("log-abstract")

    @room("none")
    def twice(patch: object) -> None:
        pass

    with pytest.raises(dlog.ConfigError, match="twice"):
        room("none")(twice)
    monkeypatch.setattr(planted, "ROOMS", (planted.ROOMS[0], planted.ROOMS[0]))
    with pytest.raises(dlog.ConfigError, match="two planted bugs have one name"):
        all_plants()


def test_every_room_of_bugs_is_asked() -> None:
    """A module of planted bugs that no list names would never be hunted."""
    here = {path.stem for path in Path(planted.__file__).parent.glob("*.py")}
    found = set[str]()
    for name in here - {"__init__", "shown"}:
        module = __import__(f"{planted.__name__}.{name}", fromlist=["x"])
        found |= {
            each
            for part in vars(module).values()
            if isinstance(part, Plants)
            for each in part.by_name
        }
    assert found == all_plants().keys()


@pytest.mark.parametrize("name", ["", "no_such_bug"])
def test_a_run_that_is_to_plant_no_bug_that_there_is_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(shown.ENV_PLANT, name)
    with pytest.raises(pytest.UsageError, match="names no planted bug"):
        shown.pytest_configure(types.SimpleNamespace())  # type: ignore[arg-type]


# --- histories


@pytest.mark.parametrize("how", [{"count": 0}, {"count": -1}, {"seconds": 0.0}])
def test_no_history_proves_nothing(how: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no history of log-abstract was played"):
        run_many("log-abstract", **how).check()
    with pytest.raises(ValueError, match="no history"):
        Tally("log-abstract").check()


def test_a_stretch_of_no_histories_fails() -> None:
    with pytest.raises(ValueError, match="no history"):
        play("log-abstract", Stretch(0, 0))
    with pytest.raises(AssertionError, match="nothing has to happen"):
        play_and_meet("log-abstract", Stretch(0, 1), [], within=1)


def test_a_corpus_that_is_not_there_is_no_empty_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        corpus.load(tmp_path / "telling.json")
    with pytest.raises(dlog.ConfigError, match="no world 'no-world'"):
        corpus.corpus("no-world")


def test_a_tape_that_is_cut_is_refused(tmp_path: Path) -> None:
    tape = tmp_path / "tape.json"
    tape.write_text('{"world": "log"')
    with pytest.raises(ValueError, match="delimiter"):
        load_tape(tape)


def test_what_was_never_watched_is_missing() -> None:
    with coverage.watching() as seen:
        pass
    assert coverage.missing(seen)
    told = coverage.report(seen)
    assert all(": 0 of " in line for line in told[: len(coverage.TABLES)])
