"""What a report says of itself, in words and as a verdict."""

from __future__ import annotations

import pytest

from dlog.admin.fsck.report import (
    Action,
    Ended,
    Finding,
    Kind,
    NotChecked,
    RepairReport,
    Report,
    Severity,
    Step,
    StepDone,
    Where,
)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (Where(), ""),
        (Where(log="orders"), "log orders"),
        (Where(log="orders", segment=0), "log orders, segment 0"),
        (Where(path="/a/b"), "/a/b"),
        (Where(ledger_id=0, bookie="b"), "ledger 0, bookie b"),
        (Where(first_entry=0), "entry 0"),
        (Where(first_entry=5, last_entry=5), "entry 5"),
        (Where(first_entry=5, last_entry=6), "entries 5 to 6"),
        (Where(first_seq=0, next_seq=10), "seqs 0 to 9"),
        (Where(first_seq=7), ""),
        (
            Where(
                log="orders",
                segment=2,
                ledger_id=20,
                bookie="b",
                first_entry=3,
                last_entry=4,
                first_seq=7,
                next_seq=9,
            ),
            "log orders, segment 2, ledger 20, bookie b, entries 3 to 4, seqs 7 to 8",
        ),
    ],
)
def test_a_place_in_words(where: Where, told: str) -> None:
    assert str(where) == told


@pytest.mark.parametrize(
    ("severity", "is_damage"),
    [(Severity.NOTE, False), (Severity.WARNING, True), (Severity.BAD, True)],
)
def test_a_note_is_no_damage(severity: Severity, is_damage: bool) -> None:
    found = Finding(Kind.STRAY_FILE, severity, Where(), "x")
    assert found.is_damage is is_damage
    assert Report(findings=(found,)).is_clean is not is_damage
    assert Report(findings=(found,)).damage == ((found,) if is_damage else ())


def test_what_was_not_checked_is_not_clean() -> None:
    assert Report().is_clean
    assert not Report(not_checked=(NotChecked(Where(), "silent"),)).is_clean


@pytest.mark.parametrize("ended", list(Ended))
def test_a_repair_is_complete_if_each_step_is_done_or_not_needed(ended: Ended) -> None:
    step = Step(Action.MEND_COPY, Where(), "x")
    done, last = StepDone(step, Ended.DONE, ""), StepDone(step, ended, "")
    assert RepairReport((done, last)).is_complete is (ended in (Ended.DONE, Ended.NOT_NEEDED))
    assert RepairReport().is_complete
