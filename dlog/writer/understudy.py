"""What an engine asks of whoever stood by, when it opens a log with what that one kept ready."""

from __future__ import annotations

from typing import Protocol

from dlog.ledger.store import Appender, AppenderListener
from dlog.writer.takeover import StoodBy


class Understudy(Protocol):
    @property
    def ledger_id(self) -> int | None:
        """Of the ledger that is ready, or was given."""
        ...

    def brings(self) -> StoodBy: ...

    def give_to(self, engine: AppenderListener) -> Appender:
        """The appender of that ledger, which was listed; `engine` hears of it from now on."""
        ...
