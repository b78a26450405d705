"""What was seen, as findings: of copies, of who keeps them, of files, of a log without a writer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
from dlog.ledger.store import LedgerState
from dlog.limits import FSCK_FINDINGS_MAX
from dlog.meta.log_meta import LogMeta

_KINDS: Final = {
    Fault.MISSING: Kind.COPY_MISSING,
    Fault.DAMAGED: Kind.COPY_DAMAGED,
    Fault.DIFFERS: Kind.COPY_DIFFERS,
}


class Judge:
    """Collects what was found, within a bound."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.not_checked: list[NotChecked] = []
        self.under_replicated: list[UnderReplicated] = []
        self.more_findings = 0

    @property
    def has_trouble(self) -> bool:
        return bool(self.not_checked) or any(each.is_damage for each in self.findings)

    def add(self, finding: Finding) -> None:
        if len(self.findings) < FSCK_FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.more_findings += 1

    def join(self, other: Judge) -> None:
        for finding in other.findings:
            self.add(finding)
        self.not_checked += other.not_checked
        self.under_replicated += other.under_replicated
        self.more_findings += other.more_findings

    def look(self, look: Look) -> None:
        for finding in look.findings:
            self.add(finding)
        self.not_checked += look.not_checked

    def gone(self, look: Look) -> None:
        told = "it is listed, and there is no such ledger"
        if not any(each.kind is Kind.LEDGER_MISSING for each in self.findings):
            self.add(Finding(Kind.LEDGER_MISSING, Severity.BAD, look.where(), told))

    # --- copies

    def copy(self, look: Look, news: CopyFault | Lost) -> None:
        segment = look.segment
        is_open = look.info is None or look.info.state is not LedgerState.CLOSED
        if isinstance(news, Lost):
            self._lost(look, news)
            return
        where = Where(
            log=look.log,
            segment=segment.number,
            ledger_id=segment.ledger_id,
            bookie=news.keeper,
            first_entry=news.first_entry,
            last_entry=news.last_entry,
        )
        if news.fault is Fault.NOT_CHECKED:
            self.not_checked.append(NotChecked(where, news.told))
            return
        kind = _KINDS[news.fault]
        if is_open:
            if news.fault is Fault.MISSING:
                told = "not there (yet): the segment is being written"
                self.add(Finding(kind, Severity.NOTE, where, told))
            else:
                advice = "can be mended once the segment is closed"
                self.add(Finding(kind, Severity.WARNING, where, news.told, advice=advice))
        elif news.can_be_mended:
            self.add(Finding(kind, Severity.WARNING, where, news.told, Action.MEND_COPY))
        else:
            self.add(Finding(kind, Severity.BAD, where, news.told))

    def _lost(self, look: Look, news: Lost) -> None:
        where = look.where(news.first_entry, news.last_entry)
        if not news.is_certain:
            why = "no copy that could be looked at is good, and not all answered"
            self.not_checked.append(NotChecked(where, why))
            return
        told = "no copy is good"
        known = next(
            (
                each.where
                for each in look.findings
                if each.kind is Kind.ENTRY_DAMAGED
                and (each.where.first_entry, each.where.last_entry)
                == (news.first_entry, news.last_entry)
            ),
            where,
        )
        self.add(Finding(Kind.ENTRIES_LOST, Severity.BAD, known, told))

    def size(self, look: Look, bytes_found: int) -> None:
        """Every copy of every entry was looked at, and this is what one of each holds."""
        info = look.info
        if info is None or info.closed is None or self.has_trouble:
            return
        if info.closed.bytes != bytes_found:
            told = (
                f"its metadata says {info.closed.bytes} bytes up to entry "
                f"{info.closed.last_entry}, and its entries have {bytes_found}"
            )
            self.add(Finding(Kind.END_DIFFERS, Severity.BAD, look.where(), told))

    def replication(self, look: Look, copies: LedgerCopies) -> None:
        short = [kept for kept in copies.kept if kept.away]
        if not short:
            return
        segment = look.segment
        fragments = tuple(
            Fragment(
                kept.first_entry,
                kept.last_entry,
                kept.keepers,
                kept.away,
                kept.copies_left,
                kept.copies_left <= 1,
            )
            for kept in short
        )
        self.under_replicated.append(
            UnderReplicated(look.log, segment.number, segment.ledger_id, fragments)
        )
        is_closed = copies.state is LedgerState.CLOSED
        for kept in short:
            for bookie in kept.away:
                self.add(_away(look, kept, bookie, is_closed=is_closed))

    # --- the rest

    def strays(self, found: Iterable[Stray]) -> None:
        for stray in found:
            told = f"{stray.bytes} bytes of no ledger that the metadata knows"
            advice = (
                "if an older copy of the metadata was put back, this may be all that is left: look "
                "before you remove it"
            )
            where = Where(path=stray.path)
            self.add(Finding(Kind.STRAY_FILE, Severity.WARNING, where, told, advice=advice))

    def tail(self, name: str, meta: LogMeta) -> None:
        segment = meta.unsealed[-1]
        holder = "no writer holds the log"
        if meta.writer is not None:
            holder = f"{meta.writer.name}, the log's writer, is not present"
        told = f"its last segment is not sealed, and {holder}"
        where = Where(log=name, segment=segment.number, ledger_id=segment.ledger_id)
        self.add(Finding(Kind.TAIL_UNSEALED, Severity.NOTE, where, told, Action.SEAL_TAIL))


def _away(look: Look, kept: KeptAt, bookie: str, *, is_closed: bool) -> Finding:
    segment = look.segment
    has_end = kept.last_entry >= 0
    where = Where(
        log=look.log,
        segment=segment.number,
        ledger_id=segment.ledger_id,
        bookie=bookie,
        first_entry=kept.first_entry,
        last_entry=kept.last_entry if has_end else None,
    )
    left = kept.copies_left
    told = f"it is not registered: {left} of {len(kept.keepers)} copies are left"
    if left == 1:
        told += "; with one bookie more, these entries are lost"
    elif left == 0:
        told += "; these entries cannot be read now"
    severity = Severity.WARNING if left > 1 else Severity.BAD
    if is_closed and left > 0:
        return Finding(Kind.UNDER_REPLICATED, severity, where, told, Action.MOVE_COPIES)
    advice = (
        "bring a bookie back" if left == 0 else "the writer takes another one at its next append"
    )
    return Finding(Kind.UNDER_REPLICATED, severity, where, told, advice=advice)
