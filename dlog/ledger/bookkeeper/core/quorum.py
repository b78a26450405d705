"""Who holds which entry, and how many answers prove what. E, W, A: ensemble, write and ack quorum.

An entry is written to W bookies of E and acknowledged by A of them. A *write set* is the W bookies
of one entry; in our own logs E = W and there is only one. Two counts follow, and everything that
is decided about a ledger rests on them:

- an entry certainly was never acknowledged once W - A + 1 bookies of its write set say they have
  none: `missing_needed`;
- a ledger's writer can acknowledge no more once in every write set fewer than A bookies are left
  that were not reached: `is_covered`.
"""

from __future__ import annotations

from collections.abc import Set

from dlog.wire.ledger_metadata import LedgerMetadata


def write_set(metadata: LedgerMetadata, entry_id: int) -> tuple[int, ...]:
    """The places in the ensemble that hold the entry, the first one first."""
    size = metadata.ensemble_size
    first = entry_id % size
    return tuple((first + turn) % size for turn in range(metadata.write_quorum))


def missing_needed(metadata: LedgerMetadata) -> int:
    """This many explicit "I have none" of an entry's write set prove that it was never
    acknowledged."""
    return metadata.write_quorum - metadata.ack_quorum + 1


def is_covered(metadata: LedgerMetadata, known: Set[int]) -> bool:
    """Whether the places in `known`, which answered, leave no write set in which A others could
    still acknowledge an entry."""
    size = metadata.ensemble_size
    return all(
        sum((first + turn) % size not in known for turn in range(metadata.write_quorum))
        < metadata.ack_quorum
        for first in range(size)
    )
