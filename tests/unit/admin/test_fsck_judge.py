"""What was seen, as findings: what is told of copies, keepers, sizes, files and tails."""

from __future__ import annotations

import dataclasses

import pytest

from dlog.admin.fsck import judge as judging
from dlog.admin.fsck.judge import Judge
from dlog.admin.fsck.report import (
    Action,
    Finding,
    Fragment,
    Kind,
    NotChecked,
    Severity,
    UnderReplicated,
    Where,
)
from dlog.admin.fsck.segments import Look
from dlog.ledger.copies import CopyFault, Fault, KeptAt, LedgerCopies, Lost, Stray
from dlog.ledger.store import ClosedLedger, LedgerInfo, LedgerSpec, LedgerState
from dlog.meta.listed import Segment, WriterMark
from dlog.meta.log_meta import LogMeta
from dlog.options import LogOptions

SEGMENT = Segment(2, 20, 1)
CLOSED = LedgerInfo(20, LedgerState.CLOSED, ClosedLedger(9, 100), LedgerSpec())
OPEN = LedgerInfo(20, LedgerState.OPEN, None, LedgerSpec())
RECOVERING = LedgerInfo(20, LedgerState.IN_RECOVERY, None, LedgerSpec())
BAD, WARNING, NOTE = Severity.BAD, Severity.WARNING, Severity.NOTE


def look(info: LedgerInfo | None = CLOSED) -> Look:
    return Look("log", SEGMENT, info=info)


def copied(fault: Fault, *, info: LedgerInfo | None = CLOSED, mend: bool = True) -> Judge:
    judge = Judge()
    judge.copy(look(info), CopyFault("b", 3, 5, fault, "as it says", mend))
    return judge


WHERE = Where(log="log", segment=2, ledger_id=20, bookie="b", first_entry=3, last_entry=5)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.MISSING, Kind.COPY_MISSING),
        (Fault.DAMAGED, Kind.COPY_DAMAGED),
        (Fault.DIFFERS, Kind.COPY_DIFFERS),
    ],
)
def test_a_bad_copy_is_mended_if_another_proves_it(fault: Fault, kind: Kind) -> None:
    (found,) = copied(fault).findings
    assert found == Finding(kind, WARNING, WHERE, "as it says", Action.MEND_COPY)
    (found,) = copied(fault, mend=False).findings
    assert found == Finding(kind, BAD, WHERE, "as it says")


@pytest.mark.parametrize("info", [OPEN, RECOVERING, None])
def test_a_copy_of_a_segment_that_is_written_is_not_mended(info: LedgerInfo | None) -> None:
    (found,) = copied(Fault.MISSING, info=info).findings
    assert (found.kind, found.severity, found.action) == (Kind.COPY_MISSING, NOTE, None)
    assert found.where == WHERE
    (found,) = copied(Fault.DAMAGED, info=info).findings
    assert (found.severity, found.action, found.told) == (WARNING, None, "as it says")
    assert found.advice == "can be mended once the segment is closed"


def test_a_copy_that_was_not_looked_at_is_no_finding() -> None:
    judge = copied(Fault.NOT_CHECKED)
    assert judge.findings == []
    assert judge.not_checked == [NotChecked(WHERE, "as it says")]


def test_entries_are_lost_if_all_copies_were_looked_at() -> None:
    judge = Judge()
    judge.copy(look(), Lost(3, 5, is_certain=True))
    at = Where(log="log", segment=2, ledger_id=20, first_entry=3, last_entry=5)
    assert judge.findings == [Finding(Kind.ENTRIES_LOST, BAD, at, "no copy is good")]
    judge = Judge()
    judge.copy(look(), Lost(3, 5, is_certain=False))
    assert judge.findings == []
    assert [each.where for each in judge.not_checked] == [at]


def test_lost_entries_are_told_with_the_messages_that_were_in_them() -> None:
    seen = look()
    for first, last, kind in (
        (3, 4, Kind.ENTRY_DAMAGED),
        (3, 5, Kind.COPY_DAMAGED),
        (3, 5, Kind.ENTRY_DAMAGED),
    ):
        where = dataclasses.replace(seen.where(first, last), first_seq=first * 10 + last)
        seen.findings.append(Finding(kind, BAD, where, "seen"))
    judge = Judge()
    judge.copy(seen, Lost(3, 5, is_certain=True))
    assert judge.findings[0].where == seen.findings[2].where


def test_a_ledger_that_is_gone_is_told_once() -> None:
    judge = Judge()
    judge.gone(look())
    judge.gone(look())
    (found,) = judge.findings
    assert (found.kind, found.severity) == (Kind.LEDGER_MISSING, BAD)
    assert (found.where.segment, found.where.ledger_id) == (2, 20)


def test_a_size_that_differs_counts_only_if_all_was_looked_at() -> None:
    judge = Judge()
    judge.size(look(), 100)
    judge.size(look(OPEN), 7)
    judge.size(look(None), 7)
    assert judge.findings == []
    judge.size(look(), 99)
    (found,) = judge.findings
    assert (found.kind, found.severity) == (Kind.END_DIFFERS, BAD)
    assert "100 bytes up to entry 9, and its entries have 99" in found.told
    for troubled in (copied(Fault.NOT_CHECKED), copied(Fault.DAMAGED)):
        before = list(troubled.findings)
        troubled.size(look(), 99)
        assert troubled.findings == before
    copied(Fault.MISSING, info=OPEN).size(look(), 99)


def kept(*away: str, last_entry: int = 5, keepers: tuple[str, ...] = ("a", "b", "c")) -> KeptAt:
    return KeptAt(3, last_entry, keepers, away)


@pytest.mark.parametrize(
    ("away", "is_closed", "severity", "action", "told"),
    [
        (("b",), True, WARNING, Action.MOVE_COPIES, "2 of 3 copies are left"),
        (("b", "c"), True, BAD, Action.MOVE_COPIES, "with one bookie more, these entries are lost"),
        (("a", "b", "c"), True, BAD, None, "these entries cannot be read now"),
        (("b",), False, WARNING, None, "2 of 3 copies are left"),
        (("b", "c"), False, BAD, None, "with one bookie more, these entries are lost"),
        (("a", "b", "c"), False, BAD, None, "these entries cannot be read now"),
    ],
)
def test_copies_at_bookies_that_are_away(
    away: tuple[str, ...], is_closed: bool, severity: Severity, action: Action | None, told: str
) -> None:
    judge = Judge()
    state = LedgerState.CLOSED if is_closed else LedgerState.OPEN
    judge.replication(look(), LedgerCopies(20, state, 2, (kept(), kept(*away))))
    assert [each.where.bookie for each in judge.findings] == list(away)
    for found in judge.findings:
        assert (found.kind, found.severity) == (Kind.UNDER_REPLICATED, severity)
        assert found.action is action
        assert found.told.endswith(told)
        assert (found.where.first_entry, found.where.last_entry) == (3, 5)
        assert bool(found.advice) is (action is None)
        assert (found.advice == "bring a bookie back") is (len(away) == 3)
    left = 3 - len(away)
    fragment = Fragment(3, 5, ("a", "b", "c"), away, left, left <= 1)
    assert judge.under_replicated == [UnderReplicated("log", 2, 20, (fragment,))]


def test_copies_that_are_all_there_are_nothing_to_tell() -> None:
    judge = Judge()
    judge.replication(look(), LedgerCopies(20, LedgerState.CLOSED, 2, (kept(), kept())))
    assert (judge.findings, judge.under_replicated) == ([], [])


@pytest.mark.parametrize(("last_entry", "told"), [(-1, None), (0, 0), (5, 5)])
def test_a_fragment_without_an_end_has_none(last_entry: int, told: int | None) -> None:
    judge = Judge()
    judge.replication(
        look(OPEN), LedgerCopies(20, LedgerState.OPEN, 2, (kept("b", last_entry=last_entry),))
    )
    assert judge.findings[0].where.last_entry == told


def test_a_file_of_no_ledger_is_told_with_its_size() -> None:
    judge = Judge()
    judge.strays([Stray("/here/1.ledger", 7), Stray("/here/2.ledger", 0)])
    assert [each.where.path for each in judge.findings] == ["/here/1.ledger", "/here/2.ledger"]
    assert all(each.severity is WARNING and each.action is None for each in judge.findings)
    assert judge.findings[0].told.startswith("7 bytes")


def test_a_tail_is_told_with_who_left_it() -> None:
    segments = (Segment(1, 10, 1), SEGMENT)
    for writer, told in (
        (None, "and no writer holds the log"),
        (WriterMark("t", "ana", 5), "and ana, the log's writer, is not present"),
    ):
        judge = Judge()
        judge.tail("log", LogMeta("u", LogOptions(), writer=writer, segments=segments))
        (found,) = judge.findings
        assert (found.kind, found.severity, found.action) == (
            Kind.TAIL_UNSEALED,
            NOTE,
            Action.SEAL_TAIL,
        )
        assert (found.where.segment, found.where.ledger_id) == (2, 20)
        assert found.told.endswith(told)


def test_findings_have_a_bound_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "FSCK_FINDINGS_MAX", 3)
    one, other = Judge(), Judge()
    for _ in range(2):
        one.gone(look())
        one.findings.clear()
        one.strays([Stray("x", 1)])
    one.strays([Stray("x", 1), Stray("y", 2)])
    assert (len(one.findings), one.more_findings) == (3, 0)
    other.strays([Stray("z", 1)] * 5)
    assert (len(other.findings), other.more_findings) == (3, 2)
    other.copy(look(), CopyFault("b", 3, 5, Fault.NOT_CHECKED, "silent"))
    other.replication(look(), LedgerCopies(20, LedgerState.CLOSED, 2, (kept("b"),)))
    one.join(other)
    assert (len(one.findings), one.more_findings) == (3, 3 + 3)
    assert len(one.not_checked) == 1
    assert len(one.under_replicated) == 1


def test_what_was_seen_of_a_segment_is_taken_over() -> None:
    seen = look()
    seen.bad(Kind.ENTRY_DAMAGED, "seen")
    seen.not_checked.append(NotChecked(seen.where(), "silent"))
    judge = Judge()
    assert not judge.has_trouble
    judge.look(seen)
    assert judge.findings == seen.findings
    assert judge.not_checked == seen.not_checked
    assert judge.has_trouble
