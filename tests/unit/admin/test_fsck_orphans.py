"""Whose a ledger is: what can never be listed is nobody's, whatever else may be in use."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlog.admin.fsck.orphan_deletes import PresentJobs
from dlog.admin.fsck.orphans import Mark, Owner, as_siblings, judge, mark_of, strangers
from dlog.admin.fsck.report import Action, Kind, Severity
from dlog.ledger.store import LedgerInfo, LedgerSpec, LedgerState
from dlog.meta.log_meta import LogMeta, LogState
from dlog.options import LogOptions

GRACE_S = 100.0


def owner(*, is_sound: bool = True, **fields: Any) -> Owner:
    meta = LogMeta("u", LogOptions(), epoch=5, ledger_floor=50, **fields)
    return Owner("log", meta, frozenset({40, 50}), is_sound)


def mark(role: bytes = b"", epoch: int | None = 5, age_s: float | None = 200.0) -> Mark:
    return Mark("u", role, 3, epoch, age_s)


def left(age_s: float | None = 200.0) -> Mark:
    """By the job that filled it."""
    return dataclasses.replace(mark(b"job", None, age_s), is_present=False)


@pytest.mark.parametrize("ledger_id", [40, 50])
def test_what_is_listed_or_doomed_is_where_it_belongs(ledger_id: int) -> None:
    assert judge(ledger_id, mark(epoch=1), owner(), GRACE_S) is None


@pytest.mark.parametrize(
    ("ledger_id", "made", "kind"),
    [
        (51, mark(epoch=4, age_s=0.0), Kind.ORPHAN),  # its epoch is over: no grace
        (51, mark(epoch=4, age_s=None), Kind.ORPHAN),
        (51, mark(epoch=5), Kind.MAYBE_IN_USE),  # a spare of the writer
        (51, mark(epoch=6), Kind.MAYBE_IN_USE),  # of an opener that is about to claim
        (51, mark(b"standby", None), Kind.MAYBE_IN_USE),
        (49, mark(epoch=5), Kind.ORPHAN),  # below the floor, and old
        (49, mark(epoch=5, age_s=99.0), Kind.MAYBE_IN_USE),  # its writer may be deleting it
        (49, mark(epoch=5, age_s=None), Kind.MAYBE_IN_USE),  # unknown is not old
        (49, mark(b"standby", None), Kind.ORPHAN),
        (49, mark(b"standby", None, 0.0), Kind.MAYBE_IN_USE),
        (49, mark(b"job", None), Kind.MAYBE_IN_USE),  # the job is there
        (51, mark(b"job", None), Kind.MAYBE_IN_USE),
        (49, left(), Kind.ORPHAN),
        (51, left(), Kind.ORPHAN),  # it could be listed: a mark keeps others from it
        (51, left(age_s=99.0), Kind.MAYBE_IN_USE),  # perhaps it is about to be published
        (51, left(age_s=None), Kind.MAYBE_IN_USE),
        (49, mark(b"another", None), Kind.MAYBE_IN_USE),  # who made it knows what for
        (49, mark(b"", None, 200.0), Kind.ORPHAN),
    ],
)
def test_what_can_never_be_listed_is_an_orphan(ledger_id: int, made: Mark, kind: Kind) -> None:
    found = judge(ledger_id, made, owner(), GRACE_S)
    assert found is not None
    assert found.kind is kind
    if kind is Kind.ORPHAN:
        assert (found.severity, found.action) == (Severity.WARNING, Action.DELETE_LEDGER)
    else:
        assert (found.severity, found.action) == (Severity.NOTE, None)


@pytest.mark.parametrize("state", [LogState.TERMINATED, LogState.DELETING, LogState.DELETED])
def test_a_log_that_lists_nothing_more_has_no_use_for_it(state: LogState) -> None:
    found = judge(51, mark(epoch=9, age_s=None), owner(state=state), GRACE_S)
    assert found is not None
    assert found.kind is Kind.ORPHAN


def test_a_log_that_moved_is_listed_elsewhere() -> None:
    moved = owner(state=LogState.MOVED)
    assert judge(49, mark(epoch=1), moved, GRACE_S) is None
    assert judge(51, mark(epoch=1), moved, GRACE_S) is None


def test_nothing_is_an_orphan_while_the_list_is_broken() -> None:
    found = judge(49, mark(epoch=1), owner(is_sound=False), GRACE_S)
    assert found is not None
    assert (found.kind, found.action) == (Kind.MAYBE_IN_USE, None)


def test_a_log_that_is_not_known_here_may_live_elsewhere() -> None:
    found = strangers("v", [7, 9, 10, 11, 12])
    assert found.told.endswith("7, 9, 10 and 2 more")
    assert (found.kind, found.severity, found.action) == (
        Kind.UNKNOWN_LEDGER,
        Severity.NOTE,
        None,
    )


def test_marks_are_read_from_metadata() -> None:
    def info(made_us: int | None = None, **custom: bytes) -> LedgerInfo:
        return LedgerInfo(1, LedgerState.OPEN, None, LedgerSpec(custom=custom), made_us)

    assert mark_of(info(application=b"another"), 0) is None
    assert mark_of(info(), 0) is None
    ours = info(2_000_000, application=b"dlog", log=b"u", number=b"3", epoch=b"5", token=b"t")
    assert mark_of(ours, 9_000_000) == Mark("u", b"", 3, 5, 7.0, "t")
    odd = info(application=b"dlog", number=b"-3", epoch=b"x")
    assert mark_of(odd, 0) == Mark("", b"", None, None, None)


def of_job(job: bytes | None, token: str, age_s: float | None = 200.0) -> Mark:
    return dataclasses.replace(left(age_s), job=job, token=token, is_present=True)


@pytest.mark.parametrize(
    ("mark", "is_present"),
    [
        (of_job(b"night", "its own"), True),
        (of_job(b"night", "another process"), True),
        (of_job(b"day", "another process"), False),
        (of_job(b"day", "its own"), True),  # as an earlier version named it
        (of_job(None, "another process"), True),  # whose it is nobody knows
        (of_job(b"day", ""), True),
    ],
)
def test_a_job_is_there_while_it_is_present_for_any_segment(
    mark: Mark, *, is_present: bool
) -> None:
    assert PresentJobs({"its own": b"night"}).weigh(mark).is_present is is_present


def test_without_anybody_no_job_is_there() -> None:
    for mark in (of_job(b"day", "token"), of_job(None, "token")):
        assert not PresentJobs({}).weigh(mark).is_present


def test_segments_of_a_job_are_as_old_as_the_youngest() -> None:
    marks = {
        1: of_job(b"night", "a", 900.0),
        2: of_job(b"night", "b", 5.0),
        3: of_job(b"day", "c", 900.0),
        4: of_job(b"unknown", "d", None),
        5: of_job(b"unknown", "e", 900.0),
        6: of_job(None, "f", 900.0),
        7: of_job(None, "g", 5.0),
    }
    ages = {ledger_id: mark.age_s for ledger_id, mark in as_siblings(marks).items()}
    assert ages == {1: 5.0, 2: 5.0, 3: 900.0, 4: None, 5: None, 6: 900.0, 7: 5.0}
