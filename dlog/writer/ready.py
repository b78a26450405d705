"""A ledger that was made before it is needed: what a standby brings along to a takeover.

    NONE ──made──► READY ──taken by a takeover──► TAKEN ──listing sent──► OFFERED ──listed──► GIVEN
     ▲               ▲ └─let go─► NONE              │                      │  │
     │               └────────put back──────────────┴──refused for certain─┘  │
     └──────────────────────────────nobody knows: never deleted, never used───┘

A given ledger is the writer's, also if that is lost before it opened: who stands by again makes
another one.

It may be listed only if its id exceeds every id that the log ever listed, and only in the log that
its birth names. From the moment a takeover takes it until its listing is known to have been refused
(or not to have been sent) it is neither used again nor deleted: the list may name it.
"""

from __future__ import annotations

import enum

from dlog.errors import check
from dlog.meta.log_meta import LogMeta


class ReadyState(enum.Enum):
    NONE = "none"
    READY = "ready"
    TAKEN = "taken"
    OFFERED = "offered"
    GIVEN = "given"


class ReadyLedger:
    def __init__(self) -> None:
        self.state = ReadyState.NONE
        self.ledger_id: int | None = None
        self._uid = ""  # of the log that its birth names

    def made(self, ledger_id: int, meta: LogMeta) -> None:
        check(self.state is ReadyState.NONE, "a standby holds one ledger", self.ledger_id)
        self.state, self.ledger_id, self._uid = ReadyState.READY, ledger_id, meta.uid

    def fits(self, meta: LogMeta) -> bool:
        """May this log list it?"""
        return (
            self.state is ReadyState.READY
            and self.ledger_id is not None
            and self.ledger_id > meta.ledger_floor
            and self._uid == meta.uid
        )

    def take(self, meta: LogMeta) -> int | None:
        """For a takeover of this log, which will list it; None if that may not be."""
        if not self.fits(meta):
            return None
        self.state = ReadyState.TAKEN
        return self.ledger_id

    def put_back(self) -> None:
        """That takeover is over. What it did not offer is as good as before."""
        if self.state is ReadyState.TAKEN:
            self.state = ReadyState.READY

    def offered(self) -> None:
        check(self.state is ReadyState.TAKEN, "a ledger is offered once", self.state)
        self.state = ReadyState.OFFERED

    def refused(self) -> None:
        """For certain: it was never listed, and may be offered again."""
        check(self.state is ReadyState.OFFERED, "what was offered is refused", self.state)
        self.state = ReadyState.READY

    def given(self) -> None:
        self.state = ReadyState.GIVEN

    def let_go(self) -> int | None:
        """The ledger that may be deleted, if there is one; it is held no more."""
        gone = self.ledger_id if self.state is ReadyState.READY else None
        self.state, self.ledger_id = ReadyState.NONE, None
        return gone
