"""A simulated client: a process with a clock, links of its own speed, and procedures it runs. It
may crash, freeze and thaw before and after any effect. The runner here does what `dlog.drive` does:
performs effects, feeds answers back, decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlog.effects import (
    BirthLedger,
    CloseLedger,
    CreateLedger,
    CreateNode,
    DeleteLedger,
    DeleteNode,
    Effect,
    LastReadable,
    ListNodes,
    LookAtLedger,
    Pause,
    Procedure,
    ReadEntries,
    ReadNode,
    ReadRun,
    RecoverLedger,
    ReplaceNode,
    Together,
    WaitNode,
    WaitPast,
)
from dlog.errors import Broken, DlogError
from tests.sim.world import Violation, World

if TYPE_CHECKING:
    from tests.sim.ledgers import SimAppender, SimLedgers
    from tests.sim.metadata import SimMeta

Answered = Callable[[Any, DlogError | None], None]
_EPOCH_US = 1_700_000_000_000_000


class SimClient:
    def __init__(self, world: World, meta: SimMeta, ledgers: SimLedgers, name: str) -> None:
        self.world = world
        self.meta = meta
        self.ledgers = ledgers
        self.name = name
        self.alive = True
        self.frozen = False
        self.appenders: dict[int, SimAppender] = {}
        self.synced = 0  # metadata writes up to here were there at our last sync
        self._inbox: list[Callable[[], None]] = []
        slow = world.weather.slow
        self.meta_ms = world.chance.choice((1.0, 1.0, slow))
        self.ledger_ms = world.chance.choice((1.0, 1.0, slow))
        self._clock_us = world.chance.randrange(-10_000_000, 10_000_000)
        self.last_effect: Effect | None = None

    # --- its own clock and chance

    def now_us(self) -> int:
        world = self.world
        if world.weather.clocks_jump and not world.is_calm and world.chance.random() < 0.05:
            self._clock_us += world.chance.randrange(-3_600_000_000, 3_600_000_000)
        return _EPOCH_US + self._clock_us + int(world.now_ms * 1000)

    def now_s(self) -> float:
        return self.world.now_ms / 1000

    def fraction(self) -> float:
        return self.world.chance.random()

    def token(self) -> str:
        return f"{self.name}-{self.world.chance.getrandbits(64):016x}"

    # --- life

    def after(self, delay_ms: float, what: Callable[[], None]) -> None:
        """Something that reaches this client: lost when it is dead by then, kept while frozen."""
        self.world.after(delay_ms, lambda: self.receive(what))

    def receive(self, what: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.frozen:
            self._inbox.append(what)
        else:
            what()

    def crash(self) -> None:
        if self.alive:
            self.world.note(f"{self.name} crashes")
            self.world.mark("crash")
            self.alive = False
            self.end_session()

    def end_session(self) -> None:
        self.world.after(self.world.delay(100.0), lambda: self.meta.expire(self))

    def freeze(self) -> None:
        if self.alive and not self.frozen:
            self.world.note(f"{self.name} is frozen")
            self.world.mark("freeze")
            self.frozen = True
            if self.world.weather.sessions_lost:
                self.end_session()
            self.world.after(self.world.delay(200.0), self.thaw)

    def thaw(self) -> None:
        if not self.frozen:
            return
        self.world.note(f"{self.name} wakes")
        self.frozen = False
        inbox, self._inbox = self._inbox, []
        for what in inbox:
            self.receive(what)

    def may_be_hit(self) -> bool:
        """A crash or a freeze, here and now; True when this client goes no further."""
        weather = self.world.weather
        if self.world.strikes(weather.crash):
            self.crash()
            return True
        if self.world.strikes(weather.freeze):
            self.freeze()
        return False

    # --- effects

    def perform(self, effect: Effect, answer: Answered) -> None:
        """Ask the world; `answer` is called later, once."""
        match effect:
            case ReadNode(path=path, fresh=fresh):
                self.meta.read(self, path, fresh, answer)
            case ReplaceNode(path=path, value=value, version=version):
                self.meta.write(self, lambda: self.meta.put(path, value, version), answer)
            case CreateNode(path=path, value=value, ephemeral=ephemeral):
                owner = self if ephemeral else None
                self.meta.write(self, lambda: self.meta.create(path, value, owner), answer)
            case DeleteNode(path=path, version=version):
                self.meta.write(self, lambda: self.meta.delete(path, version), answer)
            case ListNodes(path=path):
                self.meta.list(self, path, answer)
            case WaitNode(path=path, timeout_ms=timeout_ms):
                self.meta.wait(self, path, timeout_ms, answer)
            case Pause(seconds=seconds):
                self.after(seconds * 1000, lambda: answer(None, None))
            case CreateLedger(spec=spec):
                self.ledgers.create(self, spec, answer)
            case BirthLedger(ledger_id=ledger_id, buffers=buffers):
                self.appenders[ledger_id].birth(buffers, answer)
            case CloseLedger(ledger_id=ledger_id):
                self.appenders[ledger_id].close(answer)
            case RecoverLedger(ledger_id=ledger_id):
                self.ledgers.recover(self, ledger_id, answer)
            case DeleteLedger(ledger_id=ledger_id):
                self.let_go(ledger_id)
                self.ledgers.delete(self, ledger_id, answer)
            case ReadEntries(ledger_id=ledger_id, entries=entries):
                self.ledgers.read_entries(self, ledger_id, entries, answer)
            case ReadRun(ledger_id=ledger_id, first_entry=first, last_entry=last):
                self.ledgers.read_run(self, ledger_id, first, last, answer)
            case LastReadable(ledger_id=ledger_id):
                self.ledgers.last_readable(self, ledger_id, answer)
            case LookAtLedger(ledger_id=ledger_id):
                self.ledgers.info(self, ledger_id, answer)
            case WaitPast(ledger_id=ledger_id, last_entry=last, timeout_ms=timeout_ms, path=path):
                self.ledgers.wait_past(self, ledger_id, last, timeout_ms, path, answer)
            case _:
                raise Violation(f"no driver for {type(effect).__name__}")

    def perform_at_once(self, effect: Effect) -> bool:
        """Effects that are done in the same turn; True when this was one."""
        return False

    def let_go(self, ledger_id: int) -> None:
        appender = self.appenders.pop(ledger_id, None)
        if appender is not None:
            appender.abandoned = True

    def run(self, procedure: Procedure[Any], done: Answered) -> None:
        Task(self, procedure, done).resume(None, None)


class Task:
    """One procedure on its way. `done(answer, error)` is called when it ends; a crash ends it
    without a word."""

    __slots__ = ("_client", "_done", "_effect", "_procedure")

    def __init__(self, client: SimClient, procedure: Procedure[Any], done: Answered) -> None:
        self._client = client
        self._procedure = procedure
        self._done = done
        self._effect: Effect | None = None

    def resume(self, answer: Any, error: DlogError | None) -> None:
        client = self._client
        while True:
            try:
                effect = (
                    self._procedure.send(answer) if error is None else self._procedure.throw(error)
                )
            except StopIteration as stop:
                self._done(stop.value, None)
                return
            except Broken as broken:
                raise Violation(f"a core broke its own promise: {broken}") from broken
            except DlogError as failure:
                self._done(None, failure)
                return
            self._effect = client.last_effect = effect
            if effect.point:
                client.world.points[effect.point] += 1
            if client.may_be_hit():
                return
            answer = error = None
            try:
                if client.perform_at_once(effect):
                    continue
            except DlogError as refused:
                error = refused
                continue
            break
        if client.frozen:  # it froze before the effect left it
            client.receive(self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        effect = self._effect
        assert effect is not None
        if isinstance(effect, Together):
            _Gathering(self._client, effect.procedures, self._on_answer)
        else:
            self._client.perform(effect, self._on_answer)

    def _on_answer(self, answer: Any, error: DlogError | None) -> None:
        if self._client.may_be_hit():
            return
        if self._client.frozen:
            self._client.receive(lambda: self.resume(answer, error))
        else:
            self.resume(answer, error)


class _Gathering:
    """`Together`: all run to their end, interleaved; then the first error, if any, is raised."""

    def __init__(
        self, client: SimClient, procedures: tuple[Procedure[Any], ...], done: Answered
    ) -> None:
        self._answers: list[Any] = [None] * len(procedures)
        self._errors: list[DlogError | None] = [None] * len(procedures)
        self._left = len(procedures)
        self._done = done
        for i, procedure in enumerate(procedures):
            client.run(procedure, self._one(i))

    def _one(self, i: int) -> Answered:
        def done(answer: Any, error: DlogError | None) -> None:
            self._answers[i], self._errors[i] = answer, error
            self._left -= 1
            if self._left == 0:
                first = next((each for each in self._errors if each is not None), None)
                self._done(None if first else self._answers, first)

        return done
