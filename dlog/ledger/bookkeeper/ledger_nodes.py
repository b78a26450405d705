"""Ledger metadata in the metadata store, laid out as stock BookKeeper has it: Java reads and
changes the same nodes. Ids, paths and bytes are the business of `dlog.wire`; here they meet a
MetaStore.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from dlog.meta.store import Watch
from dlog.wire.ledger_metadata import LedgerMetadata

# A change of `core.changes`: None when there is nothing (left) to do; may raise.
Change = Callable[[LedgerMetadata], LedgerMetadata | None]


@dataclass(frozen=True, slots=True)
class StoredLedger:
    ledger_id: int
    metadata: LedgerMetadata
    version: int


class Nodes(Protocol):
    async def create(self, metadata: LedgerMetadata) -> StoredLedger:
        """Under a new id, above every earlier one's. A lost reply is resolved by the creator
        token."""
        ...

    async def read(self, ledger_id: int) -> StoredLedger:
        """`NotFound`. May be stale."""
        ...

    async def read_fresh(self, ledger_id: int) -> StoredLedger:
        """After a `sync`: not older than the call."""
        ...

    async def change(self, known: StoredLedger, change: Change) -> StoredLedger:
        """Apply the change by compare-and-set, beginning with what is known; on conflict or an
        unknown reply re-read and ask the change again, until it is stored or says that there is
        nothing to do. What is stored then."""
        ...

    async def delete(self, ledger_id: int) -> None:
        """For good, in any state; the empty nodes above it, too. Of a missing ledger: nothing."""
        ...

    def scan_ids(self) -> AsyncIterator[int]: ...

    def watch(self, ledger_id: int) -> Watch: ...
