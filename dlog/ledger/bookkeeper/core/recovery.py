"""Recovering a ledger, from the mark to the close, as a procedure.

    read ──► mark IN_RECOVERY ──► find the end at the bookies ──► close, or adopt who closed before
                (fence ahead)

The metadata decides, by compare-and-set: the mark ends what its appender may change, and the first
close is the end of the ledger, whoever made it. So recoveries may run several at once, die anywhere
and run again: all come to one end. In between the bookies are asked about the ledger as the mark
left it. Should the last fragment turn out to be another one at the close (bookies were repaired
under us), what was written back may stand elsewhere than the metadata says: then once more.

The generator yields what it wants done and is sent the answer, or has the error thrown in; the
driver and the simulator perform the same one.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from dlog.errors import AuthError, NotFound
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
class FenceAhead:
    """→ nothing, at once. Fences whoever answers while metadata is being marked. It counts for
    nothing: the fence behind the mark does, at the bookies that are named then. But a bookie that
    has journaled a fence answers the next one at once, and the mark takes about as long."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class FindEnd:
    """→ `FoundEnd`, by a `TailRecovery`."""

    metadata: LedgerMetadata


Step = ReadLedger | FenceAhead | ChangeLedger | FindEnd
Recovery = Generator[Step, Any, ClosedLedger]


def recover(ledger_id: int) -> Recovery:
    metadata: LedgerMetadata
    try:
        metadata = yield ReadLedger(fresh=False)
    except NotFound:
        # Perhaps only the server that we asked had not heard of it yet.
        metadata = yield ReadLedger(fresh=True)
    began = metadata
    while metadata.state is not LedgerState.CLOSED:
        digest_of(ledger_id, metadata)  # nothing is marked that we could not recover
        if metadata.state is LedgerState.OPEN:
            yield FenceAhead(metadata)
        metadata = yield ChangeLedger(_of_the_same(ledger_id, began, marked), "recovery.marked")
        if metadata.state is LedgerState.CLOSED:
            break
        found: FoundEnd = yield FindEnd(metadata)
        closing = _of_the_same(ledger_id, began, _closing(metadata, found))
        metadata = yield ChangeLedger(closing, "recovery.closed")
    return ClosedLedger(metadata.last_entry_id, metadata.length_bytes)


def _of_the_same(ledger_id: int, began: LedgerMetadata, change: Change) -> Change:
    """Whoever asked for the recovery looked at digest and password as they stood when it began.
    They never change by themselves, and one that somebody changed since is not followed."""

    def checked(metadata: LedgerMetadata) -> LedgerMetadata | None:
        is_same = hmac.compare_digest(metadata.password or b"", began.password or b"")
        if not is_same or metadata.digest_type is not began.digest_type:
            raise AuthError(
                f"somebody changed the digest or the password of ledger {ledger_id} while it was "
                "recovered",
                ledger_id=ledger_id,
            )
        return change(metadata)

    return checked


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
