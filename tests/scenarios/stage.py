"""The stage of the scenarios: the simulated world in fine weather, where each test makes its own
trouble. The oracle of the simulator watches all the while."""

from __future__ import annotations

from typing import Any

from dlog.ids import MessageId
from dlog.ledger.store import ClosedLedger
from dlog.meta.listed import Segment
from dlog.meta.log_meta import LogMeta
from dlog.options import TailMode
from dlog.reader.places import EARLIEST, Start
from dlog.testing.sim.abstract_ledgers import AbstractLedger, AbstractLedgers
from dlog.testing.sim.log_life import DAY_US, SimCollector, SimTruncator
from dlog.testing.sim.log_oracle import LAYOUT, NAME
from dlog.testing.sim.log_readers import SimReader
from dlog.testing.sim.log_swarm import LogWeather
from dlog.testing.sim.log_world import abstract_scene, settings
from dlog.testing.sim.log_writers import SimWriter
from dlog.testing.sim.tape import of_seed
from dlog.testing.sim.world import World
from dlog.writer.rotation import Ending

__all__ = ["LAYOUT", "NAME", "Stage"]
TURN_MS = 500.0  # long enough for everything that can happen by itself


class Stage:
    def __init__(self, seed: int = 0, **weather: Any) -> None:
        self.weather = LogWeather().fixed(**weather)
        self.world = World(of_seed(seed), told=True)
        self.scene = abstract_scene(self.world, self.weather)
        self.meta = self.scene.meta
        self.ledgers: AbstractLedgers = self.scene.ledgers
        self.oracle = self.scene.oracle

    # --- time

    def go_on(self, ms: float = TURN_MS) -> None:
        with settings(self.world, self.weather):
            self.world.run(until_ms=self.world.now_ms + ms)

    def until(self, fact: Any) -> None:
        with settings(self.world, self.weather):
            self.world.run(until_ms=self.world.now_ms + 60_000, done=fact)
        assert fact(), "it did not happen within a minute"

    # --- actors

    def writer(self, name: str, *, policy: str = "always") -> SimWriter:
        """Opening; `opened` waits for it."""
        writer = SimWriter(self.scene, name)
        writer.open(policy=policy)
        return writer

    def opened(self, name: str, *, policy: str = "always") -> SimWriter:
        writer = self.writer(name, policy=policy)
        self.until(lambda: writer.handle is not None or writer.error is not None)
        assert writer.handle is not None, writer.error
        return writer

    def reader(
        self,
        name: str = "r",
        start: Start = EARLIEST,
        *,
        follow: bool = True,
        tail: TailMode = "normal",
    ) -> SimReader:
        reader = SimReader(self.scene, name, follow=follow, tail=tail)
        reader.begin(start)
        return reader

    def truncate(self, before: Start, *, force: bool = False) -> SimTruncator:
        truncator = SimTruncator(self.scene, "t", force=force)
        truncator.truncate(before)
        return truncator

    def collect(self) -> None:
        """Behind every grace."""
        collector = SimCollector(self.scene, "c", ahead_us=DAY_US)
        collector.collect()
        self.until(lambda: collector.is_done)

    def terminate(self, writer: SimWriter) -> None:
        writer.close(Ending.TERMINATE)

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

    def ledger(self, segment: Segment) -> AbstractLedger:
        return self.ledgers.ledgers[segment.ledger_id]

    def newest(self) -> AbstractLedger:
        return self.ledger(self.log.segments[-1])

    def show_by_a_stranger(self, ledger: AbstractLedger) -> None:
        """A recovery that is under way: what it writes back carries a LAC that rises."""
        self.ledgers.fence(ledger)
        ledger.published = len(ledger.stored) - 1
        self.ledgers.wake(ledger.id)

    def close_by_a_stranger(self, ledger: AbstractLedger, last_entry: int | None = None) -> None:
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
