"""One ledger in fine weather on simulated bookies, where a story makes its own trouble.

The oracle watches all the while: whatever is confirmed is on enough bookies that metadata names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlog.errors import DlogError, Fenced
from dlog.ledger.bookkeeper.core.appender import AppenderCore
from dlog.ledger.store import LedgerSpec
from dlog.testing.sim.appending import SimAppender
from dlog.testing.sim.bookie import Entry
from dlog.testing.sim.flow import run
from dlog.testing.sim.ledger_client import BookieLedgers
from dlog.testing.sim.ledger_nodes import SimLedgerNodes
from dlog.testing.sim.ledger_oracle import LedgerOracle
from dlog.testing.sim.ledger_swarm import ClusterSwarm, draw_cluster
from dlog.testing.sim.process import Process
from dlog.testing.sim.server import Server
from dlog.testing.sim.tape import of_seed, of_tape
from dlog.testing.sim.world import World
from dlog.wire.ledger_metadata import LedgerMetadata

PATIENCE_MS = 60_000.0


class Recoverer:
    """Somebody else, in a process of his own."""

    def __init__(self, ledgers: BookieLedgers, process: Process, ledger_id: int) -> None:
        self.is_done = False
        self.error: DlogError | None = None
        run(ledgers.of(process).recover(ledger_id), self._over)

    def _over(self, closed: Any, error: DlogError | None) -> None:
        self.is_done, self.error = True, error


class Scene:
    """A ledger with an appender; three bookies are its ensemble."""

    def __init__(
        self,
        *,
        spares: int = 2,
        birth: bool = False,
        publishes: bool = False,
        travel_ms: float = 0.2,
        busy: float = 0.0,
        window_entries: int = 2_000,
    ) -> None:
        self.world = World(of_seed(1), told=True)
        cluster: ClusterSwarm = draw_cluster(of_tape(()))
        cluster.spares, cluster.window_entries = spares, window_entries
        cluster.roads.travel_ms, cluster.manners.busy = travel_ms, busy
        self.bookies = cluster.bookies(self.world)
        self.nodes = SimLedgerNodes(self.world, cluster.nodes)
        self.oracle = LedgerOracle(self.world, self.bookies, self.nodes)
        self.oracle.births = birth
        self.ledgers = BookieLedgers(
            self.world, self.bookies, self.nodes, audit=self.oracle, options=cluster.options()
        )
        self.process = Process(self.world, "writer")
        self.appender = self._create()
        self.appender.listener = self
        self.core: AppenderCore = self.appender.core
        self._publishes = publishes
        self._recoverers = 0
        self.until(lambda: all(slot.counts for slot in self.core.slots))
        if birth:
            self.appender.birth((b"birth",), lambda value, error: None)
            self.until(lambda: self.core.is_born)

    def _create(self) -> SimAppender:
        made: list[SimAppender] = []
        run(
            self.ledgers.of(self.process).create(LedgerSpec()),
            lambda appender, error: made.append(appender),
        )
        self.world.run(until_ms=100.0, done=lambda: bool(made))
        return made[0]

    # --- what its listener hears

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        if self._publishes:
            self.appender.publish()

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        pass

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        pass

    # --- what it is like

    @property
    def ledger_id(self) -> int:
        return self.appender.ledger_id

    @property
    def confirmed(self) -> int:
        return self.core.last_confirmed

    @property
    def metadata(self) -> LedgerMetadata:
        found = self.nodes.truth(self.ledger_id)
        assert found is not None
        return found

    @property
    def ensemble(self) -> tuple[str, ...]:
        return self.metadata.fragments[-1].ensemble

    def named(self, place: int) -> Server:
        return self.bookies.servers[self.ensemble[place]]

    def entries(self, server: Server) -> dict[int, Entry]:
        bookie = server.bookie
        held = (bookie.ledgers if bookie.is_up else bookie.durable).get(self.ledger_id)
        return {} if held is None else held.entries

    def is_fenced(self, server: Server) -> bool:
        held = server.bookie.durable.get(self.ledger_id)
        return held is not None and held.fence is not None

    # --- what happens

    def put(self, count: int) -> None:
        for number in range(count):
            self.appender.submit((b"x" * (number % 7),))

    def go_on(self, ms: float) -> None:
        self.world.run(until_ms=self.world.now_ms + ms)

    def until(self, fact: Callable[[], bool]) -> None:
        self.world.run(until_ms=self.world.now_ms + PATIENCE_MS, done=fact)
        assert fact(), "it did not happen within a minute"

    def all_is_confirmed(self) -> None:
        self.until(lambda: self.confirmed == self.core.outbox.end - 1)
        self.until(lambda: not self.core.is_busy)
        assert not self.core.degraded
        self.appender.check_slots(
            self.metadata,
            lambda bookie_id, entry_id: (
                self.bookies[bookie_id].holds_for_good(self.ledger_id, entry_id) is not None
            ),
        )

    def slow_metadata(self, travel_ms: float) -> None:
        self.nodes.manners.travel_ms = travel_ms

    def kill(self, server: Server, *, again_after_ms: float | None = None) -> None:
        server.kill()
        if again_after_ms is not None:
            self.world.after(again_after_ms, server.start)

    def recover(self) -> Recoverer:
        self._recoverers += 1
        process = Process(self.world, f"recoverer {self._recoverers}")
        return Recoverer(self.ledgers, process, self.ledger_id)

    def recovered(self) -> None:
        recoverer = self.recover()
        self.until(lambda: recoverer.is_done)

    def fenced(self) -> None:
        self.until(lambda: self.core.failure is not None)
        assert isinstance(self.core.failure, Fenced)
