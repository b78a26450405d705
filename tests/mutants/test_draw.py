"""A seed draws the same mutants again, of the rooms that were asked for, by all operators."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.mutants.draw import draw, modules

SOURCE = "\n".join(
    f"def f{n}(a: int) -> bool:\n    return a + {n} < {n * 7} and a" for n in range(40)
)
SOURCES = {
    "dlog/writer/a.py": SOURCE,
    "dlog/reader/b.py": SOURCE,
    "dlog/meta/__init__.py": '"""."""',
}


def test_a_seed_draws_the_same_again_and_another_one_others() -> None:
    assert draw(SOURCES, "s", 30) == draw(SOURCES, "s", 30)
    assert draw(SOURCES, "s", 30) != draw(SOURCES, "t", 30)


def test_whoever_asks_for_more_gets_the_same_first() -> None:
    assert draw(SOURCES, "s", 30)[:10] == draw(SOURCES, "s", 10)


def test_no_mutant_is_drawn_twice_and_no_more_than_there_are() -> None:
    few = {"dlog/x.py": "x = a < b\n"}
    assert len(draw(few, "s", 5)) == 1
    edits = [mutant.edit for mutant in draw(SOURCES, "s", 100)]
    assert len(set(edits)) == 100


def test_operators_of_few_places_are_drawn_as_often() -> None:
    rare = {"dlog/x.py": "x = min(a, b)\n" * 20 + "x = a < b\n" * 400}
    drawn = Counter(mutant.edit.operator for mutant in draw(rare, "s", 40))
    assert drawn["min/max"] >= 10


def test_rooms_are_folders_and_modules(tmp_path: Path) -> None:
    (tmp_path / "dlog" / "writer" / "core").mkdir(parents=True)
    for name in ("writer/core/a.py", "writer/b.py", "drive.py", "ids.py"):
        (tmp_path / "dlog" / name).write_text("x = 1\n")
    found = modules(tmp_path, ["writer", "drive"])
    assert sorted(found) == ["dlog/drive.py", "dlog/writer/b.py", "dlog/writer/core/a.py"]
