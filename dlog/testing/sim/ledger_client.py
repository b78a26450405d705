"""Ledgers on simulated bookies, as clients of a history see them: what
`dlog.ledger.bookkeeper.store` puts together, with callbacks.

`BookieLedgers` is the cluster with all its clients, and the face that the log world calls: every
method takes the client first and `answer(value, error)` last. `ClientLedgers` is one client's side:
its links, its appenders and readers, the recoveries it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from dlog.errors import DlogError, NotFound, Unavailable
from dlog.ledger.bookkeeper.core.append_effects import AppendOptions
from dlog.ledger.bookkeeper.info import end_of, info_of, new_metadata
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.ledger.store import LedgerSpec
from dlog.testing.sim.appending import SimAppender
from dlog.testing.sim.bookies import SimBookies
from dlog.testing.sim.byte_links import ByteLinks
from dlog.testing.sim.flow import Answered, Asking, Flow, run
from dlog.testing.sim.ledger_nodes import SimLedgerNodes
from dlog.testing.sim.links import SimLinks
from dlog.testing.sim.process import Machine
from dlog.testing.sim.reading import SimReader
from dlog.testing.sim.recovering import SimRecovery
from dlog.testing.sim.surroundings import LedgerAudit, NoAudit, Surroundings
from dlog.testing.sim.world import World

PASSWORD = b"secret"
FENCE_PATIENCE_MS = 10_000.0  # of a deletion


class LedgersClient(Machine, Protocol):
    appenders: dict[int, Any]


class MetaWatcher(Protocol):
    """Whoever can also wait for a node of the log's metadata."""

    def watch(self, path: str, wake: Callable[[], None]) -> None: ...


class ClientLedgers:
    """One client's ledger store."""

    def __init__(self, around: Surroundings) -> None:
        self.around = around
        self.recoveries: dict[int, tuple[SimRecovery, list[Answered]]] = {}
        self._world = around.world
        self._readers: dict[int, SimReader] = {}

    # --- making

    def create(self, spec: LedgerSpec) -> Flow[SimAppender]:
        around = self.around
        ensemble = self._ensemble(spec.ensemble)
        links_before = {bookie_id: around.links.now(bookie_id) for bookie_id in ensemble}
        metadata = new_metadata(spec, ensemble, PASSWORD)
        yield self._reach("bookie.created")
        stored: StoredLedger = yield lambda answer: around.nodes.create(
            around.client, metadata, answer
        )
        yield self._reach("bookie.created")
        return SimAppender(around, stored, links_before)

    def _ensemble(self, size: int) -> tuple[str, ...]:
        left = list(self.around.writable())
        if len(left) < size:
            raise Unavailable(f"{size} bookies are needed, and {len(left)} are there")
        chance = self._world.chance
        return tuple(left.pop(chance.randrange(len(left))) for _ in range(size))

    def _reach(self, point: str) -> Asking:
        return lambda answer: self.around.reach(point, lambda: answer(None, None))

    # --- looking

    def info(self, ledger_id: int) -> Flow[Any]:
        stored: StoredLedger = yield self._read_node(ledger_id, fresh=True)
        return info_of(stored)

    def reader(self, ledger_id: int) -> Flow[SimReader]:
        """Kept, as a reader of a log keeps it."""
        found = self._readers.get(ledger_id)
        if found is None:
            stored: StoredLedger = yield self._read_node(ledger_id, fresh=True)
            found = self._readers.setdefault(ledger_id, SimReader(self.around, stored))
        return found

    def _read_node(self, ledger_id: int, *, fresh: bool) -> Asking:
        around = self.around
        return lambda answer: around.nodes.read(around.client, ledger_id, answer, fresh=fresh)

    # --- ending

    def recover(self, ledger_id: int) -> Flow[Any]:
        try:
            stored: StoredLedger = yield self._read_node(ledger_id, fresh=False)
        except NotFound:
            stored = yield self._read_node(ledger_id, fresh=True)
        end = end_of(stored.metadata)
        if end is not None:
            return end
        return (yield lambda answer: self._recover_once(ledger_id, stored, answer))

    def _recover_once(self, ledger_id: int, stored: StoredLedger, answer: Answered) -> None:
        """At most one recovery of a ledger at a time: who asks meanwhile gets the same answer."""
        running = self.recoveries.get(ledger_id)
        if running is not None:
            running[1].append(answer)
            return
        waiting = [answer]

        def over(value: Any, error: DlogError | None) -> None:
            self.recoveries.pop(ledger_id, None)
            for each in waiting:
                each(value, None if error is None else error.again())

        recovery = SimRecovery(self.around, ledger_id, stored, over)
        if recovery.is_running:
            self.recoveries[ledger_id] = recovery, waiting

    def delete(self, ledger_id: int) -> Flow[None]:
        around = self.around
        try:
            stored: StoredLedger = yield self._read_node(ledger_id, fresh=True)
        except NotFound:
            return
        if end_of(stored.metadata) is None:
            yield lambda answer: self._fence_if_possible(ledger_id, answer)
        yield lambda answer: around.nodes.delete(around.client, ledger_id, answer)

    def _fence_if_possible(self, ledger_id: int, answer: Answered) -> None:
        is_over = False

        def over(value: Any, error: DlogError | None) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                answer(None, None)

        self.around.after(FENCE_PATIENCE_MS, lambda: over(None, None))
        run(self.recover(ledger_id), over)

    # --- life

    def drop(self) -> None:
        """The process is gone; the kernel closes its connections."""
        for reader in self._readers.values():
            reader.close()
        for recovery, _ in list(self.recoveries.values()):
            recovery.end()
        self.recoveries.clear()
        self.around.links.close()


class BookieLedgers:
    """Bookies, ledger metadata, and who uses them."""

    def __init__(
        self,
        world: World,
        bookies: SimBookies,
        nodes: SimLedgerNodes,
        *,
        audit: LedgerAudit | None = None,
        options: AppendOptions | None = None,
        policy_errs: float = 0.0,
        fences_ahead: bool = True,
        cuts: float | None = None,
    ) -> None:
        """With `cuts`, clients and bookies are connected by byte strings, so often cut."""
        self.world = world
        self.bookies = bookies
        self.nodes = nodes
        self.audit: LedgerAudit = audit or NoAudit()
        self._options = options or AppendOptions()
        self._policy_errs = policy_errs
        self._fences_ahead = fences_ahead
        self._cuts = cuts
        self._clients: dict[str, ClientLedgers] = {}

    def of(self, client: Machine) -> ClientLedgers:
        """Of this process: one that is started again under the same name is another."""
        found = self._clients.get(client.name)
        if found is None or found.around.client is not client:
            found = self._clients[client.name] = ClientLedgers(self._surroundings(client))
        return found

    def drop(self, client: Machine) -> None:
        """It died."""
        found = self._clients.get(client.name)
        if found is not None and found.around.client is client:
            del self._clients[client.name]
            found.drop()

    def _surroundings(self, client: Machine) -> Surroundings:
        return Surroundings(
            self.world,
            client,
            self._links(client),
            self.nodes,
            self.bookies.writable,
            self.bookies.names,
            self.audit,
            self._options,
            self._policy_errs,
            fences_ahead=self._fences_ahead,
        )

    def _links(self, client: Machine) -> SimLinks:
        if self._cuts is not None:
            return ByteLinks(self.world, self.bookies.network, client, cuts=self._cuts)
        return SimLinks(self.world, self.bookies.network, client)

    # --- what a client of a log asks

    def create(self, client: LedgersClient, spec: LedgerSpec, answer: Answered) -> None:
        def created(appender: SimAppender | None, error: DlogError | None) -> None:
            if appender is None:
                answer(None, error)
                return
            client.appenders[appender.ledger_id] = appender
            answer(appender.ledger_id, None)

        run(self.of(client).create(spec), created)

    def delete(self, client: Machine, ledger_id: int, answer: Answered) -> None:
        run(self.of(client).delete(ledger_id), answer)

    def info(self, client: Machine, ledger_id: int, answer: Answered) -> None:
        run(self.of(client).info(ledger_id), answer)

    def recover(self, client: Machine, ledger_id: int, answer: Answered) -> None:
        run(self.of(client).recover(ledger_id), answer)

    def last_readable(self, client: Machine, ledger_id: int, answer: Answered) -> None:
        self._with_reader(client, ledger_id, answer, lambda reader: reader.last_readable(answer))

    def read_run(
        self, client: Machine, ledger_id: int, first: int, last: int, answer: Answered
    ) -> None:
        def told(payloads: Sequence[bytes] | None, error: DlogError | None) -> None:
            answer(None if payloads is None else [memoryview(raw) for raw in payloads], error)

        self._with_reader(client, ledger_id, answer, lambda reader: reader.read(first, last, told))

    def read_entries(
        self, client: Machine, ledger_id: int, entries: tuple[int, ...], answer: Answered
    ) -> None:
        def flow() -> Flow[list[bytes]]:
            reader = yield from self.of(client).reader(ledger_id)
            found: list[bytes] = []
            for entry_id in entries:
                payloads: list[bytes] = yield partial(reader.read, entry_id, entry_id)
                found += payloads
            return found

        run(flow(), answer)

    def wait_past(
        self,
        client: Machine,
        ledger_id: int,
        last_entry: int,
        timeout_ms: float,
        path: str | None,
        answer: Answered,
    ) -> None:
        """Answered at the first of: more in the ledger, a change of the node at `path`, the time.
        There is never an error: who waited looks."""
        is_over = False

        def once(readable: int | None = None) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                answer(readable, None)

        def told(readable: Any, error: DlogError | None) -> None:
            if error is not None:
                if isinstance(error, NotFound):
                    once()
                return  # otherwise the time will be over
            reader = self.of(client)._readers.get(ledger_id)
            ended = reader is not None and reader.core.is_ended
            if path is None or not ended or (readable is not None and readable > last_entry):
                once(readable if path is None else None)

        client.after(timeout_ms, once)
        if path is not None:
            client.meta.watch(path, once)  # type: ignore[attr-defined]
        self._with_reader(
            client,
            ledger_id,
            told,
            lambda reader: reader.wait_past(last_entry, timeout_ms, told),
        )

    def _with_reader(
        self,
        client: Machine,
        ledger_id: int,
        answer: Answered,
        then: Callable[[SimReader], None],
    ) -> None:
        def found(reader: SimReader | None, error: DlogError | None) -> None:
            if reader is None:
                answer(None, error)
            else:
                then(reader)

        run(self.of(client).reader(ledger_id), found)
