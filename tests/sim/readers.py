"""A simulated reader: drives `ReaderCore` as `dlog.reader.feed` and `dlog.reader.reader` do, from
any kind of start, and resumes after errors from the position that a user would have kept."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from dlog.clock import us_datetime
from dlog.effects import Deliver, Effect
from dlog.errors import DlogError, NotFound, Retry
from dlog.ids import MessageId, Position
from dlog.options import ReaderOptions
from dlog.reader.core import Bounds, ReaderCore, ReaderState
from dlog.reader.message import Message, MessageBatch
from dlog.reader.places import EARLIEST, LATEST, Start, find_last_id
from dlog.reader.segments import SegmentView
from tests.sim.clients import Answered, SimClient
from tests.sim.ledgers import SimLedgers
from tests.sim.metadata import SimMeta
from tests.sim.oracle import LAYOUT, NAME, Oracle, require
from tests.sim.world import Violation, World

RETRY_MS = 20.0


class SimReader(SimClient):
    """One user's reading: a first start, then on and on, from position to position."""

    def __init__(
        self,
        world: World,
        meta: SimMeta,
        ledgers: SimLedgers,
        oracle: Oracle,
        name: str,
        *,
        follow: bool,
    ) -> None:
        super().__init__(world, meta, ledgers, name)
        self.oracle = oracle
        self.options = ReaderOptions(follow=follow)
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
        self.checks: list[tuple[Start, int, Message]] = []  # first messages, judged at the end

    def begin(self, start: Start) -> None:
        self.start = start
        self._uid_at_start = None if self.oracle.now is None else self.oracle.now.uid
        self._open()

    def _open(self) -> None:
        self._retrying = False
        view = SegmentView(NAME, LAYOUT, self.uid)
        core = self.core = ReaderCore(view, self.options)
        start = self.start if self.position is None else self.position
        now = self.oracle.now
        uid = "" if now is None else now.uid
        self._acked_before = self.oracle.acked_seq.get(uid, -1)
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
        if core.end_seq is not None:
            covers = core.end_seq > self._acked_before
            require(covers, "I1", "a tail is before an ack", core.end_seq, self._acked_before)
        self.run(core.walk(), lambda _, error: self._walked(core, error))

    def _walked(self, core: ReaderCore, error: DlogError | None) -> None:
        if core is not self.core:
            return
        if error is not None:
            self._failed(error)
            return
        require(not self.options.follow, "I17", "a following reader came to an end")
        self.world.mark("bounded read")
        self.ended = True
        require(
            core.place.seq is None or core.place.seq > self._acked_before,
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
        elif error.retry is not Retry.NOW:
            raise Violation(f"I17: {self.name} was told {error!r}")
        self._retrying = True
        self.after(self.world.delay(RETRY_MS), self._open)

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
        for batch in batches:
            messages = batch.to_pylist()
            taken = len(messages)
            leaves = not self.world.is_calm and self.world.chance.random() < 0.05
            if leaves:  # the user stops inside a batch, and comes back with the position kept
                taken = self.world.chance.randint(1, taken)
            for message in messages[:taken]:
                self._one(message)
            self.position = batch.position_after(self.uid, taken)
            if leaves:
                self.world.mark("resumed")
                self.core = None
                self.after(self.world.delay(RETRY_MS), self._open)
                return
        self.after(self.world.delay(1.0), lambda: answer(None, None))

    def _one(self, message: Message) -> None:
        assert self.uid is not None
        self.oracle.on_delivered(self.name, self.uid, message)
        if self.next_seq is None:
            self.checks.append((self.start, self._acked_before, message))
        else:
            exact = message.seq == self.next_seq
            require(exact, "I17", "not what follows", self.name, self.next_seq, message)
        self.next_seq = message.seq + 1

    def check_start(self, log: list[Message]) -> None:
        """Was the first message delivered the one that was asked for?"""
        for start, acked_before, first in self.checks:
            require(_starts_at(start, acked_before, first, log), "I17", "a start", start, first)

    def caught_up(self, log: list[Message]) -> bool:
        if not self.alive or self.ended or self.gone:
            return True
        core = self.core
        if core is None or self._retrying or core.state is not ReaderState.CROSSING:
            return False
        return core.place.seq == len(log)


def _starts_at(start: Start, acked_before: int, first: Message, log: list[Message]) -> bool:
    if start == EARLIEST:
        return first.seq == 0
    if start == LATEST:
        return first.seq > acked_before
    if isinstance(start, MessageId):
        return first.id == start
    if isinstance(start, int):
        return first.seq == start or acked_before < first.seq < start
    assert not isinstance(start, (str, Position))
    if first.seq > acked_before:
        return True  # at the tail of that time
    at = us_datetime(first.timestamp_us)
    before = None if first.seq == 0 else us_datetime(log[first.seq - 1].timestamp_us)
    return at >= start and (before is None or before < start)


def some_start(world: World, oracle: Oracle) -> Start:
    """Any kind of start that makes sense now."""
    acked = [s for s in oracle.by_value.values() if s.id is not None]
    now = oracle.now
    here = [s for s in acked if now is not None and s.handle.uid == now.uid]
    visible = [s for s in here if s.seq <= oracle.acked_seq.get(s.handle.uid, -1)]
    kind = world.chance.randrange(6)
    if kind == 0:
        return LATEST
    if kind == 1:
        return world.chance.randrange(0, 2 * len(here) + 2)
    if visible and kind == 2:
        found = world.chance.choice(visible).id
        assert found is not None
        return found
    if oracle.delivered and kind == 3:
        message = world.chance.choice(list(oracle.delivered.values()))
        return us_datetime(message.timestamp_us) + timedelta(
            microseconds=world.chance.choice((-1, 0, 1))
        )
    return EARLIEST


class SimProber(SimClient):
    """Asks for the tail, and for a description, now and then: both behind all that was acked."""

    def __init__(
        self, world: World, meta: SimMeta, ledgers: SimLedgers, oracle: Oracle, name: str
    ) -> None:
        super().__init__(world, meta, ledgers, name)
        self.oracle = oracle

    def ask(self, procedure: Callable[[SegmentView], Any], judge: Callable[[Any], None]) -> None:
        view = SegmentView(NAME, LAYOUT)
        now = self.oracle.now
        uid = None if now is None else now.uid

        def done(answer: Any, error: DlogError | None) -> None:
            if error is None and view.uid == uid:
                judge(answer)
            elif error is not None and error.retry is not Retry.NOW:
                known = isinstance(error, NotFound)
                require(known, "I17", "a question was answered by", error)

        self.run(procedure(view), done)

    def ask_tail(self) -> None:
        now = self.oracle.now
        before = None if now is None else self.oracle.tail_id.get(now.uid)

        def judge(found: MessageId | None) -> None:
            self.world.mark("tail asked")
            if before is not None:
                behind = found is not None and found >= before
                require(behind, "I17", "a tail is before an ack", found, before)

        self.ask(_tail, judge)


def _tail(view: SegmentView) -> Any:
    yield from view.refresh()
    return (yield from find_last_id(view))
