"""A simulated writer: drives the production procedures and `WriterCore` exactly as
`dlog.writer.engine` does, turn by turn: entries are handed over and releases told at once; every
other effect is answered when the world gets to it. One duty runs at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

from dlog.chance import backoff_s
from dlog.effects import (
    CreateLedger,
    DeleteNode,
    Drained,
    Effect,
    Procedure,
    ReadNode,
    Release,
    SubmitEntry,
)
from dlog.errors import DlogError, Fenced, NotFound, Outcome, WriterClosed
from dlog.ids import MessageId
from dlog.meta.log_meta import WriterMark
from dlog.options import LogOptions, Takeover, WriterOptions, visible_within_ms
from dlog.writer.batch import Batch
from dlog.writer.core import Identity, WriterCore, WriterState
from dlog.writer.duties import Duty, next_duty, procedure_of
from dlog.writer.policy import Advice
from dlog.writer.rotation import begin, close
from dlog.writer.takeover import Opened, Opening, take_over
from tests.sim.clients import Answered, SimClient
from tests.sim.ledgers import SimLedgers
from tests.sim.metadata import SimMeta
from tests.sim.oracle import LAYOUT, NAME, Handle, Oracle, Sent
from tests.sim.world import Violation, World

TICK_MS = 40.0


class RandomPolicy:
    """Rotation advice by chance: safety may not depend on it."""

    def __init__(self, world: World) -> None:
        self._world = world

    def advise(self, *, segment_bytes: int, entries: int, age_s: float) -> Advice:
        world = self._world
        every = world.weather.rotate_every
        if world.strikes(world.weather.wait_often):
            return Advice.WAIT
        if every is None or world.is_calm:
            return Advice.STAY
        if entries >= every + 1:
            return Advice.ROTATE
        return Advice.PREPARE if world.chance.random() < 0.2 else Advice.STAY


class SimWriter(SimClient):
    def __init__(
        self, world: World, meta: SimMeta, ledgers: SimLedgers, oracle: Oracle, name: str
    ) -> None:
        super().__init__(world, meta, ledgers, name)
        weather = world.weather
        self.oracle = oracle
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
        self._pending: deque[Batch] = deque()
        self._sent: dict[int, list[Sent]] = {}  # by batch
        self._opening_ledger: int | None = None
        self._drains: list[tuple[int, Answered]] = []
        self._busy = False  # a duty runs
        self._buried = False
        self._rotation_asked = False
        self._rest_until_ms = 0.0
        self._failures = 0
        self._closing = False
        self._sealing = False
        self._looking = False
        self._hand_over_to: str | None = None
        self._timers: set[int] = set()
        self._then: Callable[[], None] = lambda: None

    # --- opening

    def open(self, then: Callable[[], None] = lambda: None, *, policy: str | None = None) -> None:
        """`then` runs once the open has returned, with `handle` set, or `error`."""
        self._then = then
        opening = Opening(
            NAME,
            LAYOUT,
            self._mark,
            cast(Takeover, policy or self.options.takeover),
            LogOptions(ensemble=1, write_quorum=1, ack_quorum=1),
            self.token(),
            self.now_us,
            self,
        )
        self.run(take_over(opening), self._taken_over)

    def _taken_over(self, opened: Opened | None, error: DlogError | None) -> None:
        if opened is None:
            self._open_failed(error)
            return
        identity = Identity(NAME, self._mark.token, LAYOUT, self.now_us, self.now_s, self)
        self.core = WriterCore(identity, opened, self.options, policy=RandomPolicy(self.world))
        self._opening_ledger = opened.ledger_id
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
            self._then()

    # --- messages

    @property
    def takes_messages(self) -> bool:
        return self.handle is not None and not self._closing and not self._buried

    def submit(self, count: int) -> None:
        handle = self.handle
        assert handle is not None
        values = [f"{self.name}.{len(handle.sent) + i}".encode() for i in range(count)]
        batch = Batch(list(values), sum(map(len, values)))
        self._sent[id(batch)] = [self.oracle.invoked(handle, value) for value in values]
        self._pending.append(batch)
        self._pump()

    def _pump(self) -> None:
        core = self.core
        if core is None or self._buried:
            return
        while self._pending and core.room():
            batch = self._pending.popleft()
            ledger_id, buffers = core.push(batch)
            self.world.points["append.pushed"] += 1
            self.appenders[ledger_id].submit(buffers)
        self._care()

    def perform_at_once(self, effect: Effect) -> bool:
        if isinstance(effect, SubmitEntry):
            self._listen(effect.ledger_id)
            self.appenders[effect.ledger_id].submit(effect.buffers)
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
        self.appenders[ledger_id].listener = self

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        core = self.core
        if core is None:
            return
        core.on_confirmed(ledger_id, last_entry)
        if core.unpublished(ledger_id):
            self._publish(ledger_id)
        self.after_fact()

    def _publish(self, ledger_id: int) -> None:
        appender = self.appenders.get(ledger_id)
        assert self.core is not None
        if appender is None:
            return
        within_ms = visible_within_ms(self.options.visible)
        if within_ms is not None:
            if ledger_id not in self._timers:
                self._timers.add(ledger_id)
                self.after(within_ms, lambda: self._publish_due(ledger_id))
        elif appender.publish_is_free or self.core.is_ledger_idle(ledger_id):
            appender.publish()

    def _publish_due(self, ledger_id: int) -> None:
        self._timers.discard(ledger_id)
        appender = self.appenders.get(ledger_id)
        if appender is not None and self.core is not None and self.core.unpublished(ledger_id):
            appender.publish()

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        if self.core is not None:
            self.core.on_published(ledger_id, last_entry)
            self.after_fact()

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        if self.core is not None:
            self.core.on_failed(ledger_id, error)
            self.after_fact()

    def after_fact(self) -> None:
        core = self.core
        if core is None:
            return
        visible = visible_within_ms(self.options.visible) is None
        for batch in core.take_released():
            self.world.points["append.acked"] += 1
            batch.resolve()
            for i, sent in enumerate(self._sent.pop(id(batch))):
                at = MessageId(batch.ledger_id, batch.entry_id, i)
                self.oracle.acked(sent, at, batch.first_seq + i, visible=visible)
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
                    self.after(0.0, lambda answer=answer: answer(None, None))
                    continue
            except DlogError as failed:
                self.after(0.0, lambda answer=answer, error=failed: answer(None, error))
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

    def _refuse(self, batch: Batch, error: DlogError, outcome: Outcome) -> None:
        twin = error.again()
        twin.outcome = outcome
        batch.resolve(twin)
        for sent in self._sent.pop(id(batch)):
            self.oracle.refused(sent, twin)

    def _let_all_go(self) -> None:
        for ledger_id in list(self.appenders):
            self.let_go(ledger_id)

    # --- duties

    def ask_rotation(self) -> None:
        self._rotation_asked = True
        self._care()

    def _tick(self) -> None:
        if self._buried or self.is_closed:
            return
        self._pump()
        self.after(self.world.delay(TICK_MS), self._tick)

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
        for ledger_id in [each for each in self.appenders if each not in live]:
            self.let_go(ledger_id)
        self.after_fact()

    # --- the end

    def close(self, *, to: str | None = None) -> None:
        if self._closing or self.core is None:
            return
        self._closing = True
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
        self.run(close(core, hand_over_to=self._hand_over_to), self._closed)

    def _closed(self, failure: DlogError | None, error: DlogError | None) -> None:
        if error is not None:
            raise Violation(f"close() raised {error!r} instead of answering it")
        self.after_fact()
        self.error = failure
        self.world.note(f"{self.name} is closed: {failure}")
        self.world.mark("closed" if failure is None else "close failed")
        self.run(_leave(LAYOUT.presence(NAME, self._mark.token)), self._left)

    def _left(self, _: Any, error: DlogError | None) -> None:
        self.is_closed = True
        self._let_all_go()

    def abandon(self) -> None:
        if self.core is not None and self.core.state is not WriterState.CLOSED:
            self.core.die(WriterClosed("dropped"))
            self._bury()


def _leave(path: str) -> Procedure[None]:
    try:
        present = yield ReadNode(path)
        yield DeleteNode(path, present.version)
    except NotFound:
        return
