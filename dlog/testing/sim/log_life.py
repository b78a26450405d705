"""Those who work at the other end of a simulated log: who truncates it, holds it, collects what is
gone, and terminates it. The production's procedures; each of these clients may die at any step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from dlog.admin.collect import collect
from dlog.admin.holds import Holding, drop_hold, put_hold
from dlog.admin.summary import Collection, Truncation
from dlog.admin.terminate import terminate
from dlog.admin.truncate import truncate
from dlog.clock import us_datetime
from dlog.effects import DeleteLedger, DeleteNode, Effect, Procedure, ReplaceNode
from dlog.errors import ConfigError, DlogError, NotFound, Truncated, Unsupported
from dlog.ids import MessageId, Position
from dlog.meta.holds import Hold
from dlog.meta.sweep import Site
from dlog.reader.places import EARLIEST, LATEST, Start
from dlog.reader.segments import SegmentView
from dlog.testing.sim.clients import Scene, SimClient
from dlog.testing.sim.log_oracle import LAYOUT, NAME, LogOracle, Sent
from dlog.testing.sim.log_readers import may_be_told
from dlog.testing.sim.log_writers import SimWriter
from dlog.testing.sim.metadata import Answered
from dlog.testing.sim.world import World, require
from dlog.writer.rotation import Ending

AGAIN_MIN_MS, AGAIN_MS = 2.0, 30.0
DAY_US = 24 * 3600 * 1_000_000


class SimWarden(SimClient):
    """Works on the log whose uid it found, and tries again what may be tried again."""

    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(scene, name)
        self.oracle = scene.oracle
        self.view = SegmentView(NAME, LAYOUT)
        self.is_done = False
        self.error: DlogError | None = None

    @property
    def site(self) -> Site:
        return Site(NAME, LAYOUT, self.view.meta.uid, self)

    def work(
        self, work: Callable[[SegmentView], Procedure[Any]], judge: Callable[[str, Any], None]
    ) -> None:
        """`judge` is given the uid of the log that was worked on, and the answer."""
        self.view = view = SegmentView(NAME, LAYOUT)

        def done(answer: Any, error: DlogError | None) -> None:
            if error is None:
                assert view.uid is not None
                self.is_done = True
                judge(view.uid, answer)
                return
            self.error = error
            if isinstance(error, (NotFound, Truncated, ConfigError)):
                self._refused(error)
                return
            honest = may_be_told(self.scene, error)
            require(honest, "I24", self.name, "was told", error)
            self.after(
                AGAIN_MIN_MS + self.world.chance.delay(AGAIN_MS), lambda: self.work(work, judge)
            )

        self.run(work(view), done)

    def _refused(self, error: DlogError) -> None:
        self.is_done = True
        if isinstance(error, Truncated):
            self.world.mark("told that a place to hold was truncated")


class SimTruncator(SimWarden):
    def __init__(self, scene: Scene, name: str, *, force: bool) -> None:
        super().__init__(scene, name)
        self._force = force

    def truncate(self, before: Start) -> None:
        now = self.oracle.now
        uid = None if now is None else now.uid
        acked = self.oracle.acked_seq.get(uid or "", -1)
        self.world.note(f"{self.name} truncates before {before!r}, force: {self._force}")

        def work(view: SegmentView) -> Procedure[Truncation]:
            if self._force:
                yield from view.refresh()
                self.oracle.heads.of(view.uid).forced = True
            return (
                yield from truncate(view, LAYOUT, before, self.now_us(), self, force=self._force)
            )

        def judge(found_uid: str, told: Truncation) -> None:
            self.world.mark("truncations")
            wanted = _seq_of(self.oracle, before, acked) if found_uid == uid else 0
            self.judge(found_uid, told, wanted)

        self.work(work, judge)

    def judge(self, uid: str, told: Truncation, wanted_seq: int) -> None:
        head_seq = self.oracle.heads.head_seq(uid)
        if told.head_seq is not None:
            at_most = told.head_seq <= head_seq
            require(at_most, "I19", "a truncation was told that is not", told, head_seq)
        stopped = [reason for reason in told.reasons if "truncated already" not in reason]
        done = bool(stopped) or head_seq >= wanted_seq
        require(done, "I19", "not truncated, without a reason", told, wanted_seq)

    def _refused(self, error: DlogError) -> None:
        exists = self.oracle.now is not None and not self.oracle.now.is_removed
        told = isinstance(error, (NotFound, ConfigError)) or not exists
        require(told, "I24", self.name, "was told", error)
        super()._refused(error)


def _seq_of(oracle: LogOracle, before: Start, acked: int) -> int:
    if before == LATEST:
        return acked + 1
    if isinstance(before, MessageId):
        return next((s.seq for s in oracle.by_value.values() if s.id == before), 0)
    if isinstance(before, Position):
        return before.next_seq
    return before if isinstance(before, int) else 0


class SimHolder(SimWarden):
    """One consumer's hold: made, moved, dropped."""

    def __init__(self, scene: Scene, name: str, hold: str) -> None:
        super().__init__(scene, name)
        self.hold = hold
        self._dropping = False

    def put(self, at: Start) -> None:
        self.world.note(f"{self.name} holds {at!r}")

        def work(view: SegmentView) -> Procedure[Hold]:
            yield from view.refresh()
            return (yield from put_hold(view, self._holding(view), at))

        def judge(uid: str, hold: Hold) -> None:
            self.world.note(f"{self.name}: held from seq {hold.seq} on")
            if self.oracle.is_current(uid):
                self.oracle.heads.hold_returned(uid, self.hold, hold.seq)

        self.work(work, judge)

    def drop(self) -> None:
        self._dropping = True
        self.world.note(f"{self.name} drops its hold")

        def work(view: SegmentView) -> Procedure[None]:
            yield from view.refresh()
            yield from drop_hold(self._holding(view))

        def judge(uid: str, _: None) -> None:
            self.world.mark("hold dropped")
            self.oracle.heads.hold_is_gone(uid, self.hold)

        self.work(work, judge)

    def _holding(self, view: SegmentView) -> Holding:
        assert view.uid is not None
        site = Site(NAME, LAYOUT, view.uid, self)
        return Holding(site, self.hold, self.name, None, self.now_us)

    def perform(self, effect: Effect, answer: Answered) -> None:
        path = LAYOUT.hold(NAME, self.hold)
        if isinstance(effect, ReplaceNode) and effect.path == path:
            hold = Hold.from_bytes(effect.value, self.hold, where=path)
            self.oracle.heads.hold_moves(hold.log_uid, self.hold, hold.seq)
        elif isinstance(effect, DeleteNode) and effect.path == path and self._dropping:
            self.oracle.heads.hold_goes(self.view.uid or "", self.hold)
        super().perform(effect, answer)


class SimCollector(SimWarden):
    def __init__(self, scene: Scene, name: str, *, ahead_us: int = 0) -> None:
        super().__init__(scene, name)
        self._ahead_us = ahead_us
        self._last_us = 0
        self.found: Collection | None = None

    def now_us(self) -> int:
        self._last_us = super().now_us() + self._ahead_us
        return self._last_us

    def collect(self) -> None:
        def judge(uid: str, found: Collection) -> None:
            self.found = found
            self.world.mark("collected")

        self.work(self._pass, judge)

    def _pass(self, view: SegmentView) -> Procedure[Collection]:
        yield from view.refresh()
        return (yield from collect(view, self.site, self.now_us))

    def perform(self, effect: Effect, answer: Answered) -> None:
        if isinstance(effect, DeleteLedger):
            self.oracle.heads.on_collect(self.name, effect.ledger_id, self._last_us)
        super().perform(effect, answer)


class SimTerminator(SimWriter):
    """Ends the log; where somebody writes, as its next writer."""

    def terminate(self) -> None:
        self.world.note(f"{self.name} terminates the log")
        view = SegmentView(NAME, LAYOUT)

        def work() -> Procedure[bool]:
            meta = yield from view.refresh()
            return (yield from terminate(Site(NAME, LAYOUT, meta.uid, self)))

        def done(answer: bool | None, error: DlogError | None) -> None:
            if answer:
                self.world.mark("terminated")
            elif answer is None or self.core is None:
                known = error is None or may_be_told(self.scene, error)
                require(
                    known or isinstance(error, (NotFound, Unsupported)), "I24", "terminate", error
                )
                if error is None:
                    self.open(self._end, policy="always")

        self.run(work(), done)

    def _end(self) -> None:
        if self.handle is not None:
            self.close(Ending.TERMINATE)


_ENDS = ("seq", "seq", "id", "id", "time", LATEST, "seq of an end", "position")


def some_end(world: World, oracle: LogOracle) -> Start:
    """Somewhere to truncate before."""
    chance, now = world.chance, oracle.now
    here = [
        sent
        for sent in oracle.by_value.values()
        if sent.id is not None and now is not None and sent.handle.uid == now.uid
    ]
    kind = chance.pick(_ENDS, "truncates before")
    if kind == LATEST or not here:
        return LATEST
    chosen: Sent = chance.pick(here, "an acked message")
    assert chosen.id is not None
    if kind == "id":
        return chosen.id
    if kind == "position" and now is not None:
        return Position(now.uid, chosen.seq + 1, chosen.id)
    if kind == "seq of an end" and now is not None:
        ends = [s.sealed.next_seq for s in oracle.listed() if s.sealed is not None]
        return chance.pick(ends, "an end") if ends else LATEST
    if kind == "time" and oracle.delivered:
        message = chance.pick(list(oracle.delivered.values()), "a message that was delivered")
        off_us = chance.pick((0, 0, -1, 1), "microseconds beside it")
        return us_datetime(message.timestamp_us) + timedelta(microseconds=off_us)
    return int(chance.random() * (chosen.seq + 3))


def some_place(world: World, oracle: LogOracle) -> Start:
    """Somewhere to hold."""
    where = some_end(world, oracle)
    return EARLIEST if where == LATEST and world.chance.hits(0.5, "holds from the head") else where
