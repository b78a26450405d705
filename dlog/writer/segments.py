"""What a ledger says about itself: making the control entries of a segment, and reading them back
at a takeover."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dlog.effects import (
    BirthLedger,
    CreateLedger,
    DeleteLedger,
    Procedure,
    ReadEntries,
    RecoverLedger,
)
from dlog.errors import AuthError, Corrupt, DlogError, Fenced, Handle, Retry, Timeout, Unavailable
from dlog.ledger.store import Buffer, ClosedLedger, LedgerSpec
from dlog.meta.listed import End, Sealed, Segment
from dlog.meta.log_meta import LogMeta
from dlog.wire.batch import decode, decode_header, encode_control
from dlog.wire.control import Birth, ControlKind, Seam

BIRTH_ENTRY = 0
SEAM_ENTRY = 1
_BIRTH_TRIES = 3


def new_ledger(
    meta: LogMeta, *, number: int, epoch: int, token: str, now_us: int, room: str
) -> Procedure[int]:
    """A ledger with its birth on every replica, ready to be listed; its id. `room` prefixes the
    crash points."""
    custom = {"number": str(number).encode(), "epoch": str(epoch).encode()}
    birth = Birth(meta.uid, "segment", number, epoch, token)
    return _born_ledger(meta, birth, custom, now_us, room)


def standby_ledger(
    meta: LogMeta, *, token: str, now_us: int, room: str = "standby"
) -> Procedure[int]:
    """The same, before anybody knows the number and the epoch: its birth says `standby`, and the
    seam will say the true ones."""
    birth = Birth(meta.uid, "standby", None, None, token)
    return _born_ledger(meta, birth, {"role": b"standby"}, now_us, room)


def job_ledger(meta: LogMeta, *, token: str, now_us: int, job: str = "") -> Procedure[int]:
    """The same for a job, which fills it without holding the log: it has no seam, and is listed
    only when it is closed. `job` is the name that its segments share."""
    birth = Birth(meta.uid, "job", None, None, token)
    about = {"role": b"job"} | ({"job": job.encode()} if job else {})
    return _born_ledger(meta, birth, about, now_us, "job")


def _born_ledger(
    meta: LogMeta, birth: Birth, about: dict[str, bytes], now_us: int, room: str
) -> Procedure[int]:
    """An id that does not exceed every id ever listed would break the order of message ids: such a
    ledger is deleted (it was never listed) and another one taken. So is one that a stranger
    recovered before it was born: that says nothing about who has the log."""
    custom = {
        "application": b"dlog",
        "log": meta.uid.encode(),
        **about,
        "token": birth.token.encode(),
    }
    options = meta.options
    spec = LedgerSpec(
        options.ensemble, options.write_quorum, options.ack_quorum, meta.digest, custom
    )
    entry = encode_control(ControlKind.BIRTH, birth.to_bytes(), first_seq=0, timestamp_us=now_us)
    ended: Fenced | None = None
    for _ in range(_BIRTH_TRIES):
        ledger_id = yield CreateLedger(spec, point=f"{room}.created")
        if ledger_id > meta.ledger_floor:
            try:
                yield BirthLedger(ledger_id, entry, point=f"{room}.born")
            except Fenced as error:
                ended = error
            except (Unavailable, Timeout, AuthError) as error:
                yield from _forget(ledger_id)
                raise _unborn(error) from error
            else:
                return ledger_id  # type: ignore[no-any-return]
        yield DeleteLedger(ledger_id)
    if ended is not None:
        raise Unavailable(
            f"new ledgers are recovered by somebody else before they are born: {ended}",
            ledger_id=ledger_id,
        ) from ended
    raise Unavailable(
        f"the ledger store gives ids that are not above {meta.ledger_floor}, the highest this log "
        "ever listed: was its metadata restored from a copy?",
        ledger_id=ledger_id,
    )


def _forget(ledger_id: int) -> Procedure[None]:
    """Delete a ledger that was never listed. One that stays is an orphan, which says what it is."""
    try:
        yield DeleteLedger(ledger_id)
    except DlogError:
        pass


def _unborn(error: DlogError) -> DlogError:
    """The appender is dead, and the handle that asked for it is not: it may make another ledger."""
    twin = error.again(handle=Handle.USABLE)
    if twin.retry is Retry.AFTER_REOPEN:
        twin.retry = Retry.NOW
    return twin


def seam_entry(
    meta: LogMeta,
    *,
    number: int,
    epoch: int,
    predecessor: tuple[int, int],
    base_seq: int,
    now_us: int,
) -> list[Buffer]:
    """Entry 1. `predecessor` is the ledger before and the last entry pushed to it."""
    seam = Seam(predecessor[0], predecessor[1], base_seq, epoch, number, meta.uid)
    return encode_control(ControlKind.SEAM, seam.to_bytes(), first_seq=0, timestamp_us=now_us)


@dataclass(frozen=True, slots=True)
class Found:
    """What recovery found in one unsealed segment. `seam` and the rest are None when no seam
    survived."""

    segment: Segment
    closed: ClosedLedger
    seam: Seam | None = None
    first_time_us: int = 0
    next_relative_seq: int = 0
    last_time_us: int = 0


def recover_segment(
    meta: LogMeta, segment: Segment, fenced: Callable[[], None] | None = None
) -> Procedure[Found]:
    """Fence, recover, and read what decides its fate: birth, seam and the last entry."""
    ledger_id = segment.ledger_id
    closed = yield RecoverLedger(ledger_id, meta.digest, fenced, point="takeover.recovered")
    return (yield from read_segment(meta, segment, closed))


def read_segment(meta: LogMeta, segment: Segment, closed: ClosedLedger) -> Procedure[Found]:
    if closed.last_entry < SEAM_ENTRY:
        return Found(segment, closed)
    birth_raw, seam_raw, last_raw = yield ReadEntries(
        segment.ledger_id,
        meta.digest,
        (BIRTH_ENTRY, SEAM_ENTRY, closed.last_entry),
        closed=closed,
    )
    check_birth(birth_raw, segment, meta.uid)
    seam, seam_time_us = decode_seam(seam_raw, segment)
    last = decode_header(last_raw, where=f"ledger {segment.ledger_id} entry {closed.last_entry}")
    return Found(
        segment, closed, seam, seam_time_us, last.first_seq + last.count, last.last_timestamp_us
    )


def check_birth(raw: Buffer, segment: Segment, uid: str) -> None:
    """`Corrupt` unless entry 0 proves that this ledger was made for this place: by the writer of
    that epoch, or by a standby of the log, which could not know its place yet; a published one by a
    job of the log."""
    where = f"ledger {segment.ledger_id} entry {BIRTH_ENTRY}"
    entry = decode(raw, where=where)
    if entry.control is not ControlKind.BIRTH:
        raise Corrupt(
            f"{where} should be a birth", ledger_id=segment.ledger_id, entry_id=BIRTH_ENTRY
        )
    birth = Birth.from_bytes(entry.control_body, where=where)
    place = (segment.number, segment.epoch)
    of_segment = birth.role == "segment" and (birth.number, birth.epoch) == place
    is_right = birth.role == "job" if segment.is_job else of_segment or birth.role == "standby"
    if birth.log_uid != uid or not is_right:
        raise Corrupt(
            f"{where} is the birth of a {birth.role} of log {birth.log_uid} (segment "
            f"{birth.number}, epoch {birth.epoch}), but in the list of log {uid} it is segment "
            f"{segment.number} (epoch {segment.epoch})",
            ledger_id=segment.ledger_id,
            entry_id=BIRTH_ENTRY,
        )


def decode_seam(raw: Buffer, segment: Segment) -> tuple[Seam, int]:
    """The seam and its time; `Corrupt` when entry 1 is not this segment's seam."""
    where = f"ledger {segment.ledger_id} entry {SEAM_ENTRY}"
    entry = decode(raw, where=where)
    if entry.control is not ControlKind.SEAM:
        raise Corrupt(f"{where} should be a seam", ledger_id=segment.ledger_id, entry_id=SEAM_ENTRY)
    seam = Seam.from_bytes(entry.control_body, where=where)
    if (seam.number, seam.epoch) != (segment.number, segment.epoch):
        raise Corrupt(
            f"{where} is the seam of segment {seam.number} (epoch {seam.epoch}), but in the list "
            f"it is {segment.number} (epoch {segment.epoch})",
            ledger_id=segment.ledger_id,
            entry_id=SEAM_ENTRY,
        )
    return seam, entry.base_timestamp_us


@dataclass(frozen=True, slots=True)
class Decided:
    """Where the log ends: what of the unsealed segments stays, what goes, and the final base."""

    kept: tuple[tuple[int, Sealed], ...]
    dropped: tuple[int, ...]
    end: End


def decide_end(end: End, found: list[Found]) -> Decided:
    """Keep each unsealed segment, in order, exactly if what was pushed before it survived.

    A segment without a seam, or whose seam names more of its predecessor than there is, holds
    nothing that was ever acknowledged: its acknowledgements wait until the predecessor is closed at
    that very entry. Deciding one before all are closed, or out of order, would drop acknowledged
    messages.
    """
    kept: list[tuple[int, Sealed]] = []
    dropped: list[int] = []
    for each in found:
        segment, seam, last_entry = each.segment, each.seam, each.closed.last_entry
        if seam is None or seam.predecessor_ledger != end.ledger_id:
            dropped.append(segment.number)
            continue
        if seam.predecessor_last > end.last_entry:
            dropped.append(segment.number)
            continue
        if seam.predecessor_last < end.last_entry or seam.base_seq != end.next_seq:
            raise Corrupt(
                f"segment {segment.number} begins after entry {seam.predecessor_last} (seq "
                f"{seam.base_seq}) of ledger {seam.predecessor_ledger}, which ends at "
                f"{end.last_entry} (seq {end.next_seq})",
                ledger_id=segment.ledger_id,
            )
        next_seq = seam.base_seq + each.next_relative_seq
        sealed = Sealed(
            last_entry,
            each.closed.bytes,
            seam.base_seq,
            next_seq,
            each.first_time_us,
            each.last_time_us,
        )
        kept.append((segment.number, sealed))
        end = End(segment.number, segment.ledger_id, last_entry, next_seq, each.last_time_us)
    return Decided(tuple(kept), tuple(dropped), end)


def ledger_gone(segment: Segment, name: str, place: str | None = None) -> Corrupt:
    where = "" if place is None else f" at {place}"
    return Corrupt(
        f"ledger {segment.ledger_id} of segment {segment.number} is in the list of log {name!r} "
        f"but not in the ledger store{where}",
        log=name,
        ledger_id=segment.ledger_id,
    )
