"""The map is built for one tier, of folders or single files, and a cut build goes on."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.coverage_map import CoverageMap
from tests.mutants.mapping import NotTraced, mapped_files

TOOL = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(300)  # programs of its own, at low priority
QUICK, SLOW = "tests/unit/test_quick.py", "tests/unit/test_slow.py"
BROKEN = "tests/unit/test_broken.py"
TREE = {
    "dlog/toy.py": "def double(n):\n    return 2 * n\n",
    QUICK: """
import pytest
import toy

def test_in_check():
    assert toy.double(1) == 2

@pytest.mark.tier("full")
def test_in_full():
    assert toy.double(2) == 4
""",
    SLOW: """
import pytest
import toy

@pytest.mark.tier("test")
def test_in_test():
    assert toy.double(3) == 6
""",
    "tests/unit/test_planted.py": "",
    "tests/fuzz/test_fuzz.py": "",
    "tests/unit/helper.py": "",
    "pytest.ini": "[pytest]\npythonpath = dlog\nmarkers =\n    tier(name, seconds): the tier\n",
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("conftest.py", "tests/tiers.py"):
        shutil.copy(TOOL / name, tmp_path / name)
    monkeypatch.setenv("PYTHONPATH", str(TOOL))
    monkeypatch.setattr(command, "ROOT", tmp_path)
    return tmp_path


def _make_map(root: Path, *given: str) -> CoverageMap:
    target = root / "map.sqlite"
    assert command.main(["map", "--map", str(target), *given]) == 0
    return CoverageMap(target)


def _tests(known: CoverageMap) -> dict[str, str]:
    """The tier of each test of the line, by the name of its function."""
    text = TREE["dlog/toy.py"]
    found = known.tests_of("dlog/toy.py", text, [2])
    return {test.name.partition("::")[2]: test.tier for test in found}


def test_a_file_that_is_named_is_mapped_and_no_other(root: Path) -> None:
    known = _make_map(root, "--tier", "full", QUICK)
    assert _tests(known) == {"test_in_check": "check", "test_in_full": "full"}
    assert set(known.complete_files()) == {QUICK}


def test_a_tier_is_mapped_and_then_the_next(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / BROKEN).write_text("import nothing_of_this_name\n")
    known = _make_map(root, "--tier", "check", "tests/unit")
    assert _tests(known) == {"test_in_check": "check"}
    assert set(known.complete_files()) == {QUICK, SLOW}, "a broken file costs no other"
    assert set(known.complete_files("test")) == set()
    capsys.readouterr()
    known = _make_map(root, "--tier", "check", QUICK, SLOW)
    assert capsys.readouterr().out == "the map has 2 of 2 test files up to date\n"
    known = _make_map(root, "--tier", "test", SLOW)
    assert set(known.complete_files("test")) == {SLOW}
    assert _tests(known) == {"test_in_check": "check", "test_in_test": "test"}


def test_a_build_whose_time_is_up_keeps_what_the_map_has(root: Path) -> None:
    known = CoverageMap(root / "map.sqlite")
    known.store_file(root, QUICK, [], complete=True, tier="check")
    known.close()
    known = _make_map(root, "--tier", "check", "--seconds", "0", "tests/unit")
    assert set(known.complete_files()) == {QUICK}


def test_a_file_may_be_named_by_its_whole_path(root: Path) -> None:
    assert mapped_files(root, "check", [str(root / QUICK)]) == [QUICK]


def test_the_folders_of_other_tiers_are_left_out(root: Path) -> None:
    assert mapped_files(root, "check", ["tests"]) == [QUICK, SLOW]
    assert mapped_files(root, "test", ["tests"]) == ["tests/fuzz/test_fuzz.py", QUICK, SLOW]


@pytest.mark.parametrize(
    "place", ["tests/nowhere", "tests/unit/helper.py", "tests/unit/test_planted.py", "dlog"]
)
def test_what_is_never_traced_is_refused_by_name(
    root: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(NotTraced, match="must be a folder below tests/"):
        mapped_files(root, "check", [place])
    assert command.main(["map", place]) == command.COULD_NOT_RUN
    assert repr(place) in capsys.readouterr().err


def test_a_map_of_an_older_shape_is_made_anew(tmp_path: Path) -> None:
    old = sqlite3.connect(tmp_path / "map.sqlite")
    old.execute("CREATE TABLE test_files (path TEXT, digest TEXT, complete INTEGER)")
    old.execute("INSERT INTO test_files VALUES ('tests/unit/test_x.py', '', 1)")
    old.commit()
    old.close()
    assert CoverageMap(tmp_path / "map.sqlite").complete_files() == {}
