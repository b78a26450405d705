"""Decides which ledgers of the store are orphans: ledgers that no log lists or can list any more.
The metadata of each ledger names the log, the segment number and the epoch that it was made for.

A log can no longer list a ledger whose id does not exceed every id that the log ever listed, or
whose epoch is over, or whose log was removed. This needs no clock and no answer from the ledger's
maker. A standby, or the writer of this epoch, may be about to delete such a ledger itself, so it
counts as an orphan only after a grace.

A ledger that a job filled may be published while its id is above the listed ones. It is an orphan
when the job is present for none of its segments, and no entry was added to any of them for the
grace. Before it is deleted, the log meta is marked (`admin.discard`).

Any other ledger may be in use now, by a writer that prepared it, a standby or an opener. It is
reported and kept. So is a ledger of a log that is not known here, since another root may share the
ledgers; where no other root can, and the ledger has messages, the metadata of its log was lost. As
long as the list of a log is damaged, none of its ledgers is an orphan: the list may have lost it.

The ledgers are found *before* the lists are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlog.admin.fsck.lists import Walk
from dlog.admin.fsck.report import Action, Finding, Kind, Severity, Where
from dlog.findings import named
from dlog.ledger.store import LedgerInfo
from dlog.meta.log_meta import LogMeta, LogState

APPLICATION = b"dlog"
STANDBY = b"standby"
JOB = b"job"


@dataclass(frozen=True, slots=True)
class Mark:
    """What a ledger of ours says of itself. `role` is empty for a segment's."""

    uid: str
    role: bytes
    number: int | None
    epoch: int | None
    age_s: float | None = None  # None: not known
    token: str = ""  # of the handle that made it
    is_present: bool = True  # the job that filled it; True where that is not known
    job: bytes | None = None  # its name, which its segments share; None: an earlier version made it


def mark_of(info: LedgerInfo, now_us: int) -> Mark | None:
    """None if the ledger was not made by dlog."""
    custom = info.spec.custom
    if custom.get("application") != APPLICATION:
        return None
    return Mark(
        custom.get("log", b"").decode("utf-8", "replace"),
        custom.get("role", b""),
        _number(custom.get("number")),
        _number(custom.get("epoch")),
        None if info.made_us is None else (now_us - info.made_us) / 1e6,
        custom.get("token", b"").decode("utf-8", "replace"),
        job=custom.get("job"),
    )


def as_siblings(marks: Mapping[int, Mark]) -> dict[int, Mark]:
    """The marks with the age of the youngest ledger of the same job: an entry that the job added to
    one ledger shows that the job lived. If one age is not known, none of that job's is."""
    families: dict[tuple[str, bytes], list[Mark]] = {}
    for mark in marks.values():
        families.setdefault(_family(mark), []).append(mark)
    youngest = {
        family: min((-1.0 if each.age_s is None else each.age_s) for each in its)
        for family, its in families.items()
    }
    found = {}
    for ledger_id, mark in marks.items():
        age_s = youngest[_family(mark)]
        found[ledger_id] = dataclasses.replace(mark, age_s=None if age_s < 0 else age_s)
    return found


def _family(mark: Mark) -> tuple[str, bytes]:
    return mark.uid, mark.job or mark.token.encode()


def _number(raw: bytes | None) -> int | None:
    return int(raw) if raw is not None and raw.isdigit() else None


@dataclass(frozen=True, slots=True)
class Owner:
    """A log that is known: what it lists, and whether that is all."""

    name: str
    meta: LogMeta
    kept: frozenset[int]  # listed, or waiting for their deletion
    is_sound: bool

    @classmethod
    def of(cls, walk: Walk) -> Owner:
        """Whose node was read."""
        kept = frozenset({*(segment.ledger_id for segment in walk.segments), *walk.doomed})
        return cls(walk.name, walk.meta, kept, walk.is_sound)


def strangers(uid: str, ledger_ids: Sequence[int], *, are_lost: bool = False) -> Finding:
    """The finding for all ledgers of one log that is not known here. `are_lost`: no other root can
    know the log, and the ledgers have messages."""
    told = f"{len(ledger_ids)} ledgers belong to log {uid or '?'}, which is not known here: "
    advice = "if no other root has that log, delete them with the tools of the ledger store"
    if are_lost:
        advice = "its metadata was lost: put it back from a copy before you remove anything"
    return Finding(
        Kind.UNKNOWN_LEDGER,
        Severity.BAD if are_lost else Severity.NOTE,
        Where(ledger_id=ledger_ids[0]),
        told + named([str(ledger_id) for ledger_id in ledger_ids]),
        advice=advice,
    )


def all_lost(told: str, left: str) -> Finding:
    """The finding for a place that has ledgers, and no metadata that lists them. `left`: what the
    ledgers say of themselves."""
    advice = "put the metadata back from a copy before anything is written there"
    return Finding(Kind.METADATA_LOST, Severity.BAD, Where(), f"{told} ({left})", advice=advice)


def judge(ledger_id: int, mark: Mark, owner: Owner, grace_s: float) -> Finding | None:
    """None if the log lists the ledger, or is about to delete it."""
    if ledger_id in owner.kept or owner.meta.state is LogState.MOVED:
        return None  # of a log that moved, the place it moved to knows
    where = Where(log=owner.name, ledger_id=ledger_id)
    why = _is_over(mark, owner.meta)
    if why is None and mark.age_s is not None and mark.age_s >= grace_s:
        left = mark.role == JOB and not mark.is_present
        why = "the job that filled it left it" if left else _is_below(ledger_id, mark, owner.meta)
    if why is None:
        told = f"not listed (yet): it was made for {_made_for(mark)}, and may be in use"
        return Finding(Kind.MAYBE_IN_USE, Severity.NOTE, where, told)
    if not owner.is_sound:
        told = "in no list that could be read, and something is wrong with the list of its log"
        return Finding(Kind.MAYBE_IN_USE, Severity.NOTE, where, told)
    never = "" if mark.role == JOB else ", and never will be"
    told = f"it is in no list{never}: {why}"
    return Finding(Kind.ORPHAN, Severity.WARNING, where, told, Action.DELETE_LEDGER)


def _made_for(mark: Mark) -> str:
    if mark.role == STANDBY:
        return "a standby"
    if mark.role == JOB:
        return "a job"
    if mark.role:
        return f"the role {mark.role.decode('utf-8', 'replace')}"
    return f"segment {mark.number}, epoch {mark.epoch}"


def _is_over(mark: Mark, meta: LogMeta) -> str | None:
    """Why no handle can list the ledger any more; None if one may. No handle needs it either."""
    if mark.role not in (b"", STANDBY):
        return None  # only its maker knows its purpose
    if meta.state in (LogState.TERMINATED, LogState.DELETING, LogState.DELETED):
        return f"its log is {meta.state.value}"
    if mark.epoch is not None and mark.epoch < meta.epoch:
        return f"it is of epoch {mark.epoch}, and the log is in epoch {meta.epoch}"
    return None


def _is_below(ledger_id: int, mark: Mark, meta: LogMeta) -> str | None:
    """Why no handle can list the ledger any more; None if one may. Its maker may still delete
    it."""
    if mark.role not in (b"", STANDBY) or ledger_id > meta.ledger_floor:
        return None
    return f"ledger {meta.ledger_floor} was listed, and ids only grow"
