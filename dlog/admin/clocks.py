"""The time from which a collector counts the ages of messages and deleted ledgers, by two clocks.

A collector whose own clock is ahead would truncate messages that are seconds old, and delete
ledgers whose grace has just begun. So it uses its own clock or the metadata store's, whichever is
earlier. Where the store cannot tell the time, the age of a message is how much later the newest
sealed message of its log is. `Clocks.problems` says when this keeps messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from dlog.clock import Clock
from dlog.drive import Stores
from dlog.errors import DlogError, Unsupported
from dlog.meta.attended import unattended
from dlog.meta.log_meta import LogMeta
from dlog.meta.store import TellsTime

AGREE_US = 60_000_000  # a larger difference is reported


@dataclass(frozen=True, slots=True)
class Clocks:
    """This machine's clock, and how far it is ahead of the metadata store's."""

    own: Clock
    ahead_us: int = 0  # of the store's clock; 0 when this machine's is behind
    refusal: DlogError | None = None  # why the store did not tell its time

    def now_us(self) -> int:
        return self.own.wall_us() - self.ahead_us

    def newest_us(self, meta: LogMeta) -> int:
        """The time from which ages of messages are counted."""
        if self.refusal is None:
            return self.now_us()
        return min(self.now_us(), meta.end.last_time_us)

    def problems(self, meta: LogMeta) -> tuple[str, ...]:
        if self.ahead_us > AGREE_US:
            ahead = timedelta(seconds=self.ahead_us // 1_000_000)
            return (
                f"this machine's clock is {ahead} ahead of the metadata store's: ages were taken "
                "by the latter",
            )
        if self.refusal is not None and meta.options.retention_age_s is not None:
            return (
                "the metadata store does not tell the time, so retention by age keeps what the "
                f"newest sealed message does not outdate: {self.refusal}",
            )
        return ()


async def compare_clocks(stores: Stores, log: str) -> Clocks:
    store = unattended(stores.meta)
    if not isinstance(store, TellsTime):
        return Clocks(stores.clock, refusal=Unsupported("it has no clock", log=log))
    try:
        theirs_us = await store.wall_us(stores.layout.clock)
    except DlogError as error:
        return Clocks(stores.clock, refusal=error)
    return Clocks(stores.clock, max(0, stores.clock.wall_us() - theirs_us))
