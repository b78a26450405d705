"""Simulated ledgers, as loose as the contract allows: acknowledgements that come late, in order;
fences; recoveries that keep any prefix from what was confirmed to what was pushed; closed ends;
creates, births and closes that fail or whose reply is lost; ledgers that are gone.

`stored` is what reached the store, `committed` what an appender may acknowledge: a recovery keeps
all of it, and what is stored above it as far as chance has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dlog.errors import DlogError, Fenced, NotFound, Outcome, Retry, Timeout, Unavailable
from dlog.ledger.store import Buffer, ClosedLedger, LedgerInfo, LedgerSpec, LedgerState
from tests.sim.world import Violation, World

if TYPE_CHECKING:
    from tests.sim.clients import Answered, SimClient

RECOVERY_MS = 3.0
HELD_MS = 10.0  # how often a held entry tries again


class LedgerAudit(Protocol):
    """Who watches the truth of the ledgers."""

    def on_submit(self, ledger: SimLedger, entry_id: int) -> None: ...
    def on_close(self, ledger: SimLedger) -> None: ...
    def on_delete(self, ledger: SimLedger) -> None: ...


class SimLedger:
    __slots__ = (
        "closed",
        "committed",
        "deleted",
        "fenced",
        "held",
        "id",
        "published",
        "spec",
        "stored",
    )

    def __init__(self, ledger_id: int, spec: LedgerSpec) -> None:
        self.id = ledger_id
        self.spec = spec
        self.stored: list[bytes] = []
        self.committed = -1
        self.published = -1
        self.fenced = False
        self.held = False  # scenarios: nothing reaches its quorum meanwhile
        self.closed: ClosedLedger | None = None
        self.deleted = False

    @property
    def readable(self) -> int:
        return self.published if self.closed is None else self.closed.last_entry

    @property
    def takes_entries(self) -> bool:
        return not (self.fenced or self.deleted or self.closed is not None)


class SimLedgers:
    def __init__(self, world: World) -> None:
        self.world = world
        self.ledgers: dict[int, SimLedger] = {}
        self.audit: LedgerAudit | None = None
        self._next_id = world.chance.choice((0, 0, 7))
        self._watchers: dict[int, list[Callable[[], None]]] = {}

    def existing(self, ledger_id: int) -> SimLedger:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None or ledger.deleted:
            raise NotFound(f"no ledger {ledger_id}", ledger_id=ledger_id)
        return ledger

    # --- metadata of ledgers

    def create(self, client: SimClient, spec: LedgerSpec, answer: Answered) -> None:
        world = self.world

        def arrive() -> None:
            if world.strikes(world.weather.create_fails):
                reply(None, Unavailable("no room for a ledger"))
                return
            ledger = self.ledgers[self._new_id()] = SimLedger(0, spec)
            ledger.id = next(reversed(self.ledgers))
            if world.strikes(world.weather.create_fails):  # it stays as an orphan
                reply(None, Timeout("no reply in time"))
                return
            reply(ledger.id, None)

        def reply(ledger_id: int | None, error: DlogError | None) -> None:
            client.after(world.delay(client.ledger_ms), lambda: created(ledger_id, error))

        def created(ledger_id: int | None, error: DlogError | None) -> None:
            if ledger_id is not None:
                ledger = self.ledgers[ledger_id]
                client.appenders[ledger_id] = SimAppender(self, client, ledger)
            answer(ledger_id, error)

        world.after(world.delay(client.ledger_ms), arrive)

    def _new_id(self) -> int:
        """Ids grow; a store whose metadata came out of a copy may give old ones again."""
        chance = self.world.chance
        if self.world.strikes(self.world.weather.ids_go_back):
            unused = [each for each in range(self._next_id) if each not in self.ledgers]
            if unused:
                self.world.mark("id went back")
                return chance.choice(unused)
        self._next_id += chance.choice((1, 1, 2, 5))
        return self._next_id

    def delete(self, client: SimClient, ledger_id: int, answer: Answered) -> None:
        def arrive() -> None:
            error: DlogError | None = None
            if self.world.strikes(self.world.weather.close_fails):
                error = Unavailable("the ledger store is away")
            else:
                self._delete(ledger_id)
            client.after(self.world.delay(client.ledger_ms), lambda: answer(None, error))

        self.world.after(self.world.delay(client.ledger_ms), arrive)

    def _delete(self, ledger_id: int) -> None:
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None and not ledger.deleted:
            self.world.note(f"ledger {ledger_id} is deleted")
            ledger.deleted = True
            if self.audit is not None:
                self.audit.on_delete(ledger)
            self.wake(ledger_id)

    def info(self, client: SimClient, ledger_id: int, answer: Answered) -> None:
        def look() -> LedgerInfo:
            ledger = self.existing(ledger_id)
            state = LedgerState.IN_RECOVERY if ledger.fenced else LedgerState.OPEN
            if ledger.closed is not None:
                state = LedgerState.CLOSED
            return LedgerInfo(ledger_id, state, ledger.closed, ledger.spec)

        self._ask(client, look, answer)

    # --- recovery

    def recover(self, client: SimClient, ledger_id: int, answer: Answered) -> None:
        world = self.world
        fails = world.weather.recover_fails

        def reply(closed: ClosedLedger | None, error: DlogError | None) -> None:
            client.after(world.delay(client.ledger_ms), lambda: answer(closed, error))

        def fence() -> None:
            if world.strikes(fails):
                reply(None, Unavailable("too few bookies to fence"))
                return
            try:
                ledger = self.existing(ledger_id)
            except NotFound as error:
                reply(None, error)
                return
            ledger.fenced = True
            if world.strikes(fails):
                reply(None, Unavailable("the recovery stopped half-way", outcome=Outcome.UNKNOWN))
                return
            world.after(world.delay(RECOVERY_MS), lambda: decide(ledger))

        def decide(ledger: SimLedger) -> None:
            if ledger.deleted:
                reply(None, NotFound(f"no ledger {ledger_id}", ledger_id=ledger_id))
                return
            self.recover_now(ledger)
            if world.strikes(fails):
                reply(None, Timeout("no reply in time"))
            else:
                reply(ledger.closed, None)

        world.after(world.delay(client.ledger_ms), fence)

    def recover_now(self, ledger: SimLedger) -> None:
        """Whoever decides first decides for all."""
        ledger.fenced = True
        if ledger.closed is None:
            stored = len(ledger.stored) - 1
            end = self.world.chance.choice(
                (ledger.committed, stored, self.world.chance.randint(ledger.committed, stored))
            )
            self.close_at(ledger, end)
            if end < stored:
                self.world.mark("recovery cut")

    def close_at(self, ledger: SimLedger, last_entry: int) -> None:
        size = sum(map(len, ledger.stored[: last_entry + 1]))
        ledger.closed = ClosedLedger(last_entry, size)
        self.world.note(f"ledger {ledger.id} is closed at {last_entry}")
        if self.audit is not None:
            self.audit.on_close(ledger)
        self.wake(ledger.id)

    # --- reading

    def last_readable(self, client: SimClient, ledger_id: int, answer: Answered) -> None:
        self._ask(client, lambda: self.existing(ledger_id).readable, answer)

    def read_run(
        self, client: SimClient, ledger_id: int, first: int, last: int, answer: Answered
    ) -> None:
        def look() -> list[memoryview]:
            ledger = self.existing(ledger_id)
            if not 0 <= first <= last <= ledger.readable:
                raise Violation(
                    f"I3a: entries {first}..{last} of ledger {ledger_id} were asked for, "
                    f"but {ledger.readable} is the last readable one"
                )
            upto = self.world.chance.randint(first, last)
            return [memoryview(raw) for raw in ledger.stored[first : upto + 1]]

        self._ask(client, look, answer)

    def read_entries(
        self, client: SimClient, ledger_id: int, entries: tuple[int, ...], answer: Answered
    ) -> None:
        def look() -> list[bytes]:
            ledger = self.existing(ledger_id)
            if ledger.closed is None or max(entries) > ledger.closed.last_entry:
                raise Violation(f"I3a: entries {entries} of ledger {ledger_id} are not closed")
            return [ledger.stored[entry_id] for entry_id in entries]

        self._ask(client, look, answer)

    def wait_past(
        self,
        client: SimClient,
        ledger_id: int,
        last_entry: int,
        timeout_ms: float,
        path: str | None,
        answer: Answered,
    ) -> None:
        answered = False

        def once() -> None:
            nonlocal answered
            if not answered:
                answered = True
                answer(None, None)

        def wake() -> None:
            client.after(self.world.delay(client.ledger_ms), once)

        ledger = self.ledgers.get(ledger_id)
        if ledger is None or ledger.deleted or ledger.readable > last_entry:
            wake()
            return
        if ledger.closed is None:
            self._watchers.setdefault(ledger_id, []).append(wake)
        elif path is None:
            wake()
        if path is not None:
            client.meta.watch(path, wake)
        client.after(timeout_ms, once)

    def wake(self, ledger_id: int) -> None:
        for call in self._watchers.pop(ledger_id, ()):
            if not self.world.strikes(self.world.weather.watches_lost):
                call()

    def _ask(self, client: SimClient, look: Callable[[], Any], answer: Answered) -> None:
        """A question that changes nothing."""

        def arrive() -> None:
            value: Any = None
            error: DlogError | None = None
            if self.world.strikes(self.world.weather.read_fails):
                error = Unavailable("no bookie answers")
            else:
                try:
                    value = look()
                except NotFound as gone:
                    error = gone
            client.after(self.world.delay(client.ledger_ms), lambda: answer(value, error))

        self.world.after(self.world.delay(client.ledger_ms), arrive)


class SimAppender:
    """The client's end of one ledger. Requests and replies keep their order."""

    def __init__(self, store: SimLedgers, client: SimClient, ledger: SimLedger) -> None:
        self.ledger = ledger
        self.listener: Any = None
        self.abandoned = False
        self.failed = False
        self.next_entry = 0
        self.confirmed = -1
        self._store = store
        self._world = store.world
        self._client = client
        self._born: Answered | None = None
        self._arrives_ms = 0.0
        self._commits_ms = 0.0
        self._replies_ms = 0.0

    @property
    def publish_is_free(self) -> bool:
        return self._world.weather.publish_is_free

    def birth(self, buffers: Sequence[Buffer], answer: Answered) -> None:
        if self._world.strikes(self._world.weather.birth_fails):
            late = self._world.delay(self._client.ledger_ms)
            self._client.after(late, lambda: answer(None, Unavailable("no ensemble")))
            return
        self._born = answer
        self.submit(buffers)

    def submit(self, buffers: Sequence[Buffer]) -> int:
        entry_id, raw, carried = self.next_entry, b"".join(buffers), self.confirmed
        self.next_entry += 1
        if self._store.audit is not None:
            self._store.audit.on_submit(self.ledger, entry_id)
        self._arrives_ms = max(self._arrives_ms, self._soon(self._client.ledger_ms))
        self._world.at(self._arrives_ms, lambda: self._arrive(entry_id, raw, carried))
        return entry_id

    def _soon(self, mean_ms: float) -> float:
        return self._world.now_ms + self._world.delay(mean_ms)

    def _arrive(self, entry_id: int, raw: bytes, carried: int) -> None:
        ledger = self.ledger
        if not ledger.takes_entries:
            self._fail(Fenced(f"ledger {ledger.id} is fenced", ledger_id=ledger.id))
            return
        if self.failed:
            return
        if self._world.strikes(self._world.weather.append_fails):
            if self._world.chance.random() < 0.5:
                ledger.stored.append(raw)
            self._world.mark("append failed")
            away = Unavailable("too few bookies to append", outcome=Outcome.UNKNOWN)
            self._fail(away)
            return
        ledger.stored.append(raw)
        self._commits_ms = max(self._commits_ms, self._soon(self._world.weather.store_ms))
        self._world.at(self._commits_ms, lambda: self._commit(entry_id, carried))

    def _commit(self, entry_id: int, carried: int) -> None:
        ledger = self.ledger
        if self.failed:
            return
        if not ledger.takes_entries:
            self._fail(Fenced(f"ledger {ledger.id} is fenced", ledger_id=ledger.id))
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

    def _fail(self, error: DlogError) -> None:
        """Told again for every entry that comes later: a listener may have come later, too."""
        self.failed = True
        self._reply(lambda: self._tell_failed(error))

    def _tell_failed(self, error: DlogError) -> None:
        if self._born is not None:
            born, self._born = self._born, None
            born(None, error.again())
        elif self.listener is not None and not self.abandoned:
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
            self._fail(Fenced(f"ledger {ledger.id} is fenced", ledger_id=ledger.id))
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
        upto, ledger, fails = self.confirmed, self.ledger, self._world.weather.close_fails

        def arrive() -> None:
            if self._world.strikes(fails):
                reply(None, Unavailable("the metadata of ledgers is away"))
                return
            closed, error = decide()
            if self._world.strikes(fails):
                closed, error = None, Timeout("no reply in time")
            reply(closed, error)

        def decide() -> tuple[ClosedLedger | None, DlogError | None]:
            fenced = Fenced(f"ledger {ledger.id} is fenced", ledger_id=ledger.id)
            if ledger.deleted:
                return None, fenced
            if ledger.closed is None:
                if ledger.fenced:
                    return None, fenced
                self._store.close_at(ledger, upto)
            if ledger.closed is None or ledger.closed.last_entry != upto:
                return None, fenced
            return ledger.closed, None

        def reply(closed: ClosedLedger | None, error: DlogError | None) -> None:
            if error is not None and self._world.strikes(fails):
                error = Unavailable("gives up", retry=Retry.NEVER, outcome=Outcome.UNKNOWN)
            self._reply(lambda: answer(closed, error))

        self._arrives_ms = max(self._arrives_ms, self._soon(self._client.ledger_ms))
        self._world.at(self._arrives_ms, arrive)
