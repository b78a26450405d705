"""What the pages name as proof is a test that is there and that `make test` runs: each promise of
INVARIANTS, and each bug in the track record of TESTING."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.proofs import IN_MAKE_TEST, Named, Proof, named_in, of_file, proofs_of
from tests.tidy.source import ROOT, Source, imports, sources

INVARIANTS, TESTING = ROOT / "docs" / "INVARIANTS.md", ROOT / "docs" / "TESTING.md"
PLANTED = "dlog/testing/sim/planted"
TAPES_TEST = "tests/sim/test_tapes.py"
_CELLS = re.compile(r"(?<!\\)\|")
_PLANTED = re.compile(r"`(\w+)` \(planted\)")
_FILE = re.compile(r"`((?:tests|integration)/[\w/]+\.(?:py|json))`")


def _rows(text: str, last: str) -> list[list[str]]:
    """The cells of each row of each table whose last column has this head."""
    found: list[list[str]] = []
    in_table = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in _CELLS.split(line)[1:-1]]
        if not cells:
            in_table = False
        elif cells[-1] == last:
            in_table = True
        elif in_table and set(cells[-1]) != {"-"}:
            found.append(cells)
    return found


def _rows_outside_tables(text: str) -> list[str]:
    """Lines that look like rows and are none, since a blank line ended their table."""
    lines = text.splitlines()
    return [
        line
        for number, line in enumerate(lines[:-1])
        if line.startswith("|") and not lines[number - 1].startswith("|")
        if not lines[number + 1].startswith("|--")
    ]


def _unproven(cells: list[str]) -> list[str]:
    """What is wrong with what a row names as proof."""
    row = " ".join(cells[:-1])[:80]
    names = named_in(cells[-1])
    wrong = [f"{row}: there is no {each}" for each in names if not each.is_there]
    proofs = [proof for each in names if (proof := each.proof) is not None]
    if not any(proof.in_make_test for proof in proofs + _proofs_by_other_names(cells[-1])):
        wrong.append(f"{row}: nothing of it runs in `make test`")
    return wrong


def _proofs_by_other_names(cell: str) -> list[Proof]:
    """Of a bug that the simulator plants, of a tape, and of a file of tests as a whole."""
    found = [proof for name in _PLANTED.findall(cell) for proof in _notices(name)]
    for where in _FILE.findall(cell):
        if (ROOT / where).exists():
            found += of_file(TAPES_TEST if where.endswith(".json") else where)
    return found


def _notices(plant: str) -> list[Proof]:
    """What notices a bug that the simulator plants: the test that it names, or its histories."""
    for room in sources(PLANTED):
        if f"def {plant}(" not in room.text:
            continue
        (bug,) = (n for n in room.tree.body if isinstance(n, ast.FunctionDef) and n.name == plant)
        named = named_in(" ".join(f"`{each}`" for each in _texts(bug.decorator_list, "shown_by")))
        if named:
            return [proof for each in named if (proof := each.proof) is not None]
        worlds = [s for s in sources("tests/sim") if "test_a_planted_bug_is_noticed" in s.text]
        return [
            proof
            for world in worlds
            if any(target == room.module for target, _ in imports(world))
            for proof in of_file(world.where)
            if proof.name == "test_a_planted_bug_is_noticed"
        ]
    return []


def _texts(decorators: list[ast.expr], keyword: str) -> Iterator[str]:
    for decorator in decorators:
        for each in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if each.arg == keyword and isinstance(each.value, ast.Constant):
                yield str(each.value.value)


def _told(wrong: list[str]) -> str:
    return "\n" + "\n".join(wrong)


def test_each_promise_has_a_proof_that_runs_in_make_test() -> None:
    rows = _rows(INVARIANTS.read_text(), "proven by")
    assert len(rows) > 90, "the tables of INVARIANTS are not understood"
    assert not (wrong := [each for row in rows for each in _unproven(row)]), _told(wrong)


def test_each_bug_of_the_track_record_is_kept_away_by_make_test() -> None:
    rows = _rows(TESTING.read_text(), "kept as")
    assert len(rows) > 40, "the track record is not understood"
    assert not (wrong := [each for row in rows for each in _unproven(row)]), _told(wrong)


def test_each_row_of_these_pages_is_in_a_table() -> None:
    for page in (INVARIANTS, TESTING):
        assert not (rows := _rows_outside_tables(page.read_text())), page.name + _told(rows)


@pytest.mark.parametrize(
    ("cell", "wrong"),
    [
        ("`tests/unit/test_ids.py::test_bytes_sort_as_ids_do`", []),
        ("`tests/unit/test_ids.py::test_gone`", ["there is no", "nothing of it runs"]),
        ("`tests/gone/test_ids.py::test_gone`", ["there is no", "nothing of it runs"]),
        ("`dlog/testing/conformance/ledger_ends.py::gone`", ["there is no", "nothing of it runs"]),
        ("`dlog/testing/conformance/meta_races.py::racing_increments_lose_no_update`", []),
        ("`dlog/testing/checkers.py::no_phantom`", ["nothing of it runs"]),
        ("`dlog/testing/checkers.py::gone`", ["there is no", "nothing of it runs"]),
        ("`tests/unit/test_ids.py::test_message_id_vectors[gone-1]`", ["there is no"]),
        ("`tests/conformance/test_leases.py::test_leases[gone]`", ["there is no"]),
        ("`the_later_number_counts` (planted)", []),
        ("`the_later_number_is_gone` (planted)", ["nothing of it runs"]),
        ("`tests/sim/tapes/failed_spare.json`", []),
        ("`tests/sim/tapes/gone.json`", ["nothing of it runs"]),
        ("`tests/unit/test_ids.py`", []),
        ("`tests/unit/test_gone.py`", ["nothing of it runs"]),
        ("", ["nothing of it runs"]),
    ],
)
def test_a_row_without_a_proof_is_named(cell: str, wrong: list[str]) -> None:
    told = _unproven(["I0", "**A promise.**", cell])
    assert len(told) == len(wrong)
    for each, part in zip(told, wrong, strict=True):
        assert each.startswith("I0 **A promise.**: ")
        assert part in each


def test_a_row_behind_a_blank_line_is_named() -> None:
    text = "| id | proven by |\n|---|---|\n| I1 | x |\n\n| I2 | y |\nText.\n"
    assert _rows(text, "proven by") == [["I1", "x"]]
    assert _rows_outside_tables(text) == ["| I2 | y |"]


def _probe(text: str) -> Proof:
    (proof,) = proofs_of(Source(ROOT / "tests" / "unit" / "test_probe.py", text))
    return proof


@pytest.mark.parametrize(
    ("text", "tier"),
    [
        ("def test_x(): ...", None),
        ("@pytest.mark.tier('full', seconds=3)\nasync def test_x(): ...", "full"),
        ("@pytest.mark.tier('test')\n@pytest.mark.timeout(3)\ndef test_x(): ...", "test"),
        ("pytestmark = pytest.mark.tier('full')\ndef test_x(): ...", "full"),
        (
            "pytestmark = [pytest.mark.timeout(3), pytest.mark.tier('full')]\ndef test_x(): ...",
            "full",
        ),
        (
            "pytestmark = pytest.mark.tier('full')\n@pytest.mark.tier('test')\ndef test_x(): ...",
            "test",
        ),
        ("@pytest.mark.tier('full')\nclass TestX:\n    def test_x(self): ...", "full"),
        (
            "class TestX:\n    pytestmark = pytest.mark.tier('full')\n    def test_x(self): ...",
            "full",
        ),
    ],
)
def test_the_tier_of_a_proof_is_what_is_marked_closest(text: str, tier: str | None) -> None:
    assert _probe(text).tier == (tier or _probe("def test_x(): ...").tier)
    assert _probe(text).in_make_test == (tier != "full")


def test_what_is_always_skipped_or_may_fail_proves_nothing() -> None:
    for mark in ("skip", "skip(reason='later')", "xfail(strict=True)"):
        assert not _probe(f"@pytest.mark.{mark}\ndef test_x(): ...").in_make_test
    assert _probe("@pytest.mark.skipif(not JAVA, reason='no Java')\ndef test_x(): ...").in_make_test
    assert "full" not in IN_MAKE_TEST


def test_a_named_test_with_parameters_is_parametrized_with_these() -> None:
    named = named_in("`tests/tidy/test_proofs.py::test_a_row_without_a_proof_is_named[gone-wrong]`")
    assert [str(each) for each in named] == [
        "tests/tidy/test_proofs.py::test_a_row_without_a_proof_is_named[gone-wrong]"
    ]
    assert named[0].is_there
    assert not Named(named[0].where, named[0].name, "elsewhere" + "0").is_there
