"""Simulated ledgers without bookies, as loose as the contract allows: acknowledgements that come
late, in order; fences; recoveries that keep any prefix from what was confirmed to what was pushed;
closed ends; creates, births and closes that fail or whose reply is lost; ledgers that are gone.

`stored` is what reached the store, `committed` what an appender may acknowledge: a recovery keeps
all of it, and what is stored above it as far as chance has it. What holds over these holds over
every ledger store that keeps the contract; `ledger_client` is on bookies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dlog.errors import DlogError, Fenced, NotFound, Outcome, Retry, Timeout, Unavailable
from dlog.ledger.store import Buffer, ClosedLedger, LedgerInfo, LedgerSpec, LedgerState
from dlog.testing.sim.metadata import TRAVEL_MIN_MS, Answered, SimMeta
from dlog.testing.sim.world import World, require

RECOVERY_MS = 3.0
HELD_MS = 10.0  # how often a held entry tries again


@dataclass(slots=True)
class LedgerManners:
    """How the ledger store of one history behaves. Rates are per request; 0 is off."""

    create_fails: float = 0.0
    birth_fails: float = 0.0
    append_fails: float = 0.0
    recover_fails: float = 0.0
    close_fails: float = 0.0
    read_fails: float = 0.0
    watch_lost: float = 0.0
    fence_noticed: float = 0.0  # by an appender that sends nothing just then
    ids_go_back: float = 0.0
    strangers_show: float = 0.0  # what they write back, before they decide on the end (H1, H2)
    publish_is_free: bool = False
    first_id: int = 0
    store_ms: float = 1.0  # from the wire to a quorum, on average


class LedgerClient(Protocol):
    """Who asks."""

    name: str
    ledger_ms: float

    def receive(self, what: Callable[[], None]) -> None: ...


class LedgerAudit(Protocol):
    """Who watches the truth of the ledgers."""

    def on_submit(self, ledger_id: int, entry_id: int) -> None: ...
    def on_close(self, ledger_id: int, closed: ClosedLedger) -> None: ...
    def on_delete(self, ledger_id: int) -> None: ...


@dataclass(slots=True)
class AbstractLedger:
    id: int
    spec: LedgerSpec
    stored: list[bytes]
    committed: int = -1
    published: int = -1
    fenced: bool = False
    fenced_ms: float = 0.0
    held: bool = False  # scenarios: nothing reaches its quorum meanwhile
    closed: ClosedLedger | None = None
    deleted: bool = False

    @property
    def readable(self) -> int:
        return self.published if self.closed is None else self.closed.last_entry

    @property
    def takes_entries(self) -> bool:
        return not (self.fenced or self.deleted or self.closed is not None)


class AbstractLedgers:
    """The store; `of` gives one client's way to it."""

    damages_entries = False
    has_forgotten = False

    def __init__(self, world: World, manners: LedgerManners, meta: SimMeta) -> None:
        self.world = world
        self.manners = manners
        self.meta = meta
        self.ledgers: dict[int, AbstractLedger] = {}
        self.appenders: dict[int, AbstractAppender] = {}  # of each ledger the one there is
        self.audit: LedgerAudit | None = None
        self._next_id = manners.first_id
        self._watchers: dict[int, list[Callable[[], None]]] = {}

    def of(self, client: LedgerClient) -> AbstractClientLedgers:
        return AbstractClientLedgers(self, client)

    def existing(self, ledger_id: int) -> AbstractLedger:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None or ledger.deleted:
            raise NotFound(f"no ledger {ledger_id}", ledger_id=ledger_id)
        return ledger

    # --- the truth, for oracles

    def closed_end(self, ledger_id: int) -> ClosedLedger | None:
        return self.ledgers[ledger_id].closed

    def is_gone(self, ledger_id: int) -> bool:
        return self.ledgers[ledger_id].deleted

    def is_durable(self, ledger_id: int, entry_id: int) -> bool:
        ledger = self.ledgers[ledger_id]
        return entry_id <= (ledger.committed if ledger.closed is None else ledger.closed.last_entry)

    def is_readable(self, ledger_id: int, entry_id: int) -> bool:
        return self.ledgers[ledger_id].readable >= entry_id

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        stored = self.ledgers[ledger_id].stored
        return stored[entry_id] if entry_id < len(stored) else None

    # --- what strangers do, and the end of the faults

    def recover_by_a_stranger(self) -> None:
        """Somebody recovers a ledger for reasons of their own, and may not finish."""
        chance = self.world.chance
        known = [each for each in self.ledgers.values() if not each.deleted]
        if not known:
            return
        ledger = chance.pick(known[:-5:-1], "the ledger a stranger recovers")
        if ledger.closed is None:
            self.world.note(f"a stranger recovers ledger {ledger.id}")
            self.world.mark("foreign recovery")
            self.fence(ledger)
            if self.world.strikes(self.manners.strangers_show, "a stranger's write-back shows"):
                self._show_and_decide(ledger)
            elif not chance.hits(0.2, "the stranger only fences"):
                self.recover_now(ledger)

    def _show_and_decide(self, ledger: AbstractLedger) -> None:
        """With a LAC that rises as entries are written back, as the stock client's does."""
        above = len(ledger.stored) - 1 - ledger.published
        if above > 0:
            ledger.published += 1 + int(self.world.chance.random() * above)
            self.world.note(f"ledger {ledger.id} is shown to {ledger.published}")
            self.wake(ledger.id)
        decides_ms = self.world.chance.delay(10 * RECOVERY_MS)
        self.world.after(decides_ms, lambda: None if ledger.deleted else self.recover_now(ledger))

    def heal(self) -> None: ...

    def check_end(self) -> None:
        """The ledger's own promises are kept by construction."""

    # --- metadata of ledgers

    def new_id(self) -> int:
        """Ids grow; a store whose metadata came out of a copy may give old ones again."""
        chance = self.world.chance
        if self.world.strikes(self.manners.ids_go_back, "a ledger id goes back"):
            unused = [each for each in range(self._next_id) if each not in self.ledgers]
            if unused:
                self.world.mark("id went back")
                return chance.pick(unused[::-1], "an id of before")
        self._next_id += chance.pick((1, 1, 2, 5), "the step to the next ledger id")
        return self._next_id

    def delete(self, ledger_id: int) -> None:
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None and not ledger.deleted:
            self.world.note(f"ledger {ledger_id} is deleted")
            ledger.deleted = True
            self.fence(ledger)
            if self.audit is not None:
                self.audit.on_delete(ledger_id)
            self.wake(ledger_id)

    # --- recovery

    def fence(self, ledger: AbstractLedger) -> None:
        if ledger.fenced:
            return
        ledger.fenced = True
        ledger.fenced_ms = self.world.now_ms
        appender = self.appenders.get(ledger.id)
        if appender is not None and self.world.strikes(
            self.manners.fence_noticed, "ledgers: an idle appender notices the fence"
        ):
            appender.fail_fenced()

    def recover_now(self, ledger: AbstractLedger) -> None:
        """Whoever decides first decides for all."""
        self.fence(ledger)
        if ledger.closed is None:
            world, stored = self.world, len(ledger.stored) - 1
            above = stored - ledger.committed
            cut = 0
            if above:
                kind = world.chance.pick(("all", "none", "some"), "a recovery keeps")
                part = int(world.chance.random() * (above + 1))
                cut = {"all": 0, "none": above, "some": part}[kind]
            if cut:
                world.mark("recovery cut")
            self.close_at(ledger, stored - cut)

    def close_at(self, ledger: AbstractLedger, last_entry: int) -> None:
        size = sum(map(len, ledger.stored[: last_entry + 1]))
        ledger.closed = ClosedLedger(last_entry, size)
        self.world.note(f"ledger {ledger.id} is closed at {last_entry}")
        if self.audit is not None:
            self.audit.on_close(ledger.id, ledger.closed)
        self.wake(ledger.id)

    def watch(self, ledger_id: int, wake: Callable[[], None]) -> None:
        self._watchers.setdefault(ledger_id, []).append(wake)

    def wake(self, ledger_id: int) -> None:
        for call in self._watchers.pop(ledger_id, ()):
            if not self.world.strikes(self.manners.watch_lost, "ledgers: watch lost"):
                call()


class AbstractClientLedgers:
    """One client's way to the store: what `clients.ClientLedgers` asks for."""

    def __init__(self, store: AbstractLedgers, client: LedgerClient) -> None:
        self.appenders: dict[int, AbstractAppender] = {}
        self._store = store
        self._world = store.world
        self._client = client

    # --- appenders

    def create(self, spec: LedgerSpec, answer: Answered) -> None:
        store, world = self._store, self._world
        fails = store.manners.create_fails

        def arrive() -> None:
            if world.strikes(fails, "ledgers: a create fails"):
                self._reply(answer, None, Unavailable("no room for a ledger"))
                return
            ledger_id = store.new_id()
            store.ledgers[ledger_id] = AbstractLedger(ledger_id, spec, [])
            if world.strikes(fails, "ledgers: the reply to a create is lost"):  # an orphan stays
                self._reply(answer, None, Timeout("no reply in time"))
            else:
                self._reply(created, ledger_id, None)

        def created(ledger_id: int, _: DlogError | None) -> None:
            ledger = store.ledgers[ledger_id]
            appender = AbstractAppender(store, self._client, ledger)
            self.appenders[ledger_id] = store.appenders[ledger_id] = appender
            answer(ledger_id, None)

        self._send(arrive)

    def birth(self, ledger_id: int, buffers: Sequence[Buffer], answer: Answered) -> None:
        self.appenders[ledger_id].birth(buffers, answer)

    def listen(self, ledger_id: int, listener: Any) -> None:
        self.appenders[ledger_id].listener = listener

    def submit(self, ledger_id: int, buffers: Sequence[Buffer]) -> int:
        return self.appenders[ledger_id].submit(buffers)

    def publish(self, ledger_id: int) -> None:
        self.appenders[ledger_id].publish()

    def publish_is_free(self, ledger_id: int) -> bool:
        return self._store.manners.publish_is_free

    def close(self, ledger_id: int, answer: Answered) -> None:
        self.appenders[ledger_id].close(answer)

    def let_go(self, ledger_id: int) -> None:
        appender = self.appenders.pop(ledger_id, None)
        if appender is not None:
            appender.abandoned = True

    def held(self) -> list[int]:
        """The ledgers that it has appenders for."""
        return list(self.appenders)

    def drop(self) -> None:
        """The process died; its requests may arrive all the same."""

    # --- the rest

    def delete(self, ledger_id: int, answer: Answered) -> None:
        def arrive() -> None:
            error: DlogError | None = None
            if self._world.strikes(self._store.manners.close_fails, "ledgers: a delete fails"):
                error = Unavailable("the ledger store is away")
            else:
                self._store.delete(ledger_id)
            self._reply(answer, None, error)

        self._send(arrive)

    def info(self, ledger_id: int, answer: Answered) -> None:
        def look() -> LedgerInfo:
            ledger = self._store.existing(ledger_id)
            state = LedgerState.IN_RECOVERY if ledger.fenced else LedgerState.OPEN
            if ledger.closed is not None:
                state = LedgerState.CLOSED
            return LedgerInfo(ledger_id, state, ledger.closed, ledger.spec)

        self._ask(look, answer)

    def recover(self, ledger_id: int, answer: Answered) -> None:
        store, world = self._store, self._world
        fails = store.manners.recover_fails

        def fence() -> None:
            if world.strikes(fails, "ledgers: a recovery fails at once"):
                self._reply(answer, None, Unavailable("too few bookies to fence"))
                return
            try:
                ledger = store.existing(ledger_id)
            except NotFound as error:
                self._reply(answer, None, error)
                return
            store.fence(ledger)
            if world.strikes(fails, "ledgers: a recovery stops half-way"):
                half_way = Unavailable("the recovery stopped half-way", outcome=Outcome.UNKNOWN)
                self._reply(answer, None, half_way)
                return
            world.after(world.chance.delay(RECOVERY_MS), lambda: decide(ledger))

        def decide(ledger: AbstractLedger) -> None:
            if ledger.deleted:
                gone = NotFound(f"no ledger {ledger_id}", ledger_id=ledger_id)
                self._reply(answer, None, gone)
                return
            store.recover_now(ledger)
            if world.strikes(fails, "ledgers: the reply to a recovery is lost"):
                self._reply(answer, None, Timeout("no reply in time"))
            else:
                self._reply(answer, ledger.closed, None)

        self._send(fence)

    def last_readable(self, ledger_id: int, answer: Answered) -> None:
        self._ask(lambda: self._store.existing(ledger_id).readable, answer)

    def read_run(self, ledger_id: int, first: int, last: int, answer: Answered) -> None:
        def look() -> list[memoryview]:
            ledger = self._store.existing(ledger_id)
            require(
                0 <= first <= last <= ledger.readable,
                "I3a",
                "what nobody may read yet was asked for",
                (ledger_id, first, last, ledger.readable),
            )
            kept_back = 0
            if last > first:
                kept_back = int(self._world.chance.random() * (last - first + 1))
            return [memoryview(raw) for raw in ledger.stored[first : last - kept_back + 1]]

        self._ask(look, answer)

    def read_entries(self, ledger_id: int, entries: tuple[int, ...], answer: Answered) -> None:
        def look() -> list[bytes]:
            ledger = self._store.existing(ledger_id)
            require(
                ledger.closed is not None and max(entries) <= ledger.closed.last_entry,
                "I3a",
                "entries of a ledger that is not closed there were asked for",
                (ledger_id, entries),
            )
            return [ledger.stored[entry_id] for entry_id in entries]

        self._ask(look, answer)

    def wait_past(
        self, ledger_id: int, last_entry: int, timeout_ms: float, path: str | None, answer: Answered
    ) -> None:
        store, client = self._store, self._client
        answered = False

        def once(readable: int | None = None) -> None:
            nonlocal answered
            if not answered:
                answered = True
                answer(readable, None)

        def wake() -> None:
            found = store.ledgers.get(ledger_id)
            readable = None if found is None or path is not None else found.readable
            delay_ms = TRAVEL_MIN_MS + self._world.chance.delay(client.ledger_ms)
            self._world.after(delay_ms, lambda: client.receive(lambda: once(readable)))

        ledger = store.ledgers.get(ledger_id)
        if ledger is None or ledger.deleted or ledger.readable > last_entry:
            wake()
            return
        if ledger.closed is None:
            store.watch(ledger_id, wake)
        elif path is None:
            wake()
        if path is not None:
            store.meta.watch(path, wake)
        self._world.after(timeout_ms, lambda: client.receive(once))

    # --- on its way

    def _ask(self, look: Callable[[], Any], answer: Answered) -> None:
        """A question that changes nothing."""

        def arrive() -> None:
            value: Any = None
            error: DlogError | None = None
            if self._world.strikes(self._store.manners.read_fails, "ledgers: nobody answers"):
                error = Unavailable("no bookie answers")
            else:
                try:
                    value = look()
                except NotFound as gone:
                    error = gone
            self._reply(answer, value, error)

        self._send(arrive)

    def _send(self, arrive: Callable[[], None]) -> None:
        self._world.after(TRAVEL_MIN_MS + self._world.chance.delay(self._client.ledger_ms), arrive)

    def _reply(self, answer: Answered, value: Any, error: DlogError | None) -> None:
        self._world.after(
            self._world.chance.delay(self._client.ledger_ms),
            lambda: self._client.receive(lambda: answer(value, error)),
        )


class AbstractAppender:
    """The client's end of one ledger. Requests and replies keep their order."""

    def __init__(
        self, store: AbstractLedgers, client: LedgerClient, ledger: AbstractLedger
    ) -> None:
        self.ledger = ledger
        self.listener: Any = None
        self.abandoned = False
        self.failed = False
        self.told_failure = False
        self.next_entry = 0
        self.confirmed = -1
        self._store = store
        self._world = store.world
        self._client = client
        self._born: Answered | None = None
        self._arrives_ms = 0.0
        self._commits_ms = 0.0
        self._replies_ms = 0.0

    def birth(self, buffers: Sequence[Buffer], answer: Answered) -> None:
        world, client = self._world, self._client
        if world.strikes(self._store.manners.birth_fails, "ledgers: a birth fails"):
            refusal = Unavailable("no ensemble")
            world.after(
                world.chance.delay(client.ledger_ms),
                lambda: client.receive(lambda: answer(None, refusal)),
            )
            return
        self._born = answer
        self.submit(buffers)

    def submit(self, buffers: Sequence[Buffer]) -> int:
        entry_id, raw, carried = self.next_entry, b"".join(buffers), self.confirmed
        self.next_entry += 1
        if self._store.audit is not None:
            self._store.audit.on_submit(self.ledger.id, entry_id)
        self._arrives_ms = max(self._arrives_ms, self._soon(self._client.ledger_ms))
        self._world.at(self._arrives_ms, lambda: self._arrive(entry_id, raw, carried))
        return entry_id

    def _soon(self, mean_ms: float) -> float:
        return self._world.now_ms + self._world.chance.delay(mean_ms)

    def _arrive(self, entry_id: int, raw: bytes, carried: int) -> None:
        world, ledger, manners = self._world, self.ledger, self._store.manners
        if not ledger.takes_entries:
            self.fail_fenced()
            return
        if self.failed:
            return
        if world.strikes(manners.append_fails, "append failed"):
            if world.chance.hits(0.5, "what failed is stored all the same"):
                ledger.stored.append(raw)
            away = Unavailable("too few bookies to append", outcome=Outcome.UNKNOWN)
            self._fail(away)
            return
        ledger.stored.append(raw)
        self._commits_ms = max(self._commits_ms, self._soon(manners.store_ms))
        world.at(self._commits_ms, lambda: self._commit(entry_id, carried))

    def _commit(self, entry_id: int, carried: int) -> None:
        ledger = self.ledger
        if self.failed:
            return
        if not ledger.takes_entries:
            self.fail_fenced()
            return
        if ledger.held:
            self._world.after(HELD_MS, lambda: self._commit(entry_id, carried))
            return
        ledger.committed = entry_id
        self._publish_at_store(carried)
        self._reply(lambda: self._confirmed(entry_id, carried))

    def _confirmed(self, entry_id: int, carried: int) -> None:
        self.confirmed = entry_id
        if self._born is not None:
            born, self._born = self._born, None
            born(None, None)
            return
        if self.listener is not None and not self.abandoned:
            self.listener.on_confirmed(self.ledger.id, entry_id)
        if self.listener is not None and not self.abandoned and carried > 0:
            self.listener.on_published(self.ledger.id, carried)

    def fail_fenced(self) -> None:
        ledger_id = self.ledger.id
        self._fail(Fenced(f"ledger {ledger_id} is fenced", ledger_id=ledger_id))

    def _fail(self, error: DlogError) -> None:
        """Told once, to a listener that may come later."""
        self.failed = True
        self._reply(lambda: self._tell_failed(error))

    def _tell_failed(self, error: DlogError) -> None:
        if self._born is not None:
            born, self._born = self._born, None
            born(None, error.again())
        elif self.listener is not None and not self.abandoned and not self.told_failure:
            self.told_failure = True
            self.listener.on_failed(self.ledger.id, error)

    def _reply(self, what: Callable[[], None]) -> None:
        self._replies_ms = max(self._replies_ms, self._soon(self._client.ledger_ms))
        self._world.at(self._replies_ms, lambda: self._client.receive(what))

    def publish(self) -> None:
        upto = self.confirmed
        self._arrives_ms = max(self._arrives_ms, self._soon(self._client.ledger_ms))
        self._world.at(self._arrives_ms, lambda: self._publish(upto))

    def _publish(self, upto: int) -> None:
        ledger = self.ledger
        if not ledger.takes_entries:
            self.fail_fenced()
            return
        self._publish_at_store(upto)
        self._reply(lambda: self._published(upto))

    def _published(self, upto: int) -> None:
        if self.listener is not None and not self.abandoned and not self.failed:
            self.listener.on_published(self.ledger.id, upto)

    def _publish_at_store(self, upto: int) -> None:
        if upto > self.ledger.published:
            self.ledger.published = upto
            self._store.wake(self.ledger.id)

    def close(self, answer: Answered) -> None:
        """At our last confirmed entry. Somebody else's close at that very entry is as good."""
        world, store = self._world, self._store
        upto, ledger, fails = self.confirmed, self.ledger, store.manners.close_fails

        def arrive() -> None:
            if world.strikes(fails, "ledgers: a close fails"):
                reply(None, Unavailable("the metadata of ledgers is away"))
                return
            closed, error = decide()
            if world.strikes(fails, "ledgers: the reply to a close is lost"):
                closed, error = None, Timeout("no reply in time")
            reply(closed, error)

        def decide() -> tuple[ClosedLedger | None, DlogError | None]:
            fenced = Fenced(f"ledger {ledger.id} is fenced", ledger_id=ledger.id)
            if ledger.deleted:
                return None, fenced
            if ledger.closed is None:
                if ledger.fenced:
                    return None, fenced
                store.close_at(ledger, upto)
            if ledger.closed is None or ledger.closed.last_entry != upto:
                return None, fenced
            return ledger.closed, None

        def reply(closed: ClosedLedger | None, error: DlogError | None) -> None:
            if error is not None and world.strikes(fails, "ledgers: a close gives up"):
                error = Unavailable("gives up", retry=Retry.NEVER, outcome=Outcome.UNKNOWN)
            self._reply(lambda: answer(closed, error))

        self._arrives_ms = max(self._arrives_ms, self._soon(self._client.ledger_ms))
        world.at(self._arrives_ms, arrive)
