"""Logs over simulated bookies: the BookKeeper client's cores below the log's, and both oracles on.

`LogBookies` is to the log world what `abstract_ledgers` is: each client's way to ledgers, and the
truth about them, which here is what bookies and ledger metadata say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dlog.errors import DlogError
from dlog.ledger.bookkeeper.info import info_of
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.ledger.store import Buffer, ClosedLedger, LedgerInfo, LedgerSpec
from dlog.options import LogOptions
from dlog.testing.sim.appending import SimAppender
from dlog.testing.sim.clients import Scene, SimClient
from dlog.testing.sim.flow import Flow, run
from dlog.testing.sim.ledger_client import BookieLedgers
from dlog.testing.sim.ledger_nodes import SimLedgerNodes
from dlog.testing.sim.ledger_oracle import LedgerOracle
from dlog.testing.sim.ledger_swarm import ClusterSwarm, draw_cluster
from dlog.testing.sim.log_oracle import LogOracle
from dlog.testing.sim.log_swarm import LogWeather
from dlog.testing.sim.metadata import Answered, SimMeta
from dlog.testing.sim.process import Process
from dlog.testing.sim.reading import SimReader
from dlog.testing.sim.world import World
from dlog.wire.ledger_metadata import LedgerState

TROUBLE_MIN_MS, TROUBLE_MS = 2.0, 30.0
PACE = 1.0


class BothOracles(LedgerOracle):
    """Of ledgers, telling the one of logs what that must know."""

    above: Any = None

    def on_submit(self, ledger_id: int, entry_id: int, payload: bytes) -> None:
        super().on_submit(ledger_id, entry_id, payload)
        self.above.on_submit(ledger_id, entry_id)

    def on_deleted(self, ledger_id: int) -> None:
        super().on_deleted(ledger_id)
        self.above.on_delete(ledger_id)

    def check_end(self, nodes: SimLedgerNodes) -> None:
        """What was closed is still where metadata says."""
        for ledger_id in nodes.ids():
            metadata = nodes.truth(ledger_id)
            if metadata is not None and metadata.state is LedgerState.CLOSED:
                self._check_stands(ledger_id, metadata)


class LogBookies:
    def __init__(self, world: World, cluster: ClusterSwarm, meta: SimMeta) -> None:
        self.world = world
        self.meta = meta
        self.bookies = cluster.bookies(world)
        self.nodes = SimLedgerNodes(world, cluster.nodes)
        self.oracle = BothOracles(world, self.bookies, self.nodes)
        self.ledgers = BookieLedgers(
            world,
            self.bookies,
            self.nodes,
            audit=self.oracle,
            options=cluster.options(),
            policy_errs=cluster.policy_errs,
            fences_ahead=cluster.fences_ahead,
            cuts=cluster.cuts,
        )
        self._clients: list[BookieClientLedgers] = []
        self._strangers = 0
        self.strangers_show = 0.0  # so often a stranger writes back as the stock client does
        manners = cluster.manners
        self.damages_entries = max(manners.broken, manners.wrong) > 0  # on their way to readers
        world.after(TROUBLE_MIN_MS, self._trouble)

    @property
    def has_forgotten(self) -> bool:
        """A bookie lost its disks: until somebody's birth was confirmed elsewhere, its refusals
        sound like those of one who knows another password."""
        return bool(self.bookies.wiped)

    @property
    def audit(self) -> Any:
        return self.oracle.above

    @audit.setter
    def audit(self, above: Any) -> None:
        self.oracle.above = above
        self.oracle.after_close = above.on_close

    def of(self, client: SimClient) -> BookieClientLedgers:
        found = BookieClientLedgers(self, client)
        self._clients.append(found)
        return found

    # --- what befalls bookies

    def _trouble(self) -> None:
        if not self.world.is_calm:
            self._clients = [each for each in self._clients if each.is_alive]
            self.bookies.trouble(self._clients, self.nodes.last_id)
            self.world.after(TROUBLE_MIN_MS + self.world.chance.delay(TROUBLE_MS), self._trouble)

    def heal(self) -> None:
        self.bookies.heal()
        self.nodes.heal()

    def recover_by_a_stranger(self) -> None:
        """By a process of its own, which may die before it is done."""
        known = self.nodes.ids()[-4:]
        if not known:
            return
        chance = self.world.chance
        ledger_id = chance.pick(known[::-1], "the ledger a stranger recovers")
        self._strangers += 1
        stranger = Process(self.world, f"stranger{self._strangers}")
        self.world.note(f"{stranger.name} recovers ledger {ledger_id}")
        self.world.mark("foreign recovery")
        if self.world.strikes(self.strangers_show, "a stranger's write-back shows"):
            self.ledgers.of(stranger).around.rising_lacs = self.oracle.rising_lacs = True
        if chance.hits(0.3, f"{stranger.name} dies"):
            self.world.after(chance.delay(5.0), lambda: self._end(stranger))
        self.ledgers.recover(stranger, ledger_id, lambda closed, error: self._end(stranger))

    def _end(self, stranger: Process) -> None:
        stranger.crash()
        self.ledgers.drop(stranger)

    # --- the truth

    def closed_end(self, ledger_id: int) -> ClosedLedger | None:
        return self.oracle.truth(ledger_id).end

    def is_gone(self, ledger_id: int) -> bool:
        return self.nodes.truth(ledger_id) is None

    def is_durable(self, ledger_id: int, entry_id: int) -> bool:
        """Confirmed: at that moment, the bookies that metadata named had it on their disks."""
        truth = self.oracle.truth(ledger_id)
        return entry_id <= (truth.confirmed if truth.end is None else truth.end.last_entry)

    def is_readable(self, ledger_id: int, entry_id: int) -> bool:
        truth = self.oracle.truth(ledger_id)
        return entry_id <= (truth.published if truth.end is None else truth.end.last_entry)

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """As it was appended; that its bookies have these bytes is the other oracle's."""
        payloads = self.oracle.truth(ledger_id).payloads
        return payloads[entry_id] if entry_id < len(payloads) else None

    def check_end(self) -> None:
        self.oracle.check_end(self.nodes)


class BookieClientLedgers:
    """One client's way to them: what `clients.ClientLedgers` asks for. To the client of bookies it
    is the process it runs in."""

    def __init__(self, store: LogBookies, client: SimClient) -> None:
        self.name = client.name
        self.receive = client.receive
        self.after = client.after
        self.may_be_hit = client.may_be_hit
        self.appenders: dict[int, SimAppender] = {}
        self.meta = self  # whoever waits for a ledger may wait for a node of the log as well
        self._store = store
        self._ledgers = store.ledgers
        self._client = client

    def __repr__(self) -> str:
        return self.name

    @property
    def is_alive(self) -> bool:
        return self._client.alive

    def watch(self, path: str, wake: Callable[[], None]) -> None:
        client, world = self._client, self._store.world

        def tell() -> None:
            world.after(world.chance.delay(client.meta_ms), lambda: client.receive(wake))

        self._store.meta.watch(path, tell)

    # --- appenders

    def create(self, spec: LedgerSpec, answer: Answered) -> None:
        def created(appender: SimAppender | None, error: DlogError | None) -> None:
            if appender is None:
                answer(None, error)
            else:
                self.appenders[appender.ledger_id] = appender
                answer(appender.ledger_id, None)

        run(self._ledgers.of(self).create(spec), self._heard(created))

    def birth(self, ledger_id: int, buffers: Sequence[Buffer], answer: Answered) -> None:
        self.appenders[ledger_id].birth(buffers, answer)

    def listen(self, ledger_id: int, listener: Any) -> None:
        self.appenders[ledger_id].listener = listener

    def submit(self, ledger_id: int, buffers: Sequence[Buffer]) -> int:
        return self.appenders[ledger_id].submit(buffers)

    def publish(self, ledger_id: int) -> None:
        self.appenders[ledger_id].publish()

    def publish_is_free(self, ledger_id: int) -> bool:
        return self.appenders[ledger_id].publish_is_free

    def close(self, ledger_id: int, answer: Answered) -> None:
        self.appenders[ledger_id].close(answer)

    def let_go(self, ledger_id: int) -> None:
        appender = self.appenders.pop(ledger_id, None)
        if appender is not None:
            appender.abandon()

    def held(self) -> list[int]:
        return list(self.appenders)

    def drop(self) -> None:
        """The process died."""
        self._ledgers.drop(self)

    # --- the rest

    def _heard(self, answer: Answered) -> Answered:
        """The end of a process is told to nobody in it."""
        receive = self._client.receive
        return lambda value, error: receive(lambda: answer(value, error))

    def recover(self, ledger_id: int, answer: Answered) -> None:
        self._ledgers.recover(self, ledger_id, self._heard(answer))

    def delete(self, ledger_id: int, answer: Answered) -> None:
        self._ledgers.delete(self, ledger_id, self._heard(answer))

    def info(self, ledger_id: int, answer: Answered) -> None:
        """Of the reader that is kept, which knows better from then on."""

        def flow() -> Flow[LedgerInfo]:
            reader = yield from self._ledgers.of(self).reader(ledger_id)
            return info_of((yield reader.info))

        run(flow(), self._heard(answer))

    def last_readable(self, ledger_id: int, answer: Answered) -> None:
        self._ledgers.last_readable(self, ledger_id, self._heard(answer))

    def read_run(self, ledger_id: int, first: int, last: int, answer: Answered) -> None:
        self._ledgers.read_run(self, ledger_id, first, last, self._heard(answer))

    def read_entries(self, ledger_id: int, entries: tuple[int, ...], answer: Answered) -> None:
        """As the driver does: by a reader of its own, that sees metadata as it is now."""
        around = self._ledgers.of(self).around

        def flow() -> Flow[list[bytes]]:
            stored: StoredLedger = yield lambda told: around.nodes.read(
                self, ledger_id, told, fresh=True
            )
            reader = SimReader(around, stored)
            try:
                found: list[bytes] = []
                for entry_id in entries:
                    found += yield partial(reader.read, entry_id, entry_id)
                return found
            finally:
                reader.close()

        run(flow(), self._heard(answer))

    def wait_past(
        self, ledger_id: int, last_entry: int, timeout_ms: float, path: str | None, answer: Answered
    ) -> None:
        self._ledgers.wait_past(self, ledger_id, last_entry, timeout_ms, path, self._heard(answer))


def bookie_scene(world: World, weather: LogWeather) -> Scene:
    cluster = draw_cluster(world.chance)
    # A client's loop over ledger metadata ends by the clock, and looks again after any conflict.
    cluster.nodes.tries_max = max(2, cluster.nodes.tries_max)
    meta = SimMeta(world, weather.meta)
    ledgers = LogBookies(world, cluster, meta)
    ledgers.strangers_show = weather.ledgers.strangers_show
    ensemble, write_quorum, ack_quorum = cluster.quorums
    quorum = LogOptions(
        ensemble=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        unsafe_single_copy=ack_quorum == 1,
    )
    oracle = LogOracle(world, meta, ledgers)
    return Scene(world, weather, meta, ledgers, oracle, quorum, pace=PACE)
