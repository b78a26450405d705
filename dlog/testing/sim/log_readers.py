"""A simulated reader: drives `ReaderCore` as `dlog.reader.feed` and `dlog.reader.reader` do, from
any kind of start, and resumes after errors from the position that a user would have kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dlog.clock import us_datetime
from dlog.effects import Deliver, Effect
from dlog.errors import Corrupt, DlogError, NotFound, Retry, Truncated
from dlog.ids import MessageId, Position
from dlog.meta.listed import Point
from dlog.meta.log_meta import LogState
from dlog.options import ReaderOptions, TailMode
from dlog.reader.core import Bounds, ReaderCore, ReaderState
from dlog.reader.message import Message, MessageBatch
from dlog.reader.places import EARLIEST, LATEST, Start, find_last_id
from dlog.reader.segments import SegmentView
from dlog.testing.sim.clients import Scene, SimClient
from dlog.testing.sim.log_oracle import LAYOUT, NAME, NO_POINT, LogOracle
from dlog.testing.sim.metadata import Answered
from dlog.testing.sim.world import Violation, World, require

RETRY_MIN_MS, RETRY_MS = 1.0, 20.0
TURN_MS = 0.05  # of a delivery


class SimReader(SimClient):
    """One user's reading: a first start, then on and on, from position to position."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        *,
        follow: bool,
        tail: TailMode = "normal",
        jumps: bool = False,
    ) -> None:
        super().__init__(scene, name)
        self.oracle = scene.oracle
        self.options = ReaderOptions(
            follow=follow, tail=tail, on_truncated="jump" if jumps else "raise"
        )
        self.start: Start = EARLIEST
        self.uid: str | None = None
        self.next_seq: int | None = None  # what must come next; None before the first message
        self.position: Position | None = None
        self.ended = False
        self.gone = False  # the log was removed
        self.core: ReaderCore | None = None
        self._acked_before = -1
        self._uid_at_start: str | None = None
        self._retrying = False
        self._head_before = 0
        self.checks: list[FirstMessage] = []  # judged at the end

    def begin(self, start: Start) -> None:
        self.start = start
        self._uid_at_start = None if self.oracle.now is None else self.oracle.now.uid
        self._open()

    def _open(self) -> None:
        self._retrying = False
        view = SegmentView(NAME, LAYOUT, self.uid, tail=self.options.tail)
        core = self.core = ReaderCore(view, self.options)
        start = self.start if self.position is None else self.position
        now = self.oracle.now
        uid = "" if now is None else now.uid
        self._acked_before = self.oracle.acked_seq.get(uid, -1)
        self._head_before = self.oracle.heads.head_seq(uid)
        self.run(core.find(Bounds(start, None)), lambda _, error: self._found(core, uid, error))

    def _found(self, core: ReaderCore, uid: str, error: DlogError | None) -> None:
        if core is not self.core:
            return
        if error is not None:
            self._failed(error)
            return
        self.uid = core.view.uid
        if uid != self.uid:  # removed and made anew while we looked: another log
            self._acked_before = -1
            self._head_before = 0
        if core.end_seq is not None and self.oracle.is_current(uid):  # else removed meanwhile
            covers = core.end_seq > self._acked_before
            require(covers, "I1", "a tail is before an ack", core.end_seq, self._acked_before)
        self.run(core.walk(), lambda _, error: self._walked(core, error))

    def _walked(self, core: ReaderCore, error: DlogError | None) -> None:
        if core is not self.core:
            return
        if error is not None:
            self._failed(error)
            return
        is_over = core.view.meta.state is LogState.TERMINATED
        require(is_over or not self.options.follow, "I17", "a following reader came to an end")
        self.world.mark("bounded read")
        self.ended = True
        is_there = self.uid is not None and self.oracle.is_current(self.uid)
        require(
            core.place.seq is None or core.place.seq > self._acked_before or not is_there,
            "I1",
            "a bounded read ended before an ack",
            core.place,
            self._acked_before,
        )

    def _failed(self, error: DlogError) -> None:
        log = self.oracle.now
        exists = log is not None and self.oracle.is_current(log.uid)
        if self._started_in_another_log():
            self.gone = True  # a place of a log that was removed says nothing here
            return
        if isinstance(error, NotFound):
            if self.uid is not None and (not exists or log is None or log.uid != self.uid):
                self.gone = True
                return
            wrong = exists and (self.uid is not None or isinstance(self.start, MessageId))
            require(not wrong, "I17", "NotFound of what is there", self.start, error)
        elif isinstance(error, Truncated):
            self._truncated(error)
        elif not may_be_told(self.scene, error):
            raise Violation("I17", f"{self.name} was told {error!r}")
        self._retrying = True
        self.after(RETRY_MIN_MS + self.world.chance.delay(RETRY_MS), self._open)

    def _truncated(self, error: Truncated) -> None:
        """It is true, and the user goes on at the new head."""
        head_seq = self.oracle.heads.head_seq(self.uid) if self.uid is not None else None
        if self.uid is None:  # told before anything was found
            now = self.oracle.now
            head_seq = 0 if now is None else self.oracle.heads.head_seq(now.uid)
        assert head_seq is not None
        honest = 0 < error.new_head <= head_seq
        if self.next_seq is not None:
            honest = honest and self.next_seq < error.new_head
        require(honest, "I18", "told of a truncation", self.name, self.next_seq, error, head_seq)
        require(self.options.on_truncated == "raise", "I18", "who jumps was told", error)
        self.world.mark("a reader was told that its place was truncated")
        self.start, self.position, self.next_seq = EARLIEST, None, None

    def _started_in_another_log(self) -> bool:
        now = self.oracle.now
        return now is not None and now.uid != self._uid_at_start and self.position is None

    # --- deliveries

    def perform(self, effect: Effect, answer: Answered) -> None:
        if isinstance(effect, Deliver):
            self._take(list(effect.batches), answer)
        else:
            super().perform(effect, answer)

    def _take(self, batches: list[MessageBatch], answer: Answered) -> None:
        assert self.uid is not None
        assert self.core is not None
        point = self.core.view.meta.truncate_before
        for batch in batches:
            messages = batch.to_pylist()
            taken = len(messages)
            leaves = self.world.strikes(self.weather.leaves, "a reader leaves")
            if leaves:  # the user stops inside a batch, and comes back with the position kept
                taken -= int(self.world.chance.random() * taken)
            for message in messages[:taken]:
                self._one(message, point)
            self.position = batch.position_after(self.uid, taken)
            if leaves:
                self.world.mark("resumed")
                self.core = None
                self.after(RETRY_MIN_MS + self.world.chance.delay(RETRY_MS), self._open)
                return
        self.after(TURN_MS + self.world.chance.delay(1.0), lambda: answer(None, None))

    def _one(self, message: Message, point: Point = NO_POINT) -> None:
        assert self.uid is not None
        self.oracle.on_delivered(self.name, self.uid, message, point)
        head_seq = self.oracle.heads.head_seq(self.uid)
        jumps = self.options.on_truncated == "jump"
        if self.next_seq is None:
            first = FirstMessage(
                self.start, self._acked_before, self._head_before, head_seq, jumps, message
            )
            self.checks.append(first)
        elif jumps and message.seq > self.next_seq:
            self.world.mark("a reader jumped")
            at_most = message.seq <= head_seq
            require(at_most, "I18", "skipped", self.name, self.next_seq, message, head_seq)
        else:
            exact = message.seq == self.next_seq
            require(exact, "I17", "not what follows", self.name, self.next_seq, message)
        self.next_seq = message.seq + 1

    def check_start(self, log: list[Message]) -> None:
        """Was the first message delivered the one that was asked for?"""
        for first in self.checks:
            require(first.is_right(log), "I17", "a start", first)

    def caught_up(self, log: list[Message]) -> bool:
        if not self.alive or self.ended or self.gone:
            return True
        core = self.core
        if core is None or self._retrying or core.state is not ReaderState.CROSSING:
            return False
        end_seq = log[-1].seq + 1 if log else self.oracle.heads.head_seq(self.uid)
        # Who waits for a seq that is still to come need not go where nothing is left.
        return core.place.seq == end_seq or core.first_seq > end_seq


@dataclass(frozen=True, slots=True)
class FirstMessage:
    """Where a reading was to start, what was so before it began and when the message came."""

    start: Start
    acked_before: int
    head_before: int
    head_then: int
    jumps: bool
    first: Message

    def is_right(self, log: list[Message]) -> bool:
        first = self.first
        if self.start == EARLIEST or (self.jumps and first.seq > self.head_before):
            at_head = self.head_before <= first.seq <= self.head_then
            if at_head or self.start == EARLIEST:
                return at_head
        return _starts_at(self.start, self.acked_before, first, log) or (
            self.jumps and first.seq == self.head_before
        )


def _starts_at(start: Start, acked_before: int, first: Message, log: list[Message]) -> bool:
    if start == LATEST:
        return first.seq > acked_before
    if isinstance(start, MessageId):
        return first.id == start
    if isinstance(start, int):
        return first.seq == start
    assert not isinstance(start, (str, Position))
    if first.seq > acked_before:
        return True  # at the tail of that time
    at = us_datetime(first.timestamp_us)
    index = first.seq - log[0].seq if log else 0
    before = us_datetime(log[index - 1].timestamp_us) if 0 < index <= len(log) else None
    return at >= start and (before is None or before < start)


def tail_of(weather: str, number: int) -> TailMode:
    """How the reader or question of this number believes."""
    strict = weather == "strict" or (weather == "mixed" and number % 2 == 1)
    return "strict" if strict else "normal"


def may_be_told(scene: Scene, error: DlogError) -> bool:
    """Something to try again; or that all copies came back damaged, where bookies do that."""
    damaged = isinstance(error, Corrupt) and scene.ledgers.damages_entries
    damage = scene.oracle.damage
    told = damage is not None and damage.may_be_told(error)
    return damaged or told or error.retry is Retry.NOW


_STARTS = ("earliest", "earliest", "latest", "seq", "id", "time")


def some_start(world: World, oracle: LogOracle) -> Start:
    """Any kind of start that makes sense now."""
    chance = world.chance
    acked = [s for s in oracle.by_value.values() if s.id is not None]
    now = oracle.now
    here = [s for s in acked if now is not None and s.handle.uid == now.uid]
    visible = [s for s in here if s.seq <= oracle.acked_seq.get(s.handle.uid, -1)]
    kind = chance.pick(_STARTS, "a reader starts at")
    if kind == "latest":
        return LATEST
    if kind == "seq":
        return int(chance.random() * (2 * len(here) + 2))
    if visible and kind == "id":
        found = chance.pick(visible, "an acked message").id
        assert found is not None
        return found
    if oracle.delivered and kind == "time":
        message = chance.pick(list(oracle.delivered.values()), "a message that was delivered")
        off_us = chance.pick((0, -1, 1), "microseconds beside it")
        return us_datetime(message.timestamp_us) + timedelta(microseconds=off_us)
    return EARLIEST


class SimProber(SimClient):
    """Asks for the tail, and for a description, now and then: both behind all that was acked."""

    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(scene, name)
        self.oracle = scene.oracle
        self._asked = 0

    def ask(self, procedure: Callable[[SegmentView], Any], judge: Callable[[Any], None]) -> None:
        self._asked += 1
        view = SegmentView(NAME, LAYOUT, tail=tail_of(self.weather.tail, self._asked))
        now = self.oracle.now
        uid = None if now is None else now.uid

        def done(answer: Any, error: DlogError | None) -> None:
            if error is None and view.uid == uid:
                if uid is not None and self.oracle.is_current(uid):  # else it was removed meanwhile
                    judge(answer)
            elif error is not None and not isinstance(error, NotFound):
                honest = may_be_told(self.scene, error)
                require(honest, "I17", "a question was answered by", error)

        self.run(procedure(view), done)

    def ask_tail(self) -> None:
        now = self.oracle.now
        before = None if now is None else self.oracle.tail_id.get(now.uid)
        seq = -1 if now is None else self.oracle.acked_seq.get(now.uid, -1)

        def judge(found: MessageId | None) -> None:
            self.world.mark("tail asked")
            assert now is not None
            if before is not None and not self.oracle.heads.is_truncated(now.uid, seq):
                behind = found is not None and found >= before
                require(behind, "I17", "a tail is before an ack", found, before)

        self.ask(_tail, judge)


def _tail(view: SegmentView) -> Any:
    yield from view.refresh()
    return (yield from find_last_id(view))
