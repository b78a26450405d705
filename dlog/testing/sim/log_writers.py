"""A simulated writer: drives the production procedures and `WriterCore` exactly as
`dlog.writer.engine` does, turn by turn: entries are handed over and releases told at once; every
other effect is answered when the world gets to it. One duty runs at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from dlog.chance import backoff_s
from dlog.effects import (
    CreateLedger,
    Drained,
    Effect,
    Release,
    SubmitEntry,
)
from dlog.errors import DlogError, Fenced, Outcome, WriterClosed
from dlog.ids import MessageId
from dlog.meta.cas import Seen
from dlog.meta.listed import WriterMark
from dlog.options import Takeover, WriterOptions, visible_within_ms
from dlog.testing.sim.clients import Scene, SimClient
from dlog.testing.sim.log_oracle import LAYOUT, NAME, Handle, Sent
from dlog.testing.sim.metadata import Answered
from dlog.testing.sim.world import Violation
from dlog.writer.batch import Batch
from dlog.writer.core import Identity, WriterCore, WriterState
from dlog.writer.duties import Duty, next_duty, procedure_of
from dlog.writer.policy import Advice
from dlog.writer.present import withdraw
from dlog.writer.producers import Dedup, Producers
from dlog.writer.rotation import Ending, begin, close
from dlog.writer.takeover import Opened, Opening, StoodBy, take_over
from dlog.writer.times import Stopwatch

TICK_MIN_MS, TICK_MS = 5.0, 35.0


class RandomPolicy:
    """Rotation advice by chance: safety may not depend on it."""

    def __init__(self, scene: Scene) -> None:
        self._world = scene.world
        self._weather = scene.weather

    def advise(self, *, segment_bytes: int, entries: int, age_s: float) -> Advice:
        world = self._world
        every = self._weather.rotate_every
        if world.strikes(self._weather.wait_often, "the policy says wait"):
            return Advice.WAIT
        if every is None or world.is_calm:
            return Advice.STAY
        if entries >= every + 1:
            return Advice.ROTATE
        return Advice.PREPARE if world.chance.hits(0.2, "a spare is prepared") else Advice.STAY


class SimWriter(SimClient):
    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(scene, name)
        weather = scene.weather
        self.oracle = scene.oracle
        self.options = WriterOptions(
            takeover=cast(Takeover, weather.takeover),
            visible=weather.visible,
            window_entries=weather.window_entries,
        )
        self.core: WriterCore | None = None
        self.handle: Handle | None = None
        self.error: DlogError | None = None  # what opening, or closing, ended with
        self.is_closed = False
        self._mark = WriterMark(self.token(), name, 0)
        self._stood_by: StoodBy | None = None
        self._pending: deque[Batch] = deque()
        self._sent: dict[int, list[Sent]] = {}  # by batch
        self._opening_ledger: int | None = None
        self.dedup = Dedup(Producers())
        self._next_seq = 0  # of what is submitted next
        self._told: dict[int, Callable[[int], None]] = {}  # by batch: who hears of its numbers
        self._early_failures: dict[int, DlogError] = {}  # heard before there was a core
        self._drains: list[tuple[int, Answered]] = []
        self._seen: Seen | None = None
        self._busy = False  # a duty runs
        self._buried = False
        self._rotation_asked = False
        self._rest_until_ms = 0.0
        self._failures = 0
        self._closing = False
        self._sealing = False
        self._looking = False
        self._ending = Ending.CLOSE
        self._hand_over_to: str | None = None
        self._timers: set[int] = set()
        self._then: Callable[[], None] = lambda: None

    # --- opening

    def open(self, then: Callable[[], None] = lambda: None, *, policy: str | None = None) -> None:
        """`then` runs once the open has returned, with `handle` set, or `error`."""
        self._then = then
        self.take_over(policy or self.options.takeover)

    def take_over(self, policy: str) -> None:
        self.run(take_over(self.opening(policy)), self._taken_over)

    def opening(self, policy: str) -> Opening:
        return Opening(
            NAME,
            LAYOUT,
            self._mark,
            cast(Takeover, policy),
            self.scene.quorum,
            self.token(),
            self.now_us,
            self,
            Stopwatch(self.now_s),
            self._stood_by,
        )

    def _taken_over(self, opened: Opened | None, error: DlogError | None) -> None:
        if opened is None:
            self._open_failed(error)
            return
        identity = Identity(NAME, self._mark.token, LAYOUT, self.now_us, self.now_s, self)
        self.core = WriterCore(identity, opened, self.options, policy=RandomPolicy(self.scene))
        self.dedup = Dedup(opened.producers)
        self._next_seq = opened.end.next_seq
        self._opening_ledger = opened.ledger_id
        early = self._early_failures.get(opened.ledger_id)
        if early is not None:
            self.core = None  # nobody was given a handle
            self._open_failed(early)
            return
        self.run(begin(self.core), self._begun)

    def _begun(self, _: Any, error: DlogError | None) -> None:
        if error is not None:
            self._open_failed(error)
            return
        self.after_fact()
        self._tick()

    def _open_failed(self, error: DlogError | None) -> None:
        self.world.note(f"{self.name} could not open: {error}")
        self.error = error
        self._opening_ledger = None
        self._let_all_go()
        self._withdraw()
        self._then()

    def _check_opened(self) -> None:
        """Open once its seam is visible, or dead before."""
        core = self.core
        if core is None or self._opening_ledger is None:
            return
        if core.state is WriterState.DEAD:
            self._open_failed(core.error)
        elif core.is_idle and not core.unpublished(core.current.ledger_id):
            self._opening_ledger = None
            self.handle = self.oracle.opened(self.name, core.epoch, core.seen.meta.uid)
            self._has_opened()

    def _has_opened(self) -> None:
        self._then()

    # --- messages

    @property
    def takes_messages(self) -> bool:
        return self.handle is not None and not self._closing and not self._buried

    def submit(
        self,
        count: int,
        producer: tuple[int, int] | None = None,
        answered: Callable[[int], None] = lambda number: None,
    ) -> None:
        """One batch of so many messages. With a producer, they carry its numbers from there on,
        which are new; `answered` hears of each that is acked."""
        handle = self.handle
        assert handle is not None
        values = [f"{self.name}.{len(handle.sent) + i}".encode() for i in range(count)]
        batch = Batch(list(values), sum(map(len, values)))
        batch.first_seq, self._next_seq = self._next_seq, self._next_seq + count
        if producer is not None:
            batch.producer = producer
            self.dedup.add(batch)
            self._told[id(batch)] = answered
        self._sent[id(batch)] = [
            self.oracle.invoked(
                handle,
                value,
                batch.first_seq + i,
                None if producer is None else (producer[0], producer[1] + i),
            )
            for i, value in enumerate(values)
        ]
        self._pending.append(batch)
        self._pump()

    def allows_numbers(self) -> bool:
        """Asks for it, if the log does not say yet that it has producers."""
        core = self.core
        assert core is not None
        core.numbers_asked = True
        self._care()
        return core.seen.meta.producers

    def _pump(self) -> None:
        core = self.core
        if core is None or self._buried:
            return
        while self._pending and core.room():
            batch = self._pending.popleft()
            if core.table_due:
                self.world.points["producers.tabled"] += 1
                self.ledgers.submit(*core.push_table(core.stamp()))
            ledger_id, buffers = core.push(batch)
            self.world.points["append.pushed"] += 1
            self.ledgers.submit(ledger_id, buffers)
        self._care()

    def perform_at_once(self, effect: Effect) -> bool:
        if isinstance(effect, SubmitEntry):
            self._listen(effect.ledger_id)
            self.ledgers.submit(effect.ledger_id, effect.buffers)
            return True
        if isinstance(effect, Release):
            self.after_fact()
            return True
        return False

    def perform(self, effect: Effect, answer: Answered) -> None:
        if isinstance(effect, Drained):
            self._drains.append((effect.ledger_id, answer))
            self._check_drains()
        elif isinstance(effect, CreateLedger):
            super().perform(effect, lambda id_, error: self._created(id_, error, answer))
        else:
            super().perform(effect, answer)

    def _created(self, ledger_id: int | None, error: DlogError | None, answer: Answered) -> None:
        if ledger_id is not None:
            self._listen(ledger_id)
        answer(ledger_id, error)

    def _listen(self, ledger_id: int) -> None:
        self.ledgers.listen(ledger_id, self)

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        core = self.core
        if core is None:
            return
        core.on_confirmed(ledger_id, last_entry)
        if core.unpublished(ledger_id):
            self._publish(ledger_id)
        self.after_fact()

    def _publish(self, ledger_id: int) -> None:
        assert self.core is not None
        if ledger_id not in self.ledgers.held():
            return
        within_ms = visible_within_ms(self.options.visible)
        if within_ms is not None:
            if ledger_id not in self._timers:
                self._timers.add(ledger_id)
                self.after(within_ms, lambda: self._publish_due(ledger_id))
        elif self.ledgers.publish_is_free(ledger_id) or self.core.is_ledger_idle(ledger_id):
            self.ledgers.publish(ledger_id)

    def _publish_due(self, ledger_id: int) -> None:
        self._timers.discard(ledger_id)
        if (
            ledger_id in self.ledgers.held()
            and self.core is not None
            and self.core.unpublished(ledger_id)
        ):
            self.ledgers.publish(ledger_id)

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        if self.core is not None:
            self.core.on_published(ledger_id, last_entry)
            self.after_fact()

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        if self.core is None:
            self._early_failures[ledger_id] = error
            return
        self.core.on_failed(ledger_id, error)
        self.after_fact()

    def after_fact(self) -> None:
        core = self.core
        if core is None:
            return
        if core.seen is not self._seen:
            self._seen = core.seen
            self.oracle.on_seen(self.name, core.seen)
        self.oracle.on_step(self.name, core, self.options.window_entries)
        visible = visible_within_ms(self.options.visible) is None
        for batch in core.take_released():
            self.world.points["append.acked"] += 1
            batch.resolve()
            for i, sent in enumerate(self._sent.pop(id(batch))):
                at = MessageId(batch.ledger_id, batch.entry_id, i)
                self.oracle.acked(sent, at, batch.first_seq + i, visible=visible)
            if batch.producer is not None:
                self.dedup.settle(batch)
                told = self._told.pop(id(batch))
                for i in range(len(batch.values)):
                    told(batch.producer[1] + i)
        self._check_drains()
        if core.state is WriterState.DEAD:
            self._bury()
        self._check_opened()
        self._check_closing()
        if not self._buried:
            self._pump()

    def _check_drains(self) -> None:
        core = self.core
        drains, self._drains = self._drains, []
        for ledger_id, answer in drains:
            assert core is not None
            try:
                if core.drained(ledger_id):
                    # The waiting task is woken in a later turn of the loop.
                    self.after(0.0, partial(answer, None, None))
                    continue
            except DlogError as failed:
                self.after(0.0, partial(answer, None, failed))
                continue
            self._drains.append((ledger_id, answer))

    def _bury(self) -> None:
        if self._buried:
            return
        self._buried = True
        core = self.core
        assert core is not None
        assert core.error is not None
        self.world.note(f"{self.name} is dead: {core.error}")
        self.world.mark("lost" if isinstance(core.error, Fenced) else "died")
        for batch in core.take_unacknowledged():
            self._refuse(batch, core.error, Outcome.UNKNOWN)
        for batch in self._pending:
            self._refuse(batch, core.error, Outcome.NOT_HAPPENED)
        self._pending.clear()
        self._let_all_go()
        self._withdraw()

    def _refuse(self, batch: Batch, error: DlogError, outcome: Outcome) -> None:
        twin = error.again()
        twin.outcome = outcome
        batch.resolve(twin)
        for sent in self._sent.pop(id(batch)):
            self.oracle.refused(sent, twin)

    def _let_all_go(self) -> None:
        for ledger_id in self.ledgers.held():
            self.ledgers.let_go(ledger_id)

    # --- duties

    def ask_rotation(self) -> None:
        self._rotation_asked = True
        self._care()

    def _tick(self) -> None:
        if self._buried or self.is_closed:
            return
        self._pump()
        self.after(TICK_MIN_MS + self.world.chance.delay(TICK_MS), self._tick)

    def _care(self) -> None:
        core = self.core
        if core is None or self._busy or self._sealing:
            return
        resting = self.world.now_ms < self._rest_until_ms
        duty = next_duty(core, rotation_asked=self._rotation_asked, resting=resting)
        if duty is None:
            return
        self._busy = True
        number = core.current.number
        # A task begins in a later turn of the loop.
        self.after(
            0.0,
            lambda: self.run(
                procedure_of(duty, core), lambda _, error: self._fulfilled(duty, number, error)
            ),
        )

    def _fulfilled(self, duty: Duty, number: int, error: DlogError | None) -> None:
        core = self.core
        assert core is not None
        if isinstance(error, Fenced):
            core.die(error)
        elif error is not None:
            self._failures += 1
            rest_ms = 100 + 1000 * backoff_s(self._failures, self, base_s=0.1, limit_s=10)
            self._rest_until_ms = self.world.now_ms + rest_ms
            self.after(rest_ms + 1, self._care)
        else:
            self._failures = 0
            if duty is Duty.ROTATE and core.current.number != number:
                self.world.mark("rotated")
                self._rotation_asked = False
            if duty is Duty.HEAL and core.state is WriterState.OPEN:
                self.world.mark("healed")
        self._busy = False
        live = {pipe.ledger_id for pipe in core.pipes} | {core.spare}
        for ledger_id in [each for each in self.ledgers.held() if each not in live]:
            self.ledgers.let_go(ledger_id)
        self.after_fact()

    # --- the end

    def close(self, ending: Ending = Ending.CLOSE, *, to: str | None = None) -> None:
        if self._closing or self.core is None:
            return
        self._closing = True
        self._ending = ending
        self._hand_over_to = to
        self._pump()
        self._check_closing()

    def _is_busy(self) -> bool:
        core = self.core
        assert core is not None
        if core.state is WriterState.DEAD:
            return False
        if core.state is WriterState.HEALING:
            return True
        return bool(self._pending) or any(pipe.sent for pipe in core.pipes)

    def _check_closing(self) -> None:
        if self._closing and not self._sealing and not self._looking:
            self._looking = True
            self.after(0.0, self._close)  # the waiting task is woken in a later turn, and looks

    def _close(self) -> None:
        core = self.core
        assert core is not None
        self._looking = False
        if self._busy or self._is_busy():
            return  # the next fact makes us look again
        self._sealing = True
        if core.state is WriterState.DEAD:
            self.is_closed = True
            return
        self.run(close(core, self._ending, hand_over_to=self._hand_over_to), self._closed)

    def _closed(self, failure: DlogError | None, error: DlogError | None) -> None:
        if error is not None:
            raise Violation("I24", f"close() raised {error!r} instead of answering it")
        self.after_fact()
        self.error = failure
        self.world.note(f"{self.name} is closed: {failure}")
        if self._ending is Ending.TERMINATE and failure is None:
            self.world.mark("terminated")
        self.world.mark("closed" if failure is None else "close failed")
        self._withdraw(then=self._left)

    def _withdraw(self, *, then: Callable[[], None] = lambda: None) -> None:
        """Goes on until the store took our name away; `then` runs once it was asked."""
        path = LAYOUT.presence(NAME, self._mark.token)
        first = [then]

        def asked() -> None:
            if first:
                first.pop()()

        self.run(withdraw(path, self, asked), lambda _, error: asked())

    def _left(self) -> None:
        self.is_closed = True
        self._let_all_go()

    def abandon(self) -> None:
        if self.core is not None and self.core.state is not WriterState.CLOSED:
            self.core.die(WriterClosed("dropped"))
            self._bury()
