"""The effects that only a writer has, and what is told when its seal takes too long."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from dlog.drive import Driver, Stores
from dlog.effects import Drained, Effect, Release, SubmitEntry
from dlog.errors import DlogError, Outcome, Timeout
from dlog.limits import SEAL_TIMEOUT_S

if TYPE_CHECKING:
    from dlog.writer.engine import Engine

_log = logging.getLogger("dlog.writer")


class WriterDriver(Driver):
    def __init__(self, engine: Engine, stores: Stores) -> None:
        clock, metrics = stores.clock, stores.metrics
        super().__init__(stores.meta, stores.ledgers, engine, clock=clock, metrics=metrics)
        self._engine = engine

    async def perform(self, effect: Effect) -> Any:
        match effect:
            case SubmitEntry(ledger_id=ledger_id, buffers=buffers):
                self._engine.submit_entry(ledger_id, buffers)
            case Release():
                self._engine.after_fact()
            case Drained(ledger_id=ledger_id):
                await self._engine._progress.until(lambda: self._engine.core.drained(ledger_id))
            case _:
                return await super().perform(effect)


def not_sealed(log: str, in_the_way: DlogError | None) -> Timeout:
    """All is acknowledged; the list may not say where the log ends."""
    because = "" if in_the_way is None else f": {in_the_way}"
    error = Timeout(
        f"all messages of log {log!r} are acknowledged, and it could not be sealed within "
        f"{SEAL_TIMEOUT_S:g} s; the next writer recovers its end{because}",
        outcome=Outcome.UNKNOWN,
        log=log,
        elapsed_ms=SEAL_TIMEOUT_S * 1000,
    )
    error.__cause__ = in_the_way
    return error


def warn_of_no_seal(log: str, failure: DlogError) -> None:
    _log.warning("log %s: closed, but not sealed in the list: %s", log, failure)
