"""What can be told of a log: values for programs, printed by the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dlog.ids import MessageId


@dataclass(frozen=True, slots=True)
class WriterSummary:
    """Who holds the log, or did not get to leave it: whether that process still lives nobody can
    know from here."""

    name: str
    token: str
    since_us: int


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """One ledger's place in the log. Numbers that an open segment does not have yet are None."""

    number: int
    ledger_id: int
    state: str  # sealed; else what the ledger store says: open, in_recovery, closed, gone
    epoch: int
    base_seq: int | None
    next_seq: int | None
    last_entry: int | None
    bytes: int | None
    first_time_us: int | None
    last_time_us: int | None

    @property
    def messages(self) -> int | None:
        if self.base_seq is None or self.next_seq is None:
            return None
        return self.next_seq - self.base_seq


@dataclass(frozen=True, slots=True)
class LogSummary:
    """One line of `dlog ls`. `messages` and `next_seq` count what can be read now."""

    name: str
    state: str
    epoch: int
    segments: int
    head_seq: int
    messages: int
    bytes: int  # of sealed segments
    next_seq: int
    writer: str | None
    last_time_us: int | None  # of the last message; None where none is left


def unreadable(name: str) -> LogSummary:
    """Nothing is known of a log whose metadata is damaged. `fsck` says what is wrong with it."""
    return LogSummary(name, "unreadable", 0, 0, 0, 0, 0, 0, None, None)


@dataclass(frozen=True, slots=True)
class HoldSummary:
    """Somebody's hold: from the message with this seq on, no policy truncates."""

    name: str
    who: str
    since_us: int
    moved_us: int
    seq: int
    note: str | None


@dataclass(frozen=True, slots=True)
class Truncation:
    """How a truncation went, or would go. Everything before `head_seq` is gone from now on."""

    log: str
    asked: str  # for
    done: bool  # False: a plan
    forced: bool
    point: str | None  # where the log begins now, by seq, by id, or both
    head_seq: int | None  # None: it is inside of a segment that no bookie could be asked about
    held_by: tuple[str, ...]  # holds that it stopped at; those that it overran, if it was forced
    reasons: tuple[str, ...]  # why it did not go as far as it was asked to
    ledgers: int  # that left the list, and are deleted after the log's grace
    bytes: int  # in these


@dataclass(frozen=True, slots=True)
class Collection:
    """What a pass of the collector did to one log, or would do."""

    log: str
    done: bool  # False: a plan
    head_seq: int | None  # behind what retention truncated
    truncated: int  # ledgers that left the list in this pass
    deleted: int  # ledgers, also those in pages
    bytes: int  # in these
    unsized: int  # of these, whose bytes nobody knows before they are closed
    pages: int  # of deleted ledgers
    nodes: int  # pages and holds that nothing names any more
    waiting: int  # ledgers in their grace, and pages of them
    held_by: tuple[str, ...]  # holds that keep what retention would not
    problems: tuple[str, ...]  # what could not be done, and why; the next pass tries again


@dataclass(frozen=True, slots=True)
class LogDescription:
    """Everything `dlog describe` prints."""

    name: str
    uid: str
    state: str
    epoch: int
    writer: WriterSummary | None
    hand_over: str | None
    options: dict[str, Any]
    digest: str
    head_seq: int
    next_seq: int
    tail: MessageId | None  # the last message; None where none is left
    last_time_us: int | None  # when that was written
    messages: int
    bytes: int
    ledger_floor: int
    next_number: int
    truncate_before: str | None
    holds: tuple[HoldSummary, ...]
    deleting: tuple[int, ...]
    deleting_pages: int
    pages: int
    segments: tuple[SegmentSummary, ...]


@dataclass(frozen=True, slots=True)
class LogMove:
    """A log's metadata as one document: of which log, and between which places it moves."""

    log: str
    uid: str
    epoch: int
    place: str  # where it was written out
    moves_to: str | None  # None: it stays; the document is a copy of how it was
    segments: int
    pages: int
    holds: int
    next_seq: int
