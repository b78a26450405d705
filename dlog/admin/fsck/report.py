"""What `fsck` tells: findings, what was not checked, how many copies there are, what can be done.
Values for programs, printed by the command line."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Kind(enum.StrEnum):
    """What is wrong."""

    # in the metadata store
    META_UNREADABLE = "meta_unreadable"  # the node of a log
    PAGE_MISSING = "page_missing"
    PAGE_UNREADABLE = "page_unreadable"
    PAGE_STALE = "page_stale"  # it says something else than what refers to it
    PAGE_UNUSED = "page_unused"  # nothing refers to it
    LIST_BROKEN = "list_broken"  # seqs, numbers or ends that do not fit each other
    MOVED = "moved"  # the log is kept elsewhere: there it is to be checked
    WAITS_FOR_DELETION = "waits_for_deletion"
    METADATA_LOST = "metadata_lost"  # all of it, under ledgers that are there
    LOG_MISSING = "log_missing"  # a stream or a group has it, and there is no such log
    STREAM_MISSING = "stream_missing"  # its shards, or a group of it, are there
    GROUP_BROKEN = "group_broken"  # some nodes of a group without the others
    # between the list and its ledgers
    LEDGER_MISSING = "ledger_missing"
    LEDGER_UNREADABLE = "ledger_unreadable"  # its metadata
    LEDGER_FOREIGN = "ledger_foreign"  # it says that it belongs elsewhere
    LEDGER_NOT_CLOSED = "ledger_not_closed"
    END_DIFFERS = "end_differs"
    SEAM_DIFFERS = "seam_differs"
    TAIL_UNSEALED = "tail_unsealed"  # a writer ended without sealing what it wrote
    # in the ledgers
    ENTRY_DAMAGED = "entry_damaged"
    ENTRY_MISPLACED = "entry_misplaced"  # its seqs or times do not follow those before
    # of single copies
    COPY_MISSING = "copy_missing"
    COPY_DAMAGED = "copy_damaged"
    COPY_DIFFERS = "copy_differs"
    ENTRIES_LOST = "entries_lost"  # no copy is good
    UNDER_REPLICATED = "under_replicated"
    # of no log that is known here, or not listed by theirs
    ORPHAN = "orphan"
    MAYBE_IN_USE = "maybe_in_use"
    UNKNOWN_LEDGER = "unknown_ledger"  # ours by its marks, and of no log that is known here
    STRAY_FILE = "stray_file"


class Severity(enum.StrEnum):
    NOTE = "note"  # as it may be; worth knowing
    WARNING = "warning"  # nothing is lost, and it should not stay so
    BAD = "bad"  # something cannot be read, or may be lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """As much of a place as is known. Ends are included, but for `next_seq`."""

    log: str | None = None
    path: str | None = None
    segment: int | None = None
    ledger_id: int | None = None
    bookie: str | None = None
    first_entry: int | None = None
    last_entry: int | None = None
    first_seq: int | None = None
    next_seq: int | None = None

    def __str__(self) -> str:
        told = []
        if self.log is not None:
            told.append(f"log {self.log}")
        if self.segment is not None:
            told.append(f"segment {self.segment}")
        if self.path is not None:
            told.append(self.path)
        if self.ledger_id is not None:
            told.append(f"ledger {self.ledger_id}")
        if self.bookie is not None:
            told.append(f"bookie {self.bookie}")
        if self.first_entry is not None:
            is_one = self.last_entry in (None, self.first_entry)
            told.append(
                f"entry {self.first_entry}"
                if is_one
                else f"entries {self.first_entry} to {self.last_entry}"
            )
        if self.first_seq is not None and self.next_seq is not None:
            told.append(f"seqs {self.first_seq} to {self.next_seq - 1}")
        return ", ".join(told)


class Action(enum.StrEnum):
    """What can be done, and is done when asked for."""

    DELETE_LEDGER = "delete_ledger"
    DELETE_PAGE = "delete_page"
    WRITE_PAGE = "write_page"
    MEND_COPY = "mend_copy"
    MOVE_COPIES = "move_copies"
    RESEAL = "reseal"
    SEAL_TAIL = "seal_tail"


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    severity: Severity
    where: Where
    told: str  # the evidence
    action: Action | None = None  # that repairs it
    advice: str = ""  # where nothing here does

    @property
    def is_damage(self) -> bool:
        return self.severity is not Severity.NOTE


@dataclass(frozen=True, slots=True)
class NotChecked:
    where: Where
    why: str


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries that the same bookies keep, some of which are away."""

    first_entry: int
    last_entry: int
    bookies: tuple[str, ...]
    away: tuple[str, ...]
    copies_left: int
    is_lost_with_one_more: bool  # if the last bookie that is left goes, too


@dataclass(frozen=True, slots=True)
class UnderReplicated:
    log: str
    segment: int
    ledger_id: int
    fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class LogChecked:
    name: str
    segments: int
    pages: int


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, and where. Each looks again before it does anything."""

    action: Action
    where: Where
    told: str


@dataclass(frozen=True, slots=True)
class Report:
    logs: tuple[LogChecked, ...] = ()
    ledgers: int = 0  # looked at, listed and not listed
    entries: int = 0  # read and decoded
    copies: int = 0  # read one by one (deep)
    findings: tuple[Finding, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    under_replicated: tuple[UnderReplicated, ...] = ()
    plan: tuple[Step, ...] = ()
    more_findings: int = 0  # that there was no room for

    @property
    def damage(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.is_damage)

    @property
    def is_clean(self) -> bool:
        """Nothing is wrong with anything, and all of it was checked."""
        return not self.damage and not self.not_checked


class Ended(enum.StrEnum):
    DONE = "done"
    NOT_NEEDED = "not_needed"  # it was done by others, or mended itself
    REFUSED = "refused"  # what it rested on is not so, or cannot be proven
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StepDone:
    step: Step
    ended: Ended
    told: str


@dataclass(frozen=True, slots=True)
class RepairReport:
    steps: tuple[StepDone, ...] = field(default_factory=tuple)

    @property
    def is_complete(self) -> bool:
        return all(done.ended in (Ended.DONE, Ended.NOT_NEEDED) for done in self.steps)
