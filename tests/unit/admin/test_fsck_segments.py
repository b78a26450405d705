"""One segment held against its ledger, entry by entry: what is told of each thing that is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlog.admin.fsck.report import Action, Finding, Kind, Severity, Where
from dlog.admin.fsck.segments import ALL, Look, listed_now, look_at
from dlog.effects import LastReadable, LookAtLedger, ReadRun
from dlog.errors import AuthError, Corrupt, DlogError, FormatError, NotFound, Timeout, Unavailable
from dlog.ledger.store import ClosedLedger, LedgerInfo, LedgerSpec, LedgerState
from dlog.meta.listed import Sealed, Segment
from dlog.meta.log_meta import LogMeta
from dlog.options import LogOptions
from dlog.wire.batch import Birth, ControlKind, Seam, encode, encode_control
from tests.unit.reader.small_log import seven_segments

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
        self.silent: DlogError | None = None  # what a question for the last readable entry gets
        self.before: Segment | None = BEFORE

    def list_end(self, **changes: int) -> None:
        """What the list says of its end, in place of what it would."""
        assert self.sealed is not None
        self.sealed = dataclasses.replace(self.sealed, **changes)

    def look(self, samples: int | None = ALL) -> Look:
        work = look_at("log", META, Segment(2, LEDGER, 1, self.sealed), self.before, samples)
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
                if self.silent is not None:
                    raise self.silent
                return len(self.entries) - 2
            case ReadRun(first_entry=first, last_entry=last):
                self.reads.append((first, last))
                run = self.entries[first : last + 1]
                good: list[memoryview] = []
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
    ledger.list_end(next_seq=107)
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
    where = found.where
    assert (where.log, where.segment, where.ledger_id) == ("log", 2, LEDGER)
    assert (where.first_entry, where.last_entry) == (bad[0], bad[-1])
    assert where.first_seq == firsts[bad[0]]
    assert where.next_seq == firsts[bad[-1] + 1]


def span(where: Where) -> tuple[int | None, int | None, int | None, int | None]:
    return where.first_entry, where.last_entry, where.first_seq, where.next_seq


def test_a_finding_about_a_whole_ledger_names_no_entry() -> None:
    ledger = whole()
    ledger.custom["log"] = b"v"
    (found,) = ledger.look().findings
    assert (found.where.log, found.where.segment, found.where.ledger_id) == ("log", 2, LEDGER)
    assert span(found.where) == (None, None, None, None)


def test_a_ledger_that_is_gone_is_told_with_all_that_is_lost() -> None:
    ledger = whole()
    ledger.missing = NotFound("gone")
    (found,) = ledger.look().findings
    assert span(found.where) == (0, 4, 7, 12)
    ledger.sealed = None
    (found,) = ledger.look().findings
    assert span(found.where) == (None, None, None, None), "its end is not known"


def test_a_ledger_that_is_deleted_while_it_is_read_is_gone() -> None:
    ledger = whole()
    ledger.entries[3] = NotFound("deleted")
    (found,) = ledger.look().findings
    assert found.kind is Kind.LEDGER_MISSING
    assert span(found.where) == (0, 4, 7, 12)


@pytest.mark.parametrize("error", [Unavailable("away"), Timeout("silent"), AuthError("no rights")])
def test_an_open_segment_whose_bookies_are_silent_is_not_checked(error: DlogError) -> None:
    ledger = whole()
    ledger.sealed, ledger.state = None, LedgerState.OPEN
    ledger.silent = error
    look = ledger.look()
    assert look.findings == []
    (left,) = look.not_checked
    assert (left.where.segment, left.where.ledger_id) == (2, LEDGER)
    assert look.has_trouble


def test_trouble_is_damage_or_silence() -> None:
    look = whole().look()
    assert not look.has_trouble
    look.findings.append(Finding(Kind.PAGE_UNUSED, Severity.NOTE, look.where(), "a note"))
    assert not look.has_trouble
    look.bad(Kind.LEDGER_FOREIGN, "damage")
    assert look.has_trouble


def job_ledger() -> Ledger:
    ledger = whole()
    ledger.custom = {"application": b"dlog", "log": b"u", "role": b"job", "job": b"j"}
    return ledger


def test_a_ledger_of_a_job_is_no_segment_of_a_writer() -> None:
    (found,) = job_ledger().look().findings
    assert found.kind is Kind.LEDGER_FOREIGN
    assert "a job filled it" in found.told


def test_a_segment_that_is_sealed_and_whose_ledger_is_open_is_told() -> None:
    ledger = whole()
    ledger.state = LedgerState.OPEN
    assert kinds(ledger.look()) == ["ledger_not_closed"]


@pytest.mark.parametrize("changes", [{"last_entry": 3}, {"bytes": 98}, {"last_entry": 5}], ids=str)
def test_an_end_that_the_list_has_wrong_is_told_once_and_can_be_listed_anew(
    changes: dict[str, int],
) -> None:
    ledger = whole()
    ledger.list_end(**changes, next_seq=40)
    (found,) = ledger.look().findings
    assert (found.kind, found.action) == (Kind.END_DIFFERS, Action.RESEAL)
    assert span(found.where) == (None, None, None, None)


@pytest.mark.parametrize("next_seq", [11, 13])
def test_a_last_entry_that_ends_at_another_seq_than_the_list_is_told(next_seq: int) -> None:
    ledger = whole()
    ledger.list_end(next_seq=next_seq)
    (found,) = ledger.look().findings
    assert (found.kind, found.action) == (Kind.END_DIFFERS, Action.RESEAL)
    assert span(found.where) == (4, 4, None, None)


def test_damage_at_the_end_of_an_open_segment_has_no_known_end() -> None:
    ledger = whole()
    ledger.sealed, ledger.state = None, LedgerState.OPEN
    ledger.entries[3] = Corrupt("damaged")
    (found,) = ledger.look().findings
    assert span(found.where) == (3, 3, None, None)


def test_damage_before_entries_that_nobody_gave_has_no_known_end() -> None:
    ledger = whole()
    ledger.entries[3] = Corrupt("damaged")
    ledger.entries[4] = Unavailable("nobody answers")
    look = ledger.look()
    (found,) = look.findings
    assert span(found.where) == (3, 3, 9, None)
    (left,) = look.not_checked
    assert span(left.where) == (4, 4, None, None)


def test_damage_in_a_sample_is_told_as_far_as_its_neighbours_were_read() -> None:
    """Which seqs are lost is known where the entry beside it was read, too."""
    ledger = Ledger(*(data(number) for number in range(100)))
    ledger.list_end(next_seq=107)
    for entry_id in (24, 25, 49, 75):
        ledger.entries[entry_id] = Corrupt("damaged")
    found = [span(each.where) for each in ledger.look(3).findings]
    assert found == [(24, 25, None, None), (49, 49, None, 55), (75, 75, 80, None)]


def test_damage_in_two_samples_side_by_side_is_two_findings() -> None:
    """Between them are entries that nobody looked at."""
    ledger = Ledger(*(data(number) for number in range(100)))
    ledger.list_end(next_seq=107)
    for entry_id in (24, 25, 49, 50):
        ledger.entries[entry_id] = Corrupt("damaged")
    found = [span(each.where) for each in ledger.look(3).findings]
    assert found == [(24, 25, None, None), (49, 50, None, None)]


@pytest.mark.parametrize(
    ("entries", "samples", "reads"),
    [
        (0, 0, [(0, 1)]),
        (1, 0, [(0, 2)]),
        (2, 0, [(0, 3)]),
        (3, 0, [(0, 1), (3, 4)]),
        (18, 1, [(0, 1), (8, 9), (18, 19)]),
        (18, 30, [(0, 19)]),
    ],
)
def test_a_sample_reads_no_entry_twice(
    entries: int, samples: int, reads: list[tuple[int, int]]
) -> None:
    ledger = Ledger(*(data(number) for number in range(entries)))
    ledger.list_end(next_seq=7 + entries)
    look = ledger.look(samples)
    assert look.findings == []
    assert ledger.reads == reads
    assert look.entries == sum(last - first + 1 for first, last in reads)


@pytest.mark.parametrize("samples", [ALL, 3])
def test_a_ledger_without_entries_is_not_read(samples: int | None) -> None:
    ledger = Ledger()
    ledger.entries = []
    ledger.sealed = Sealed(-1, 99, 7, 7, 10, 10)
    look = ledger.look(samples)
    assert (look.findings, look.last_entry, ledger.reads) == ([], -1, [])


def test_a_ledger_with_its_birth_alone_is_read() -> None:
    ledger = Ledger()
    del ledger.entries[1]
    ledger.sealed = Sealed(0, 99, 7, 7, 10, 10)
    look = ledger.look(3)
    assert (look.findings, look.entries, ledger.reads) == ([], 1, [(0, 0)])


def test_samples_that_overlap_are_misplaced_and_gaps_between_them_are_not() -> None:
    ledger = Ledger(*(data(number) for number in range(100)))
    ledger.list_end(next_seq=107)
    ledger.entries[24] = data(90)
    ledger.entries[25] = data(91)
    look = ledger.look(3)
    assert kinds(look) == ["entry_misplaced"]
    assert span(look.findings[0].where) == (49, 49, None, None)


def test_entries_of_one_moment_are_in_order() -> None:
    assert Ledger(data(0, 2, 20), data(2, 1, 20), data(3, 2, 20)).look().findings == []


def test_the_seam_is_held_against_what_the_list_says_and_nothing_else() -> None:
    """What the list does not know yet contradicts no seam."""
    for before in (None, dataclasses.replace(BEFORE, sealed=None)):
        ledger = whole()
        ledger.before = before
        ledger.entries[1] = seam(predecessor_ledger=9, predecessor_last=3)
        assert ledger.look().findings == []
        ledger.entries[1] = seam(base_seq=6)
        assert kinds(ledger.look()) == ["seam_differs"]
    ledger = whole()
    ledger.entries[1] = seam(predecessor_ledger=9, base_seq=6)
    ledger.sealed, ledger.state = None, LedgerState.OPEN
    assert ledger.look().findings == []


# --- the segment, looked up again


def test_a_segment_is_found_where_it_is_listed_now() -> None:
    log = seven_segments()
    listed = [*log.meta.segments]
    for number in range(1, 8):
        now = log.run(listed_now(log.view(), Segment(number, 99, 1, None)))
        assert now is not None
        assert (now.number, now.ledger_id) == (number, 10 * number)
    assert log.run(listed_now(log.view(), listed[0])) == listed[0]
    for gone in (0, 8):
        assert log.run(listed_now(log.view(), Segment(gone, 99, 1, None))) is None


def test_a_segment_of_a_page_that_is_lost_counts_as_it_was_listed() -> None:
    """The missing page is a finding of its own."""
    log = seven_segments()
    log.nodes.clear()
    known = Segment(3, 30, 1, None)
    assert log.run(listed_now(log.view(), known)) == known
