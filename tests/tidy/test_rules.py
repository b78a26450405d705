"""docs/RULES.md says what the tests say: each rule of the design has a test or a decision."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.tidy.proofs import Proof, in_files_with
from tests.tidy.rules import (
    ALL,
    PAGE,
    faults,
    promises_in_text,
    rows,
    rules_in_name,
    rules_in_text,
    that_name_rules,
    written,
)
from tests.tidy.source import ROOT
from tests.tidy.test_docs import RULE

INVARIANTS = ROOT / "docs" / "INVARIANTS.md"


def test_each_rule_has_a_test_or_a_decision_and_the_page_says_which() -> None:
    found = faults(PAGE.read_text(encoding="utf-8"), that_name_rules())
    assert not found, "\n" + "\n".join(found)


def test_each_promise_that_a_test_names_is_one() -> None:
    page = INVARIANTS.read_text(encoding="utf-8")
    known = {each for each in RULE.findall(page) if each.startswith("I")}
    known |= set(promises_in_text(page.replace("\u2013", " to ")))
    wrong = [
        f"{proof.full_name} names {promise}"
        for proof in in_files_with(re.compile(r"\bI\d"))
        for promise in promises_in_text(proof.docstring)
        if promise not in known
    ]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("DL-28: acks wait", ["DL-28"]),
        ("DL-03: both", ["DL-03a", "DL-03b"]),
        ("LH-30 to LH-32, LH-35", ["LH-30", "LH-31", "LH-32", "LH-35"]),
        ("LH-58..61", ["LH-58", "LH-59", "LH-60", "LH-61"]),
        ("DL-36e to DL-37", ["DL-36e", "DL-36f", "DL-37"]),
        ("LH flaws 3, 4 and 10", ["LH flaw 3", "LH flaw 4", "LH flaw 10"]),
        ("DL flaw 1, I3c", ["DL flaw 1"]),
        ("DL-01,\n    DL-02", ["DL-01", "DL-02"]),
        ("LH-99 and DL-99 to DL-100", ["LH-99", "DL-99", "DL-100"]),
        ("a flaw of the design", []),
    ],
)
def test_rules_are_found_in_docstrings(text: str, named: list[str]) -> None:
    assert list(rules_in_text(text)) == named


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("test_dl_28_acks_wait_for_2_things", ["DL-28"]),
        ("test_dl_03b_nothing_is_readable", ["DL-03b"]),
        ("test_cl06_cl08_isolation", ["CL-06", "CL-08"]),
        ("test_lh_20_24_25_flaw_2_who_has_nothing", ["LH-20", "LH-24", "LH-25", "LH flaw 2"]),
        ("i20_lh_52_a_zombie_changes_nothing", ["LH-52"]),
        ("test_lh_flaw_9_lh_57_stop", ["LH flaw 9", "LH-57"]),
        ("test_flaw_3_without_a_design", ["flaw 3"]),
        ("test_after_10_of_12", []),
    ],
)
def test_rules_are_found_in_names(name: str, named: list[str]) -> None:
    assert list(rules_in_name(name)) == named


def test_promises_are_found_in_docstrings() -> None:
    assert list(promises_in_text("I19 to I21, I3a.")) == ["I19", "I20", "I21", "I3a"]


def _test_of(rule: str, tier: str = "test") -> Proof:
    return Proof("tests/x.py", "test_x", f"{rule}: so it is.", tier, True, False)


def _page_of(proofs: list[Proof]) -> str:
    """The page for these tests, in which every rule that none of them names has a decision."""
    lines = [
        f"| {rule} | It is so | {'' if _names(proofs, rule) else '[ADR 1](adr/0001-x.md)'} |"
        for rule in ALL
    ]
    return written("\n".join(["# Rules", "", *lines]), proofs)


def _names(proofs: list[Proof], rule: str) -> bool:
    return any(rule in rules_in_text(proof.docstring) for proof in proofs)


def test_a_page_that_is_in_order_has_no_faults() -> None:
    assert faults(_page_of([_test_of("DL-28")]), [_test_of("DL-28")]) == []


def test_a_rule_without_a_test_in_make_test_is_named() -> None:
    full = [_test_of("DL-28", tier="full")]
    assert faults(_page_of(full), full) == [
        "DL-28 has neither a test in `make test` nor a decision that says why not"
    ]
    skipped = [dataclasses.replace(_test_of("DL-28"), runs=False)]
    assert "DL-28 has neither" in faults(_page_of(skipped), skipped)[0]
    gone = faults(_page_of([_test_of("DL-28")]), [])
    assert [each.split()[0] for each in gone] == ["DL-28", "docs/RULES.md"]


def test_a_test_that_names_no_rule_is_named() -> None:
    assert "tests/x.py::test_x names LH-64, which is no rule" in faults(
        _page_of([]), [_test_of("LH-64")]
    )


def test_a_rule_without_a_row_and_a_row_without_a_rule_are_named() -> None:
    page = _page_of([]).replace("| CL-21 |", "| CL-22 |")
    assert faults(page, []) == ["CL-21 has no row", "CL-22 has a row and is no rule"]


def test_a_page_that_says_something_else_than_the_tests_is_stale() -> None:
    page = _page_of([_test_of("DL-28")]).replace("tests/x.py", "tests/y.py")
    (told,) = faults(page, [_test_of("DL-28")])
    assert "stale" in told


def test_words_and_decisions_survive_a_writing() -> None:
    page = _page_of([])
    both = written(page, [_test_of("DL-37")])
    assert rows(both)["DL-37"].proof == "[ADR 1](adr/0001-x.md), `tests/x.py::test_x`"
    assert written(both, [_test_of("DL-37")]) == both
    assert written(both, []) == page
