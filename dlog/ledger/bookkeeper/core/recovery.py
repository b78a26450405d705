"""Recovering a ledger, from the mark to the close, as a procedure.

    read ──► mark IN_RECOVERY ──► find the end at the bookies ──► close, or adopt who closed before

The metadata decides, by compare-and-set: the mark ends what its appender may change, and the first
close is the end of the ledger, whoever made it. So recoveries may run several at once, die anywhere
and run again: all come to one end. In between the bookies are asked about the ledger as the mark
left it. Should the last fragment turn out to be another one at the close (bookies were repaired
under us), what was written back may stand elsewhere than the metadata says: then once more.

The generator yields what it wants done and is sent the answer, or has the error thrown in; the
driver and the simulator perform the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from dlog.errors import NotFound
from dlog.ledger.bookkeeper.core.changes import closed_by_recovery, marked
from dlog.ledger.bookkeeper.core.tail_recovery import FoundEnd, digest_of
from dlog.ledger.store import ClosedLedger
from dlog.wire.ledger_metadata import LedgerMetadata, LedgerState

Change = Callable[[LedgerMetadata], LedgerMetadata | None]


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """→ `LedgerMetadata`. Any age will do, unless it has to be `fresh`."""

    fresh: bool


@dataclass(frozen=True, slots=True)
class ChangeLedger:
    """→ `LedgerMetadata`: what is stored after the change was made, beginning with what the last
    answer said, or found to be done. `point` is the crash point around it."""

    change: Change
    point: str


@dataclass(frozen=True, slots=True)
class FindEnd:
    """→ `FoundEnd`, by a `TailRecovery`."""

    metadata: LedgerMetadata


Step = ReadLedger | ChangeLedger | FindEnd
Recovery = Generator[Step, Any, ClosedLedger]


def recover(ledger_id: int) -> Recovery:
    metadata: LedgerMetadata
    try:
        metadata = yield ReadLedger(fresh=False)
    except NotFound:
        # Perhaps only the server that we asked had not heard of it yet.
        metadata = yield ReadLedger(fresh=True)
    while metadata.state is not LedgerState.CLOSED:
        digest_of(ledger_id, metadata)  # nothing is marked that we could not recover
        metadata = yield ChangeLedger(marked, "recovery.marked")
        if metadata.state is LedgerState.CLOSED:
            break
        found: FoundEnd = yield FindEnd(metadata)
        metadata = yield ChangeLedger(_closing(metadata, found), "recovery.closed")
    return ClosedLedger(metadata.last_entry_id, metadata.length_bytes)


def _closing(began: LedgerMetadata, found: FoundEnd) -> Change:
    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        is_same = metadata.fragments[-1] == began.fragments[-1]
        if metadata.state is LedgerState.IN_RECOVERY and not is_same:
            return None
        fragments = None
        if found.fragments is not None:
            fragments = (*metadata.fragments[:-1], *found.fragments)
        return closed_by_recovery(
            metadata, last_entry=found.last_entry, bytes=found.bytes, fragments=fragments
        )

    return change
