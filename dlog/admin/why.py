"""What a log waits for, as it can be seen from outside: who holds it and whether that one is there,
what its open ledgers are at, which bookies they need and do not have, who holds truncation back.
Procedures without IO; what the ledger store knows of bookies is asked by the face."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from dlog.admin.summary import WriterSummary
from dlog.effects import LastReadable, LookAtLedger, Procedure, ReadNode
from dlog.errors import DlogError, NotFound, Timeout, Unavailable
from dlog.ledger.store import LedgerState, Whereabouts
from dlog.meta.layout import Layout
from dlog.meta.listed import Segment
from dlog.meta.log_meta import LogMeta
from dlog.meta.stream_holds import read_all_holds
from dlog.reader.segments import SegmentView
from dlog.reason import Plain, Reason, ReasonCode, told_of


@dataclass(frozen=True, slots=True)
class OpenLedger:
    """A ledger of the log that its list does not know the end of."""

    segment: int
    ledger_id: int
    epoch: int
    state: str  # open, in_recovery, closed, gone, unknown
    last_readable: int | None  # entry; None where nobody could be asked
    may_be_entered: bool | None  # readers get there; None: as above
    bookies: tuple[str, ...] = ()  # that take its entries; none where the backend has no bookies
    missing: tuple[str, ...] = ()  # of all that hold entries of it: not registered
    read_only: tuple[str, ...] = ()
    quarantined: tuple[str, ...] = ()  # by this client


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What `dlog why` prints. No reason is a good sign, and no proof: what a writer or a reader
    waits for inside, its own `why()` says."""

    name: str
    state: str
    epoch: int
    writer: WriterSummary | None
    present: bool | None  # the writer's process, as far as the metadata store knows
    ledgers: tuple[OpenLedger, ...]
    holds: tuple[str, ...]
    reasons: tuple[Reason, ...]


def no_metadata(name: str, error: DlogError) -> Diagnosis:
    """All that can be said when the metadata store is away."""
    reason = Reason(
        ReasonCode.METADATA_AWAY,
        f"the metadata store gives no answer: {error}",
        told_of(error),
    )
    return Diagnosis(name, "unknown", 0, None, None, (), (), (reason,))


@dataclass(frozen=True, slots=True)
class Outside:
    """What can be seen of a log without asking for its bookies."""

    meta: LogMeta
    present: bool | None
    ledgers: tuple[OpenLedger, ...]
    holds: tuple[str, ...]


def look_at(view: SegmentView, layout: Layout) -> Procedure[Outside]:
    meta = yield from view.refresh()
    present = yield from _is_present(view.name, layout, meta)
    ledgers: list[OpenLedger] = []
    for segment in meta.unsealed:
        ledger = yield from _open_ledger(view, segment)
        ledgers.append(ledger)
    holds = yield from read_all_holds(layout, view.name, meta)
    return Outside(meta, present, tuple(ledgers), tuple(hold.name for hold in holds))


def _is_present(name: str, layout: Layout, meta: LogMeta) -> Procedure[bool | None]:
    if meta.writer is None:
        return None
    try:
        yield ReadNode(layout.presence(name, meta.writer.token))
    except NotFound:
        return False
    return True


def _open_ledger(view: SegmentView, segment: Segment) -> Procedure[OpenLedger]:
    state = "unknown"
    last: int | None = None
    may_be_entered: bool | None = None
    try:
        info = yield LookAtLedger(segment.ledger_id)
        state = info.state.value
        last = yield LastReadable(segment.ledger_id)
        may_be_entered = (yield from view.enter(segment)) is not None
    except NotFound:
        state, may_be_entered = "gone", False
    except (Unavailable, Timeout):
        pass  # bookies that are away: what is known of them says it
    return OpenLedger(
        segment=segment.number,
        ledger_id=segment.ledger_id,
        epoch=segment.epoch,
        state=state,
        last_readable=last,
        may_be_entered=may_be_entered,
    )


def located(ledger: OpenLedger, where: Whereabouts) -> OpenLedger:
    return dataclasses.replace(
        ledger,
        bookies=where.writing,
        missing=where.not_registered,
        read_only=where.read_only,
        quarantined=where.quarantined,
    )


def diagnose(name: str, seen: Outside, ledgers: tuple[OpenLedger, ...]) -> Diagnosis:
    """`ledgers` with their bookies, where there are any."""
    meta, mark = seen.meta, seen.meta.writer
    reasons = [*_of_holder(seen, ledgers)]
    for ledger in ledgers:
        reasons += _of_ledger(ledger, meta)
    reasons += [_of_hold(hold) for hold in seen.holds]
    return Diagnosis(
        name,
        meta.state.value,
        meta.epoch,
        None if mark is None else WriterSummary(mark.name, mark.token, mark.since_us),
        seen.present,
        ledgers,
        seen.holds,
        tuple(reasons),
    )


def _of_holder(seen: Outside, ledgers: tuple[OpenLedger, ...]) -> Iterator[Reason]:
    mark = seen.meta.writer
    if mark is None or seen.present is not False:
        return
    numbers = ", ".join(str(each.ledger_id) for each in ledgers)
    to_recover = f"; whoever opens the log recovers ledger {numbers}" if numbers else ""
    yield Reason(
        ReasonCode.HOLDER_GONE,
        f"{mark.name} holds the log with epoch {seen.meta.epoch} and is not present: its process "
        f"ended, or was cut off{to_recover}",
        {"holder": mark.name, "epoch": seen.meta.epoch},
    )


def _of_ledger(ledger: OpenLedger, meta: LogMeta) -> Iterator[Reason]:
    about: dict[str, Plain] = {"ledger_id": ledger.ledger_id, "segment": ledger.segment}
    name = f"ledger {ledger.ledger_id} of segment {ledger.segment}"
    if ledger.state == LedgerState.IN_RECOVERY.value:
        who = "somebody" if meta.writer is None else meta.writer.name
        yield Reason(
            ReasonCode.IN_RECOVERY,
            f"{name} is being recovered; {who} has claimed the log with epoch {meta.epoch}",
            {**about, "recovered_by": who, "epoch": meta.epoch},
        )
    missing = tuple(bookie for bookie in ledger.bookies if bookie in ledger.missing)
    if ledger.missing:
        lost = f"; {', '.join(missing)} should take its entries" if missing else ""
        yield Reason(
            ReasonCode.BOOKIES_AWAY,
            f"{name} needs {', '.join(ledger.missing)}, not registered now{lost}",
            {**about, "missing": ledger.missing, "quarantined": ledger.quarantined},
        )
    if ledger.may_be_entered is False:
        yield Reason(
            ReasonCode.SEGMENT_NOT_ENTERABLE,
            f"{name} is listed, and readers may not enter it yet: it has no seam that can be read, "
            "or the one before it is not closed where the seam says",
            {**about, "ledger_state": ledger.state},
        )


def _of_hold(hold: str) -> Reason:
    return Reason(ReasonCode.HELD, f"hold {hold!r} keeps the log from its place on", {"hold": hold})
