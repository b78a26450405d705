"""Copies compared: who lacks what, who has something else, and what nobody can tell."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dlog.errors import Broken, Conflict, Unsupported
from dlog.ledger.bookkeeper.core.copies import (
    Copy,
    amended,
    compare,
    fault_of,
    holders_of,
    kept_at,
    moved,
    print_of,
)
from dlog.ledger.copies import CopyFault, Fault, KeptAt, Lost
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_digest import DigestType
from dlog.wire.ledger_metadata import Fragment, LedgerMetadata, LedgerState

GOOD = Copy(Answer.OK, print_of(b"a"), 1)
OTHER = Copy(Answer.OK, print_of(b"b"), 1)
MISSING = Copy(Answer.NO_ENTRY)
DAMAGED = Copy(Answer.BAD_DIGEST, told="its digest does not match")
SILENT = Copy(Answer.TIMED_OUT)
BOOKIES = ("x", "y", "z")


def compared(*entries: Mapping[str, Copy]) -> list[CopyFault | Lost]:
    ids = range(len(entries))
    copies = {each: {at: entries[at][each] for at in ids} for each in BOOKIES}
    return compare(ids, dict.fromkeys(ids, BOOKIES), copies)


def at(x: Copy, y: Copy, z: Copy) -> dict[str, Copy]:
    return {"x": x, "y": y, "z": z}


def test_copies_that_agree_are_nothing_to_tell() -> None:
    assert compared(at(GOOD, GOOD, GOOD), at(OTHER, OTHER, OTHER)) == []


@pytest.mark.parametrize(
    ("bad", "fault"), [(MISSING, Fault.MISSING), (DAMAGED, Fault.DAMAGED)], ids=str
)
def test_a_copy_that_is_not_good_is_mended_by_one_that_is(bad: Copy, fault: Fault) -> None:
    (found,) = compared(at(GOOD, bad, SILENT), at(GOOD, GOOD, GOOD))[:1]
    assert isinstance(found, CopyFault)
    assert (found.keeper, found.fault, found.can_be_mended) == ("y", fault, True)
    assert (found.first_entry, found.last_entry) == (0, 0)


@pytest.mark.parametrize("answer", [each for each in Answer if each is not Answer.OK])
def test_an_answer_that_says_nothing_of_the_copy_is_no_fault(answer: Answer) -> None:
    tells = {
        Answer.NO_ENTRY: Fault.MISSING,
        Answer.NO_LEDGER: Fault.MISSING,
        Answer.BAD_DIGEST: Fault.DAMAGED,
        Answer.IO_FAILED: Fault.DAMAGED,
    }
    assert fault_of(Copy(answer)) is tells.get(answer, Fault.NOT_CHECKED)
    assert fault_of(GOOD) is None


def test_two_that_are_whole_and_differ_are_both_named_and_mend_nothing() -> None:
    found = compared(at(GOOD, OTHER, MISSING))
    assert {(f.keeper, f.fault, f.can_be_mended) for f in found if isinstance(f, CopyFault)} == {
        ("x", Fault.DIFFERS, False),
        ("y", Fault.DIFFERS, False),
        ("z", Fault.MISSING, False),
    }


def test_what_no_copy_has_is_lost_if_all_were_looked_at() -> None:
    found = [each for each in compared(at(DAMAGED, MISSING, DAMAGED)) if isinstance(each, Lost)]
    assert found == [Lost(0, 0, True)]
    found = [each for each in compared(at(DAMAGED, MISSING, SILENT)) if isinstance(each, Lost)]
    assert found == [Lost(0, 0, False)]


def test_neighbours_are_told_as_one() -> None:
    bad = at(MISSING, GOOD, GOOD)
    found = compared(bad, bad, at(GOOD, GOOD, GOOD), bad, at(DAMAGED, GOOD, GOOD))
    spans = [(f.fault, f.first_entry, f.last_entry) for f in found if isinstance(f, CopyFault)]
    assert spans == [
        (Fault.MISSING, 0, 1),
        (Fault.MISSING, 3, 3),
        (Fault.DAMAGED, 4, 4),
    ]


def metadata(state: LedgerState = LedgerState.CLOSED, **changes: object) -> LedgerMetadata:
    is_closed = state is LedgerState.CLOSED
    fields: dict[str, object] = {
        "ensemble_size": 2,
        "write_quorum": 2,
        "ack_quorum": 2,
        "fragments": (Fragment(0, ("x", "y")), Fragment(10, ("y", "z"))),
        "state": state,
        "last_entry_id": 15 if is_closed else -1,
        "length_bytes": 9 if is_closed else 0,
        "digest_type": DigestType.CRC32C,
        "password": b"p",
        **changes,
    }
    return LedgerMetadata(**fields)  # type: ignore[arg-type]


def test_who_keeps_what_and_who_is_away() -> None:
    assert kept_at(metadata(), frozenset("xz")) == (
        KeptAt(0, 9, ("x", "y"), ("y",)),
        KeptAt(10, 15, ("y", "z"), ("y",)),
    )
    assert kept_at(metadata(), frozenset("z"))[0].copies_left == 0
    empty = metadata(last_entry_id=9)
    assert [each.last_entry for each in kept_at(empty, frozenset())] == [9], "nothing stands there"
    is_open = kept_at(metadata(LedgerState.OPEN), frozenset("xyz"))
    assert [(each.last_entry, each.away) for each in is_open] == [(9, ()), (-1, ())]


def test_the_write_set_of_a_striped_ledger() -> None:
    striped = metadata(
        ensemble_size=3, write_quorum=2, ack_quorum=1, fragments=(Fragment(0, ("x", "y", "z")),)
    )
    assert [holders_of(striped, entry_id) for entry_id in range(3)] == [
        ("x", "y"),
        ("y", "z"),
        ("z", "x"),
    ]


def test_a_fragment_moves_to_another_bookie() -> None:
    found = moved(metadata(), ledger_id=1, first_entry=10, lost="y", to="w")
    assert found is not None
    assert found.fragments == (Fragment(0, ("x", "y")), Fragment(10, ("w", "z")))
    assert moved(found, ledger_id=1, first_entry=10, lost="y", to="w") is None, "asked again"
    with pytest.raises(Conflict):
        moved(metadata(), ledger_id=1, first_entry=5, lost="y", to="w")
    with pytest.raises(Broken):
        moved(metadata(), ledger_id=1, first_entry=10, lost="y", to="z")


@pytest.mark.parametrize("at", range(4))
def test_the_fragments_around_one_that_moves_stay(at: int) -> None:
    fragments = tuple(Fragment(first, ("x", "y")) for first in (0, 3, 6, 9))
    before = metadata(fragments=fragments)
    found = moved(before, ledger_id=1, first_entry=3 * at, lost="y", to="w")
    assert found is not None
    expected = list(fragments)
    expected[at] = Fragment(3 * at, ("x", "w"))
    assert found.fragments == tuple(expected)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_nothing_moves_under_a_writer_or_a_recovery(state: LedgerState) -> None:
    with pytest.raises(Unsupported):
        amended(metadata(state), ledger_id=1, last_entry=4, bytes=4)
    with pytest.raises(Unsupported):
        moved(metadata(state), ledger_id=1, first_entry=10, lost="y", to="w")


def test_an_end_is_amended_once() -> None:
    found = amended(metadata(), ledger_id=1, last_entry=12, bytes=7)
    assert found is not None
    assert (found.last_entry_id, found.length_bytes) == (12, 7)
    assert amended(found, ledger_id=1, last_entry=12, bytes=7) is None
