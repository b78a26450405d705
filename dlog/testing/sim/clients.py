"""A simulated client: a process with a clock, links of its own speed, and procedures it runs. It
may crash, freeze and thaw before and after any effect. The runner here does what `dlog.drive` does:
performs effects, feeds answers back, decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from dlog.effects import (
    BirthLedger,
    CloseLedger,
    CreateLedger,
    CreateNode,
    DeleteLedger,
    DeleteNode,
    Effect,
    LastReadable,
    LetGo,
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
from dlog.ledger.store import Buffer, LedgerSpec
from dlog.options import LogOptions
from dlog.testing.sim.log_swarm import LogWeather
from dlog.testing.sim.metadata import Answered, SimMeta
from dlog.testing.sim.world import Violation, World

if TYPE_CHECKING:
    from dlog.testing.sim.log_oracle import LogOracle

_EPOCH_US = 1_700_000_000_000_000
_CLOCKS_OFF_US = 10_000_000
_JUMP_US = 3_600_000_000
SESSION_MS = 100.0
FROZEN_MS = 200.0
GOLDEN = 0.381966


class ClientLedgers(Protocol):
    """One client's ledger store, answered by callback."""

    def create(self, spec: LedgerSpec, answer: Answered) -> None: ...
    def birth(self, ledger_id: int, buffers: Sequence[Buffer], answer: Answered) -> None: ...
    def listen(self, ledger_id: int, listener: Any) -> None: ...
    def submit(self, ledger_id: int, buffers: Sequence[Buffer]) -> int: ...
    def publish(self, ledger_id: int) -> None: ...
    def publish_is_free(self, ledger_id: int) -> bool: ...
    def close(self, ledger_id: int, answer: Answered) -> None: ...
    def let_go(self, ledger_id: int) -> None: ...
    def held(self) -> list[int]: ...
    def drop(self) -> None: ...
    def recover(self, ledger_id: int, answer: Answered) -> None: ...
    def delete(self, ledger_id: int, answer: Answered) -> None: ...
    def info(self, ledger_id: int, answer: Answered) -> None: ...
    def last_readable(self, ledger_id: int, answer: Answered) -> None: ...
    def read_run(self, ledger_id: int, first: int, last: int, answer: Answered) -> None: ...
    def read_entries(self, ledger_id: int, entries: tuple[int, ...], answer: Answered) -> None: ...
    def wait_past(
        self, ledger_id: int, last_entry: int, timeout_ms: float, path: str | None, answer: Answered
    ) -> None: ...


class LedgerWorld(Protocol):
    """The ledgers of one history, whatever they are made of."""

    audit: Any

    def of(self, client: Any) -> ClientLedgers: ...
    def recover_by_a_stranger(self) -> None: ...
    def heal(self) -> None: ...
    def check_end(self) -> None: ...


@dataclass(slots=True)
class Scene:
    """What the actors of one history share."""

    world: World
    weather: LogWeather
    meta: SimMeta
    ledgers: Any  # a LedgerWorld that is a LedgerTruth
    oracle: LogOracle
    quorum: LogOptions
    pace: float = 1.0  # how much longer things take than over the fastest ledgers
    clients: int = 0


class SimClient:
    def __init__(self, scene: Scene, name: str) -> None:
        self.scene = scene
        self.world = world = scene.world
        self.weather = weather = scene.weather
        self.meta = scene.meta
        self.name = name
        self.alive = True
        self.frozen = False
        self.synced = 0  # metadata writes up to here were there at our last sync
        self._inbox: list[Callable[[], None]] = []
        chance, slow = world.chance, weather.slow
        self.meta_ms: float = chance.pick((1.0, 1.0, slow), f"metadata is slow for {name}, times")
        self.ledger_ms: float = chance.pick((1.0, 1.0, slow), f"ledgers are slow for {name}, times")
        ahead = chance.hits(0.5, f"the clock of {name} is ahead")
        self._clock_us = int(chance.random() * _CLOCKS_OFF_US) * (1 if ahead else -1)
        scene.clients += 1
        self._share = scene.clients * GOLDEN
        self.ledgers: ClientLedgers = scene.ledgers.of(self)

    def __repr__(self) -> str:
        return self.name

    # --- its own clock and chance

    def now_us(self) -> int:
        world = self.world
        if world.strikes(self.weather.clocks_jump, "a clock jumps"):
            self._clock_us += int((world.chance.random() - 0.5) * 2 * _JUMP_US)
        return _EPOCH_US + self._clock_us + int(world.now_ms * 1000)

    def now_s(self) -> float:
        return self.world.now_ms / 1000

    def fraction(self) -> float:
        """Rivals do not meet again and again, not even where all draws are zeros."""
        return (self.world.chance.random() + self._share) % 1.0

    def token(self) -> str:
        return f"{self.name}-{self.world.chance.token()[-8:]}"

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
            self._inbox.clear()
            self.ledgers.drop()
            self.end_session()

    def end_session(self) -> None:
        self.world.after(self.world.chance.delay(SESSION_MS), lambda: self.meta.expire(self))

    def freeze(self) -> None:
        if self.alive and not self.frozen:
            self.world.note(f"{self.name} is frozen")
            self.world.mark("freeze")
            self.frozen = True
            if self.weather.meta.sessions_lost:
                self.end_session()
            self.world.after(self.world.chance.delay(FROZEN_MS), self.thaw)

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
        world, weather = self.world, self.weather
        if world.strikes(weather.crash, "a client crashes"):
            self.crash()
            return True
        if world.strikes(weather.freeze, "a client freezes"):
            self.freeze()
        return False

    # --- effects

    def perform(self, effect: Effect, answer: Answered) -> None:
        """Ask the world; `answer` is called later, once."""
        meta, ledgers = self.meta, self.ledgers
        match effect:
            case ReadNode(path=path, fresh=fresh):
                meta.read(self, path, fresh, answer)
            case ReplaceNode(path=path, value=value, version=version):
                meta.write(self, path, lambda: meta.put(path, value, version), answer)
            case CreateNode(path=path, value=value, ephemeral=ephemeral):
                owner = self if ephemeral else None
                meta.write(self, path, lambda: meta.create(path, value, owner), answer)
            case DeleteNode(path=path, version=version):
                meta.write(self, path, lambda: meta.delete(path, version), answer)
            case ListNodes(path=path):
                meta.list(self, path, answer)
            case WaitNode(path=path, timeout_ms=timeout_ms):
                meta.wait(self, path, timeout_ms, answer)
            case Pause(seconds=seconds):
                self.after(seconds * 1000, lambda: answer(None, None))
            case CreateLedger(spec=spec):
                ledgers.create(spec, answer)
            case BirthLedger(ledger_id=ledger_id, buffers=buffers):
                ledgers.birth(ledger_id, buffers, answer)
            case CloseLedger(ledger_id=ledger_id):
                ledgers.close(ledger_id, self._ended(ledger_id, answer))
            case RecoverLedger(ledger_id=ledger_id):
                ledgers.recover(ledger_id, self._ended(ledger_id, answer))
            case DeleteLedger(ledger_id=ledger_id):
                ledgers.let_go(ledger_id)
                ledgers.delete(ledger_id, answer)
            case LetGo(ledger_id=ledger_id):
                ledgers.let_go(ledger_id)
                self.after(0.0, lambda: answer(None, None))
            case ReadEntries(ledger_id=ledger_id, entries=entries):
                ledgers.read_entries(ledger_id, entries, answer)
            case ReadRun(ledger_id=ledger_id, first_entry=first, last_entry=last):
                ledgers.read_run(ledger_id, first, last, answer)
            case LastReadable(ledger_id=ledger_id):
                ledgers.last_readable(ledger_id, answer)
            case LookAtLedger(ledger_id=ledger_id):
                ledgers.info(ledger_id, answer)
            case WaitPast(ledger_id=ledger_id, last_entry=last, timeout_ms=timeout_ms, path=hint):
                ledgers.wait_past(ledger_id, last, timeout_ms, hint, answer)
            case _:
                raise Violation("simulator", f"no driver for {type(effect).__name__}")

    def _ended(self, ledger_id: int, answer: Answered) -> Answered:
        """Whoever hears where a ledger ends hears the same."""

        def told(closed: Any, error: DlogError | None) -> None:
            if error is None:
                self.scene.oracle.on_end_told(self.name, ledger_id, closed)
            answer(closed, error)

        return told

    def perform_at_once(self, effect: Effect) -> bool:
        """Effects that are done in the same turn; True when this was one."""
        return False

    def run(self, procedure: Procedure[Any], done: Answered) -> None:
        Task(self, procedure, done).resume(None, None)


class Runner(Protocol):
    """What procedures run on: a process that may be hit between any two steps."""

    @property
    def world(self) -> World: ...
    @property
    def frozen(self) -> bool: ...
    def may_be_hit(self) -> bool: ...
    def receive(self, what: Callable[[], None]) -> None: ...
    def perform(self, effect: Effect, answer: Answered) -> None: ...
    def perform_at_once(self, effect: Effect) -> bool: ...
    def run(self, procedure: Procedure[Any], done: Answered) -> None: ...


class Task:
    """One procedure on its way. `done(answer, error)` is called when it ends; a crash ends it
    without a word."""

    __slots__ = ("_client", "_done", "_effect", "_procedure")

    def __init__(self, client: Runner, procedure: Procedure[Any], done: Answered) -> None:
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
                what = f"a core broke its own promise: {broken}"
                raise Violation("Broken", what) from broken
            except DlogError as failure:
                self._done(None, failure)
                return
            self._effect = effect
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
        self, client: Runner, procedures: tuple[Procedure[Any], ...], done: Answered
    ) -> None:
        self._answers: list[Any] = [None] * len(procedures)
        self._errors: list[DlogError | None] = [None] * len(procedures)
        self._left = len(procedures)
        self._done = done
        for i, procedure in enumerate(procedures):
            client.run(procedure, self._one(i))
        if not procedures:
            done([], None)

    def _one(self, i: int) -> Answered:
        def done(answer: Any, error: DlogError | None) -> None:
            self._answers[i], self._errors[i] = answer, error
            self._left -= 1
            if self._left == 0:
                first = next((each for each in self._errors if each is not None), None)
                self._done(None if first else self._answers, first)

        return done
