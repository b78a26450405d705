"""Ranges: parts of a log that can be read apart from each other, by threads, processes or machines.

A `LedgerRange` is a plan, made once by `admin.plan_ranges` and handed to whoever reads: a frozen
value that can be pickled, and that holds names and numbers, never a secret. It knows exactly how
many messages it has and at which seq they begin. Whoever reads it holds what comes against that
(`RangeCount`), so that a range comes back whole and as planned, or as an error by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dlog.errors import ConfigError, Corrupt
from dlog.options import OnTruncated, ReaderOptions, options_from
from dlog.reader.message import MessageBatch
from dlog.reader.places import Place


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """Messages of one ledger: from message `first_idx` of entry `first_entry` on, so many."""

    segment: int
    ledger_id: int
    first_entry: int
    first_idx: int
    last_entry: int
    first_seq: int
    messages: int
    bytes: int
    """About so many, of entries; exactly where the part is a whole ledger that is sealed."""

    @property
    def next_seq(self) -> int:
        return self.first_seq + self.messages


@dataclass(frozen=True, slots=True)
class LedgerRange:
    """So many messages of one log, one after the other: a part of a ledger, or several ledgers that
    are small."""

    log: str
    log_uid: str
    parts: tuple[LedgerPart, ...]
    copy: int = 0
    """Which copy to begin with, counted on over those that there are: a range is read from one
    bookie, and ranges that stand beside each other from different ones."""

    @property
    def first_seq(self) -> int:
        return self.parts[0].first_seq

    @property
    def next_seq(self) -> int:
        """Behind the last message."""
        return self.parts[-1].next_seq

    @property
    def messages(self) -> int:
        return sum(part.messages for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def place(self) -> Place:
        """Where it begins."""
        first = self.parts[0]
        return Place(first.segment, first.first_entry, first.first_idx, first.first_seq)

    @property
    def last_entry(self) -> tuple[int, int]:
        """The segment and the entry of its last message."""
        last = self.parts[-1]
        return last.segment, last.last_entry

    def __str__(self) -> str:
        ledgers = ", ".join(str(part.ledger_id) for part in self.parts[:3])
        more = "" if len(self.parts) <= 3 else f" and {len(self.parts) - 3} more"
        return (
            f"{self.messages} messages of log {self.log!r} from seq {self.first_seq} on "
            f"(ledgers {ledgers}{more})"
        )


def options_of_range(wanted: LedgerRange, given: Mapping[str, Any]) -> ReaderOptions:
    """Of a reader that reads a range: it follows to the end that was planned."""
    if not isinstance(wanted, LedgerRange) or not wanted.parts:
        raise ConfigError(f"a range is what admin.plan_ranges gives, not {wanted!r}")
    if "follow" in given:
        raise ConfigError("a range has its end: it cannot be followed")
    return options_from(ReaderOptions, {**given, "follow": True})


class RangeCount:
    """Holds what is read of a range against what was planned. Whoever may jump over what was
    truncated is content with what is left, in order."""

    def __init__(self, wanted: LedgerRange, on_truncated: OnTruncated = "raise") -> None:
        self._range = wanted
        self._may_jump = on_truncated == "jump"
        self._next_seq = wanted.first_seq
        self._came = 0

    def take(self, batch: MessageBatch) -> None:
        """The next ones."""
        gap = batch.first_seq - self._next_seq
        if gap < 0 or (gap > 0 and not self._may_jump) or batch.last_seq >= self._range.next_seq:
            raise self._differs(
                f"messages {batch.first_seq} to {batch.last_seq} came where {self._next_seq} was "
                "to come",
                ledger_id=batch.ledger_id,
                entry_id=batch.entry_id,
            )
        self._next_seq = batch.last_seq + 1
        self._came += len(batch)

    def end(self) -> None:
        """No more come."""
        if self._came != self._range.messages and not self._may_jump:
            raise self._differs(f"{self._came} messages came")

    def _differs(self, found: str, **about: Any) -> Corrupt:
        return Corrupt(
            f"what was planned as {self._range} is not there: {found}", log=self._range.log, **about
        )
