"""What a ledger store can tell of its copies, beyond the contract: for those who look after a log.

The contract speaks of a ledger as one thing, and a read is right if any copy is. Whoever wants to
know whether *every* copy is right needs a store that keeps several and has `KeepsCopies`; one that
keeps files beside its metadata has `FindsStrays`. Both are optional, and who has neither is not
asked. Looking never changes anything. A copy that was not to be had is never called good: it comes
back as not checked, with the reason.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dlog.ledger.store import LedgerState


class Fault(enum.StrEnum):
    MISSING = "missing"  # the bookie says that it has no such entry
    DAMAGED = "damaged"  # what it gives was not written so, or it cannot read it
    DIFFERS = "differs"  # whole by its digest, and not what another copy says
    NOT_CHECKED = "not_checked"  # no answer: it says nothing about the copy


@dataclass(frozen=True, slots=True)
class CopyFault:
    """Of one keeper's copies of these entries. `can_be_mended`: another copy proves what belongs
    there."""

    keeper: str
    first_entry: int
    last_entry: int
    fault: Fault
    told: str
    can_be_mended: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """No copy that was looked at is good. `is_certain`: and all were looked at."""

    first_entry: int
    last_entry: int
    is_certain: bool


@dataclass(frozen=True, slots=True)
class Looked:
    """So much was compared, for who wants to know how far it is."""

    copies: int
    bytes: int  # payloads of one copy of each entry; what a closed ledger says of its size


CopyNews = CopyFault | Lost | Looked


@dataclass(frozen=True, slots=True)
class KeptAt:
    """Entries that the same keepers hold; `away` are those of them that nobody can reach now."""

    first_entry: int
    last_entry: int  # -1: nothing is known to stand there
    keepers: tuple[str, ...]
    away: tuple[str, ...]

    @property
    def copies_left(self) -> int:
        return len(self.keepers) - len(self.away)


@dataclass(frozen=True, slots=True)
class LedgerCopies:
    ledger_id: int
    state: LedgerState
    ack_quorum: int
    kept: tuple[KeptAt, ...]


@runtime_checkable
class KeepsCopies(Protocol):
    """Of a ledger store that keeps each entry several times."""

    async def copies_of(self, ledger_id: int) -> LedgerCopies:
        """By what metadata says now; no keeper is asked. `NotFound`."""
        ...

    def check_copies(
        self, ledger_id: int, *, digest: str, last_entry: int
    ) -> AsyncIterator[CopyNews]:
        """Every copy of every entry up to `last_entry`, which must be readable, each read from its
        keeper alone. Needs memory for a few entries, whatever there is to read."""
        ...

    async def mend_copy(
        self, ledger_id: int, keeper: str, first_entry: int, last_entry: int, *, digest: str
    ) -> int:
        """Write these copies again as a good one has them, and read them back; how many. Copies
        that are good stay as they are. `Corrupt` if no good one is left or two good ones differ;
        `Unavailable`."""
        ...

    async def move_copies(
        self, ledger_id: int, first_entry: int, lost: str, *, digest: str
    ) -> str | None:
        """Of the entries of a closed ledger that are kept together from `first_entry` on: copy them
        from the keepers that are left to another one, which then stands in metadata in the place of
        `lost`. Who that is; None if `lost` is none of their keepers any more."""
        ...

    async def amend_end(self, ledger_id: int, last_entry: int, bytes: int, *, digest: str) -> bool:
        """The metadata of a closed ledger names another end than it had: this one, if the entry at
        it says so itself by the size of the ledger up to it. False: it does name it. `Corrupt` if
        the entry says anything else."""
        ...


@dataclass(frozen=True, slots=True)
class Stray:
    """A file that no ledger of the store has."""

    path: str
    bytes: int


@runtime_checkable
class ServesOneRoot(Protocol):
    """Of a ledger store that lives and dies with one metadata store: a ledger of ours whose log is
    not known there has lost it. On a cluster another root may have the log."""

    serves_one_root: bool


@runtime_checkable
class FindsStrays(Protocol):
    """Of a ledger store that keeps files beside its metadata."""

    async def strays(self) -> Sequence[Stray]: ...
