"""What a recovery asks of the connections, as values. Bookies are named by id; all reads fence."""

from __future__ import annotations

from typing import NamedTuple

from dlog.wire.bookie_v2 import LAST_ENTRY


class Ask(NamedTuple):
    """Read from `first_entry` on. Without `is_batch` it is that entry alone; `LAST_ENTRY` asks for
    whatever the bookie holds last, and so for the LAC."""

    bookie_id: str
    first_entry: int
    count_max: int = 1
    is_batch: bool = False

    @property
    def is_fence(self) -> bool:
        return self.first_entry == LAST_ENTRY


class Add(NamedTuple):
    """Recovery adds, whole frames back to back, on a connection that hears for the ledger."""

    bookie_id: str
    frames: bytes
    entries: int


class Settle(NamedTuple):
    """So much of what was sent is answered."""

    bookie_id: str
    entries: int
    bytes: int


class LetGo(NamedTuple):
    """Nothing more is sent to this bookie, and what it says of adds is not heard."""

    bookie_id: str


Request = Ask | Add | Settle | LetGo
