"""One segment held against its ledger, entry by entry: what is told of each thing that is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlog.admin.fsck.segments import ALL, Look, look_at
from dlog.effects import LastReadable, LookAtLedger, ReadRun
from dlog.errors import Corrupt, DlogError, FormatError, NotFound, Unavailable
from dlog.ledger.store import ClosedLedger, LedgerInfo, LedgerSpec, LedgerState
from dlog.meta.listed import Sealed, Segment
from dlog.meta.log_meta import LogMeta
from dlog.options import LogOptions
from dlog.wire.batch import Birth, ControlKind, Seam, encode, encode_control

UID, LEDGER = "u", 20
META = LogMeta(UID, LogOptions())
BEFORE = Segment(1, 10, 1, Sealed(5, 50, 0, 7, 1, 2))
CUSTOM = {"application": b"dlog", "log": b"u", "number": b"2", "epoch": b"1"}


def birth(**changes: Any) -> bytes:
    told = dataclasses.replace(Birth(UID, "segment", 2, 1, "t"), **changes)
    parts = encode_control(ControlKind.BIRTH, told.to_bytes(), first_seq=0, timestamp_us=10)
    return b"".join(parts)


def seam(**changes: Any) -> bytes:
    told = dataclasses.replace(Seam(10, 5, 7, 1, 2, UID), **changes)
    parts = encode_control(ControlKind.SEAM, told.to_bytes(), first_seq=0, timestamp_us=10)
    return b"".join(parts)


def data(first_seq: int, count: int = 1, at_us: int = 20) -> bytes:
    return b"".join(encode([b"x"] * count, first_seq=first_seq, timestamp_us=at_us))


class Ledger:
    """Answers what a check asks."""

    def __init__(self, *data_entries: bytes) -> None:
        self.entries: list[bytes | DlogError] = [birth(), seam(), *data_entries]
        self.custom: dict[str, bytes] = dict(CUSTOM)
        self.state = LedgerState.CLOSED
        self.digest = "crc32c"
        self.sealed: Sealed | None = Sealed(len(self.entries) - 1, 99, 7, 12, 10, 20)
        self.reads: list[tuple[int, int]] = []
        self.missing: DlogError | None = None

    def look(self, samples: int | None = ALL) -> Look:
        work = look_at("log", META, Segment(2, LEDGER, 1, self.sealed), BEFORE, samples)
        answer: Any = None
        error: DlogError | None = None
        try:
            while True:
                effect = work.send(answer) if error is None else work.throw(error)
                answer, error = None, None
                try:
                    answer = self.perform(effect)
                except DlogError as refused:
                    error = refused
        except StopIteration as end:
            found: Look = end.value
            return found

    def perform(self, effect: object) -> Any:
        match effect:
            case LookAtLedger():
                if self.missing is not None:
                    raise self.missing
                closed = ClosedLedger(len(self.entries) - 1, 99)
                is_closed = self.state is LedgerState.CLOSED
                spec = LedgerSpec(digest=self.digest, custom=self.custom)
                return LedgerInfo(LEDGER, self.state, closed if is_closed else None, spec)
            case LastReadable():
                return len(self.entries) - 2
            case ReadRun(first_entry=first, last_entry=last):
                self.reads.append((first, last))
                run = self.entries[first : last + 1]
                good = []
                for entry in run:
                    if isinstance(entry, DlogError):
                        if not good:
                            raise entry
                        break
                    good.append(memoryview(entry))
                return good
        raise AssertionError(effect)


def whole() -> Ledger:
    return Ledger(data(0, 2), data(2), data(3, 2, 21))


def kinds(look: Look) -> list[str]:
    return [finding.kind.value for finding in look.findings]


def test_a_whole_segment_is_nothing_to_tell() -> None:
    look = whole().look()
    assert (look.findings, look.not_checked, look.entries) == ([], [], 5)


@pytest.mark.parametrize(
    "entry",
    [
        birth(log_uid="v"),
        birth(number=3),
        birth(epoch=2),
        birth(role="job", number=None, epoch=None),
        data(0),
    ],
)
def test_a_birth_of_something_else(entry: bytes) -> None:
    ledger = whole()
    ledger.entries[0] = entry
    assert "seam_differs" in kinds(ledger.look())


@pytest.mark.parametrize(
    "changes",
    [
        {"predecessor_ledger": 9},
        {"predecessor_last": 4},
        {"base_seq": 8},
        {"number": 3},
        {"epoch": 2},
        {"log_uid": "v"},
    ],
    ids=str,
)
def test_a_seam_of_something_else(changes: dict[str, Any]) -> None:
    ledger = whole()
    ledger.entries[1] = seam(**changes)
    look = ledger.look()
    assert kinds(look) == ["seam_differs"]
    assert look.findings[0].where.first_entry == 1


@pytest.mark.parametrize(
    "entries",
    [
        (data(0, 2), data(3), data(4)),  # a gap
        (data(0, 2), data(1), data(4)),  # twice
        (data(0, 2, 30), data(2), data(3, 2, 40)),  # older
    ],
    ids=["gap", "twice", "older"],
)
def test_entries_that_do_not_follow_each_other(entries: tuple[bytes, ...]) -> None:
    look = Ledger(*entries).look()
    assert "entry_misplaced" in kinds(look)
    assert look.findings[0].where.first_entry == 3


def test_a_ledger_says_whose_it_is() -> None:
    for key, value in (("log", b"v"), ("number", b"3"), ("epoch", b"2"), ("application", b"x")):
        ledger = whole()
        ledger.custom[key] = value
        assert kinds(ledger.look()) == ["ledger_foreign"], key
    ledger = whole()
    ledger.custom = {"application": b"dlog", "log": b"u", "role": b"standby"}
    assert kinds(ledger.look()) == []
    ledger.digest = "hmac"
    assert kinds(ledger.look()) == ["ledger_foreign"]


def test_a_row_of_damage_is_one_finding_with_its_seqs() -> None:
    ledger = Ledger(data(0, 2), data(2), data(3), data(4, 1, 21))
    ledger.entries[3] = Corrupt("damaged")
    ledger.entries[4] = FormatError("no entry")
    (found,) = ledger.look().findings
    where = found.where
    assert (where.first_entry, where.last_entry, where.first_seq, where.next_seq) == (3, 4, 9, 11)


def test_silence_is_not_checked() -> None:
    ledger = whole()
    ledger.entries[3] = Unavailable("nobody answers")
    look = ledger.look()
    assert look.findings == []
    (left,) = look.not_checked
    assert (left.where.first_entry, left.where.last_entry) == (3, 4), "and what is behind it"
    ledger.missing = Unavailable("no metadata")
    look = ledger.look()
    assert (look.findings, len(look.not_checked)) == ([], 1)


def test_a_ledger_that_is_not_there_or_says_nothing() -> None:
    ledger = whole()
    ledger.missing = NotFound("gone")
    assert kinds(ledger.look()) == ["ledger_missing"]
    ledger.missing = FormatError("no metadata")
    assert kinds(ledger.look()) == ["ledger_unreadable"]


def test_an_open_segment_is_read_as_far_as_it_is_published() -> None:
    ledger = whole()
    ledger.sealed, ledger.state = None, LedgerState.OPEN
    look = ledger.look()
    assert (look.findings, look.last_entry, look.entries) == ([], 3, 4)


def test_a_sample_is_pairs_and_both_ends() -> None:
    ledger = Ledger(*(data(number) for number in range(100)))
    ledger.sealed = dataclasses.replace(ledger.sealed, next_seq=107)
    look = ledger.look(3)
    assert look.findings == []
    assert ledger.reads == [(0, 1), (24, 25), (49, 50), (74, 75), (100, 101)]


def test_a_ledger_may_be_born_by_a_clock_that_is_ahead() -> None:
    """Long before its turn, too: only messages and seams have an order."""
    ledger = Ledger(data(0, 5, 20))
    told = Birth(UID, "segment", 2, 1, "t").to_bytes()
    parts = encode_control(ControlKind.BIRTH, told, first_seq=0, timestamp_us=1_000)
    ledger.entries[0] = b"".join(parts)
    assert not ledger.look().findings


@pytest.mark.parametrize("bad", [[2], [3], [2, 3], [4], [3, 4]])
def test_a_damaged_entry_is_told_with_its_ledger_and_its_seqs(bad: list[int]) -> None:
    """Between entries that can be read it is known which messages are gone."""
    ledger = whole()
    for entry_id in bad:
        ledger.entries[entry_id] = Corrupt("damaged", ledger_id=LEDGER, entry_id=entry_id)
    (found,) = ledger.look().findings
    firsts = {2: 7, 3: 9, 4: 10, 5: 12}
    is_last = bad[-1] == 4
    where = found.where
    assert (where.log, where.segment, where.ledger_id) == ("log", 2, LEDGER)
    assert (where.first_entry, where.last_entry) == (bad[0], bad[-1])
    assert where.first_seq == firsts[bad[0]]
    assert where.next_seq == firsts[bad[-1] + 1] or is_last
