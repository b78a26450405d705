"""The stage of the scenarios: the simulated world in fine weather, where each test makes its own
trouble. The oracle of the simulator watches all the while."""

from __future__ import annotations

import dataclasses
from typing import Any

from dlog.ids import MessageId
from dlog.ledger.store import ClosedLedger
from dlog.meta.log_meta import LogMeta, Segment
from dlog.reader.places import EARLIEST, Start
from tests.sim.history import settings
from tests.sim.ledgers import SimLedger, SimLedgers
from tests.sim.metadata import SimMeta
from tests.sim.oracle import LAYOUT, NAME, Oracle
from tests.sim.readers import SimReader
from tests.sim.world import Weather, new_world
from tests.sim.writers import SimWriter

__all__ = ["LAYOUT", "NAME", "Stage"]
TURN_MS = 500.0  # long enough for everything that can happen by itself


class Stage:
    def __init__(self, seed: int = 0, **weather: Any) -> None:
        fine = {field.name: field.default for field in dataclasses.fields(Weather)}
        self.world = new_world(seed, noted=True, **{**fine, **weather})
        self.meta = SimMeta(self.world)
        self.ledgers = SimLedgers(self.world)
        self.oracle = Oracle(self.world, self.meta, self.ledgers)

    # --- time

    def go_on(self, ms: float = TURN_MS) -> None:
        with settings(self.world):
            self.world.run(until_ms=self.world.now_ms + ms)

    def until(self, fact: Any) -> None:
        with settings(self.world):
            self.world.run(until_ms=self.world.now_ms + 60_000, done=fact)
        assert fact(), "it did not happen within a minute"

    # --- actors

    def writer(self, name: str, *, policy: str = "always") -> SimWriter:
        """Opening; `opened` waits for it."""
        writer = SimWriter(self.world, self.meta, self.ledgers, self.oracle, name)
        writer.open(policy=policy)
        return writer

    def opened(self, name: str, *, policy: str = "always") -> SimWriter:
        writer = self.writer(name, policy=policy)
        self.until(lambda: writer.handle is not None or writer.error is not None)
        assert writer.handle is not None, writer.error
        return writer

    def reader(self, name: str = "r", start: Start = EARLIEST, *, follow: bool = True) -> SimReader:
        reader = SimReader(self.world, self.meta, self.ledgers, self.oracle, name, follow=follow)
        reader.begin(start)
        return reader

    def read(self) -> list[bytes | None]:
        """All that a reader finds from the head on, in a log whose every segment is sealed."""
        reader = self.reader("full", follow=False)
        self.until(lambda: reader.ended)
        log = self.oracle.truth()
        assert reader.next_seq in (None, len(log))
        return [message.value for message in log]

    # --- what is so

    @property
    def log(self) -> LogMeta:
        assert self.oracle.now is not None
        return self.oracle.now

    def ledger(self, segment: Segment) -> SimLedger:
        return self.ledgers.ledgers[segment.ledger_id]

    def newest(self) -> SimLedger:
        return self.ledger(self.log.segments[-1])

    def close_by_a_stranger(self, ledger: SimLedger, last_entry: int | None = None) -> None:
        """A recovery that nobody of ours asked for."""
        ledger.fenced = True
        end = len(ledger.stored) - 1 if last_entry is None else last_entry
        self.ledgers.close_at(ledger, end)
        assert ledger.closed == ClosedLedger(end, sum(map(len, ledger.stored[: end + 1])))

    def acked(self, writer: SimWriter) -> list[MessageId]:
        assert writer.handle is not None
        return [sent.id for sent in writer.handle.sent if sent.id is not None]

    def outcomes(self, writer: SimWriter) -> list[str]:
        """Of each message: acked, unknown, not_happened or pending."""
        assert writer.handle is not None
        told = []
        for sent in writer.handle.sent:
            if sent.id is not None:
                told.append("acked")
            else:
                told.append("pending" if sent.error is None else sent.error.outcome.value)
        return told
