"""One segment held against its ledger: whose it is, where it ends, how it begins, what stands in
it.

Entries are read through the same reader as everybody's: on a store with several copies an entry is
damaged here only if no copy is good. Where several are looked at one by one, others do that. Of an
open segment only what was published is read, and nothing is concluded from what is not there yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dlog.admin.fsck.orphans import JOB, STANDBY, mark_of
from dlog.admin.fsck.report import Action, Finding, Kind, NotChecked, Severity, Where
from dlog.effects import LastReadable, LookAtLedger, Procedure, ReadRun
from dlog.errors import (
    AuthError,
    Corrupt,
    FormatError,
    NotFound,
    Timeout,
    Unavailable,
    Unsupported,
)
from dlog.ledger.store import LedgerInfo, LedgerState
from dlog.limits import FSCK_RUN_BYTES
from dlog.meta.listed import Segment
from dlog.meta.log_meta import LogMeta
from dlog.reader.segments import SegmentView
from dlog.wire.batch import Header, decode
from dlog.writer.segments import BIRTH_ENTRY, SEAM_ENTRY, check_birth, decode_seam

ALL = None  # instead of a number of samples
_BAD_BYTES = (Corrupt, FormatError, Unsupported)
_NO_ANSWER = (Unavailable, Timeout, AuthError)


@dataclass(slots=True)
class Look:
    """What was seen of one segment."""

    log: str
    segment: Segment
    findings: list[Finding] = field(default_factory=list)
    not_checked: list[NotChecked] = field(default_factory=list)
    info: LedgerInfo | None = None  # None: there is no such ledger, or nobody can tell
    last_entry: int = -1  # that may be read
    entries: int = 0  # read and decoded

    def where(self, first_entry: int | None = None, last_entry: int | None = None) -> Where:
        return Where(
            log=self.log,
            segment=self.segment.number,
            ledger_id=self.segment.ledger_id,
            first_entry=first_entry,
            last_entry=first_entry if last_entry is None else last_entry,
        )

    def bad(
        self, kind: Kind, told: str, where: Where | None = None, action: Action | None = None
    ) -> None:
        self.findings.append(Finding(kind, Severity.BAD, where or self.where(), told, action))

    @property
    def has_trouble(self) -> bool:
        return bool(self.not_checked) or any(each.is_damage for each in self.findings)


def look_at(
    name: str, meta: LogMeta, segment: Segment, before: Segment | None, samples: int | None
) -> Procedure[Look]:
    """`before` is the listed segment before it, `samples` how many entries between the first and
    the last are read; `ALL`: each."""
    look = Look(name, segment)
    try:
        look.info = yield LookAtLedger(segment.ledger_id)
    except NotFound:
        look.bad(Kind.LEDGER_MISSING, "it is listed, and there is no such ledger", _lost(look))
        return look
    except _NO_ANSWER as error:
        look.not_checked.append(NotChecked(look.where(), error.message))
        return look
    except FormatError as error:
        look.bad(Kind.LEDGER_UNREADABLE, error.message, _lost(look))
        return look
    _check_owner(look, meta)
    is_as_listed = _check_state(look)
    try:
        look.last_entry = yield from _last_entry(look)
        yield from _check_entries(look, meta, before, samples, ends_as_listed=is_as_listed)
    except NotFound:
        look.bad(Kind.LEDGER_MISSING, "it was deleted while it was read", _lost(look))
    except _NO_ANSWER as error:
        told = Where(log=name, segment=segment.number, ledger_id=segment.ledger_id)
        look.not_checked.append(NotChecked(told, error.message))
    return look


def listed_now(view: SegmentView, segment: Segment) -> Procedure[Segment | None]:
    """As it stands in the list now; None when it does not."""
    number = segment.number
    try:
        yield from view.refresh()
        return (
            yield from view.find(
                lambda s: s.number == number, lambda p: p.number <= number <= p.last_number
            )
        )
    except NotFound:
        return None
    except Corrupt:  # a page is missing, which is told
        return segment


def _lost(look: Look) -> Where:
    segment = look.segment
    if segment.sealed is None:
        return look.where()
    return Where(
        log=look.log,
        segment=segment.number,
        ledger_id=segment.ledger_id,
        first_entry=0,
        last_entry=segment.sealed.last_entry,
        first_seq=segment.sealed.base_seq,
        next_seq=segment.sealed.next_seq,
    )


def _check_owner(look: Look, meta: LogMeta) -> None:
    assert look.info is not None
    spec, segment = look.info.spec, look.segment
    mark = mark_of(look.info, 0)
    if mark is None:
        look.bad(Kind.LEDGER_FOREIGN, "its metadata does not say that it is of a log")
        return
    if mark.uid != meta.uid:
        told = f"its metadata says that it is of log {mark.uid}, and this is log {meta.uid}"
        look.bad(Kind.LEDGER_FOREIGN, told)
    elif (mark.role == JOB) != segment.is_job:
        of_job = "a job filled it" if mark.role == JOB else "no job filled it"
        told = f"its metadata says that {of_job}, and the list says otherwise"
        look.bad(Kind.LEDGER_FOREIGN, told)
    elif mark.role not in (STANDBY, JOB) and (
        (mark.number, mark.epoch) != (segment.number, segment.epoch)
    ):
        told = (
            f"its metadata says segment {mark.number}, epoch {mark.epoch}, and the list says "
            f"segment {segment.number}, epoch {segment.epoch}"
        )
        look.bad(Kind.LEDGER_FOREIGN, told)
    if spec.digest != meta.digest:
        told = f"its entries have the digest {spec.digest}, and those of the log {meta.digest}"
        look.bad(Kind.LEDGER_FOREIGN, told)


def _check_state(look: Look) -> bool:
    """Whether it ends where the list says, as far as the list says anything."""
    info, sealed = look.info, look.segment.sealed
    assert info is not None
    if sealed is None:
        return True
    closed = info.closed
    if closed is None:
        told = f"it is sealed in the list, and its ledger is {info.state.value}"
        look.bad(Kind.LEDGER_NOT_CLOSED, told)
        return False
    if (closed.last_entry, closed.bytes) == (sealed.last_entry, sealed.bytes):
        return True
    told = (
        f"the list says that it ends with entry {sealed.last_entry} ({sealed.bytes} bytes), and "
        f"its ledger with entry {closed.last_entry} ({closed.bytes} bytes)"
    )
    look.bad(Kind.END_DIFFERS, told, action=Action.RESEAL)
    return False


def _last_entry(look: Look) -> Procedure[int]:
    assert look.info is not None
    if look.info.closed is not None:
        return look.info.closed.last_entry
    return (yield LastReadable(look.segment.ledger_id))  # type: ignore[no-any-return]


# --- entries


def _check_entries(
    look: Look,
    meta: LogMeta,
    before: Segment | None,
    samples: int | None,
    *,
    ends_as_listed: bool,
) -> Procedure[None]:
    reading = _Reading(look, meta, before)
    for first_entry, last_entry in _runs(look.last_entry, samples):
        yield from reading.run(first_entry, last_entry)
    reading.end()
    last, sealed = reading.last, look.segment.sealed
    if last is None or last[0] != look.last_entry or sealed is None or not ends_as_listed:
        return
    next_seq = sealed.base_seq + last[1].next_seq
    if next_seq != sealed.next_seq:
        told = f"its last entry ends at seq {next_seq}, and the list says {sealed.next_seq}"
        look.bad(Kind.END_DIFFERS, told, look.where(look.last_entry), Action.RESEAL)


def _runs(last_entry: int, samples: int | None) -> Iterator[tuple[int, int]]:
    """Entries to read, in order: all, or the first two, the last two and pairs between them, so
    that each is held against the one before it."""
    if last_entry < 0:
        return
    if samples is None:
        yield 0, last_entry
        return
    wanted = {0, 1, last_entry - 1, last_entry}
    for number in range(1, samples + 1):
        entry_id = last_entry * number // (samples + 1)
        wanted |= {entry_id, entry_id - 1}
    begin: int | None = None
    entries = sorted(each for each in wanted if 0 <= each <= last_entry)
    for at, entry_id in enumerate(entries):
        begin = entry_id if begin is None else begin
        if at + 1 == len(entries) or entries[at + 1] != entry_id + 1:
            yield begin, entry_id
            begin = None


class _Reading:
    """The entries of one segment, in rising order, with holes where nothing is read."""

    def __init__(self, look: Look, meta: LogMeta, before: Segment | None) -> None:
        self.last: tuple[int, Header] | None = None  # the last good one
        self._look = look
        self._meta = meta
        self._before = before
        self._bad: list[tuple[int, str]] = []  # in a row, and nothing good behind them yet

    def run(self, first_entry: int, last_entry: int) -> Procedure[None]:
        ledger_id = self._look.segment.ledger_id
        entry_id = first_entry
        while entry_id <= last_entry:
            try:
                raws = yield ReadRun(ledger_id, entry_id, last_entry, FSCK_RUN_BYTES)
            except _BAD_BYTES as error:
                self._take_bad(entry_id, error.message)
                entry_id += 1
                continue
            except Unavailable as error:  # the entries elsewhere may be had
                where = self._look.where(entry_id, last_entry)
                self._look.not_checked.append(NotChecked(where, error.message))
                return
            for raw in raws:
                self._take(entry_id, raw)
                entry_id += 1

    def end(self) -> None:
        if self._bad:
            sealed = self._look.segment.sealed
            is_last = self._bad[-1][0] == self._look.last_entry
            self._tell_bad(sealed.next_seq if sealed is not None and is_last else None)

    def _take(self, entry_id: int, raw: memoryview) -> None:
        look, segment = self._look, self._look.segment
        where = f"ledger {segment.ledger_id} entry {entry_id}"
        try:
            entry = decode(raw, where=where)
        except _BAD_BYTES as error:
            self._take_bad(entry_id, error.message)
            return
        look.entries += 1
        try:
            if entry_id == BIRTH_ENTRY:
                check_birth(raw, segment, self._meta.uid)
            elif entry_id == SEAM_ENTRY and not segment.is_job:
                self._check_seam(raw)
        except _BAD_BYTES as error:
            look.bad(Kind.SEAM_DIFFERS, error.message, look.where(entry_id))
        if self._bad:
            is_next = self._bad[-1][0] == entry_id - 1
            self._tell_bad(self._seq(entry.first_seq) if is_next else None)
        self._check_order(entry_id, entry)
        self.last = entry_id, entry

    def _take_bad(self, entry_id: int, told: str) -> None:
        if self._bad and self._bad[-1][0] != entry_id - 1:
            self._tell_bad(None)
        self._bad.append((entry_id, told))

    def _tell_bad(self, next_seq: int | None) -> None:
        bad, self._bad = self._bad, []
        look, segment = self._look, self._look.segment
        first_entry, last_entry = bad[0][0], bad[-1][0]
        first_seq = None
        if self.last is not None and self.last[0] == first_entry - 1:
            first_seq = self._seq(self.last[1].next_seq)
        where = Where(
            log=look.log,
            segment=segment.number,
            ledger_id=segment.ledger_id,
            first_entry=first_entry,
            last_entry=last_entry,
            first_seq=first_seq,
            next_seq=next_seq,
        )
        look.bad(Kind.ENTRY_DAMAGED, bad[0][1], where)

    def _seq(self, relative: int) -> int | None:
        sealed = self._look.segment.sealed
        return None if sealed is None else sealed.base_seq + relative

    def _check_order(self, entry_id: int, entry: Header) -> None:
        if self.last is None:
            return
        before_id, before = self.last
        is_next = before_id == entry_id - 1
        told = None
        if entry.first_seq < before.next_seq or (is_next and entry.first_seq != before.next_seq):
            told = f"it begins at seq {entry.first_seq} of its segment, and entry {before_id} ends"
            told += f" at {before.next_seq}"
        elif before_id != BIRTH_ENTRY and entry.base_timestamp_us < before.last_timestamp_us:
            # A ledger is born long before its turn comes, and by a clock that may go back.
            told = f"its messages are older than those of entry {before_id}"
        if told is not None:
            self._look.bad(Kind.ENTRY_MISPLACED, told, self._look.where(entry_id))

    def _check_seam(self, raw: memoryview) -> None:
        look, segment, sealed = self._look, self._look.segment, self._look.segment.sealed
        seam, _ = decode_seam(raw, segment)
        told = None
        if seam.log_uid != self._meta.uid:
            told = f"its seam is of log {seam.log_uid}, and this is log {self._meta.uid}"
        elif sealed is not None and seam.base_seq != sealed.base_seq:
            told = f"its seam says base seq {seam.base_seq}, and the list {sealed.base_seq}"
        elif sealed is not None and self._before is not None and self._before.sealed is not None:
            ends = self._before.ledger_id, self._before.sealed.last_entry
            if (seam.predecessor_ledger, seam.predecessor_last) != ends:
                told = (
                    f"its seam continues entry {seam.predecessor_last} of ledger "
                    f"{seam.predecessor_ledger}, and the segment before it ends with entry "
                    f"{ends[1]} of ledger {ends[0]}"
                )
        if told is not None:
            look.bad(Kind.SEAM_DIFFERS, told, look.where(SEAM_ENTRY))


def is_closed(look: Look) -> bool:
    return look.info is not None and look.info.state is LedgerState.CLOSED
