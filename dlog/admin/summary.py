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
    messages: int
    bytes: int  # of sealed segments
    next_seq: int
    writer: str | None
    last_time_us: int | None


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
    tail: MessageId | None
    messages: int
    bytes: int
    ledger_floor: int
    next_number: int
    truncate_before: str | None
    deleting: tuple[int, ...]
    pages: int
    segments: tuple[SegmentSummary, ...]
