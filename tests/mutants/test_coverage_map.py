"""The map finds the tests of a line, also when lines moved since they were traced."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.coverage_map import CoverageMap, TracedTest, then_lines, to_bits, to_lines
from tests.mutants.mapping import stale_files

THEN = "a = 1\nb = 2\nc = 3\n"
MODULE, TESTS = "dlog/x.py", "tests/test_x.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in ((MODULE, THEN), (TESTS, "# tests\n"), ("tests/test_y.py", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def _traced(name: str, *lines: int) -> TracedTest:
    return TracedTest(f"{TESTS}::{name}", 0.5, True, {MODULE: frozenset(lines)})


def _stored(root: Path, *tests: TracedTest, complete: bool = True) -> CoverageMap:
    known = CoverageMap(root / ".mutants" / "map.sqlite")
    known.store_file(root, TESTS, tests, complete=complete)
    return known


def _names(known: CoverageMap, text: str, *lines: int) -> set[str]:
    return {test.name.partition("::")[2] for test in known.tests_of(MODULE, text, lines)}


def test_the_tests_of_a_line_are_found(root: Path) -> None:
    known = _stored(root, _traced("one", 1, 2), _traced("other[x-1]", 2))
    assert _names(known, THEN, 1) == {"one"}
    assert _names(known, THEN, 2) == {"one", "other[x-1]"}
    assert _names(known, THEN, 3) == set()


def test_a_test_is_known_by_its_file_and_function(root: Path) -> None:
    (test,) = _stored(root, _traced("other[x::y]", 2)).tests_of(MODULE, THEN, [2])
    assert (test.file, test.function) == (TESTS, f"{TESTS}::other")
    assert (test.seconds, test.breadth) == (0.5, 1)


def test_lines_that_moved_are_found_where_they_stood(root: Path) -> None:
    known = _stored(root, _traced("one", 1), _traced("two", 2))
    assert _names(known, f"# new\n# new\n{THEN}", 4) == {"two"}


def test_a_line_that_is_new_is_found_by_its_neighbours() -> None:
    now = "a = 1\nnew = 1\nb = 2\nc = 3\n"
    assert then_lines(THEN, now, {2}) == {1, 2}
    assert then_lines(THEN, now, {3}) == {2}
    assert then_lines(THEN, THEN.replace("b = 2", "b = 7"), {2}) == {2}


def test_a_file_that_was_traced_again_is_stored_once(root: Path) -> None:
    _stored(root, _traced("one", 1), _traced("gone", 1)).close()
    assert _names(_stored(root, _traced("one", 2)), THEN, 1, 2) == {"one"}


def test_files_that_changed_or_were_cut_short_are_stale(root: Path) -> None:
    target = root / ".mutants" / "map.sqlite"
    _stored(root, _traced("one", 1)).close()
    assert stale_files(root, target, "check", [TESTS, "tests/test_y.py"]) == ["tests/test_y.py"]
    (root / TESTS).write_text("# changed\n")
    assert stale_files(root, target, "check", [TESTS]) == [TESTS]
    _stored(root, _traced("one", 1), complete=False).close()
    assert stale_files(root, target, "check", [TESTS]) == [TESTS]


def test_lines_are_kept_as_bits() -> None:
    assert to_lines(to_bits([1, 8, 600])) == {1, 8, 600}
