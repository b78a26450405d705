"""The core of one worker at a desk: each errand is answered as a test says, at once or never, and
each moment at which something happens is looked at."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from dlog.errors import Conflict, DlogError, LeaseLost, Unavailable
from dlog.groups import asks
from dlog.groups.consumer import StopReason
from dlog.groups.core import WorkerCore
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.membership import GroupOptions
from dlog.groups.presence import Rung, SeenWorker
from dlog.groups.shards import GroupShard
from dlog.groups.store import Held
from dlog.groups.view import WorkerId
from dlog.groups.workers import WorkerNode
from dlog.ids import Position

ME, ANA, BOB = WorkerId("me", "5" * 32), WorkerId("ana", "1" * 32), WorkerId("bob", "2" * 32)
TIMEOUT_S = 48.0
RENEW_S, RETRY_S, REPLAN_S = 16.0, 3.0, 96.0
NEVER = object()  # no answer
AWAY = Unavailable("the store is away")


def at(seq: int) -> Checkpoint:
    return Checkpoint(Position("u", seq, None))


class Desk:
    """Others renew all the time. What is taken is ours at once, unless `answers` has another answer
    for that kind of errand: a value, an error, `NEVER`, or a function of the errand."""

    def __init__(
        self, shards: str = "a", others: dict[WorkerId, str] | None = None, **options: Any
    ):
        options = {"timeout_s": TIMEOUT_S, "force_s": None, "flush_s": 1000.0, **options}
        self.core = WorkerCore(ME, 0.0, options=GroupOptions(**options))
        self.shards = [GroupShard(name) for name in shards]
        self.others = others or {}
        self.answers: dict[type, Any] = {}
        self.told: list[tuple[float, Any]] = []
        self.now_s = 0.0
        self.is_named = False

    def run(self, until_s: float) -> None:
        while (due_s := self.core.wakes_at_s(self.now_s)) <= until_s:
            assert len(self.told) < 5_000, "it never rests"
            self.now_s = max(self.now_s, due_s)
            self.core.on_time(self.now_s)
            self.pump()
        self.now_s = until_s

    def pump(self) -> None:
        while effects := self.core.take():
            for effect in effects:
                self.told.append((self.now_s, effect))
                if isinstance(effect, asks.Ask):
                    self._answer(effect)
                else:
                    self._obey(effect)

    def _answer(self, ask: Any) -> None:
        answer = self.answers.get(type(ask), self)
        if callable(answer):
            answer = answer(ask)
        if answer is NEVER:
            return
        error = answer if isinstance(answer, DlogError) else None
        if answer is self:
            answer = self._usual(ask)
        self.core.answered(ask, None if error else answer, error, self.now_s)

    def _usual(self, ask: Any) -> Any:
        match ask:
            case asks.Register():
                return SeenWorker(WorkerNode(ME), 1)
            case asks.Renew(counter=counter, holds=holds, coming=coming):
                return SeenWorker(WorkerNode(ME, counter, None, (), holds, coming), counter + 1)
            case asks.LookAtWorker(worker=worker):
                return self._other(worker) if worker in self.others else None
            case asks.ReadGroup():
                return self.shards, {each: self._other(each) for each in self.others}
            case asks.Take(shard=shard):
                return Held(Lease(shard, 1, ME, ME, at(3)), 1, 1)
            case asks.Look(shard=shard):
                return Held(Lease(shard), -1, 0)
            case asks.Save(held=held) | asks.Prove(held=held):
                return held
            case asks.Ring():
                return Rung.HEARD
        return None

    def _other(self, worker: WorkerId) -> SeenWorker:
        node = WorkerNode(worker, 1 + int(self.now_s * 8), holds=tuple(self.others[worker]))
        return SeenWorker(node, 1)

    def _obey(self, order: Any) -> None:
        """A program that does at once what it is told."""
        match order:
            case asks.StartShard(shard=shard):
                self.core.on_initialized(shard, self.now_s)
            case asks.StopFetch(shard=shard):
                self.core.on_work_finished(shard, self.now_s)
            case asks.Shutdown(shard=shard):
                self.core.on_shut_down(shard, self.now_s)

    def of(self, kind: type, since_s: float = -1.0) -> list[Any]:
        return [what for at_s, what in self.told if isinstance(what, kind) and at_s > since_s]

    def times(self, kind: type, since_s: float = -1.0) -> list[float]:
        return [at_s for at_s, what in self.told if isinstance(what, kind) and at_s > since_s]

    def checkpoint(self, seq: int, *, at_once: bool = True) -> None:
        self.core.on_delivered("a", at(seq).position)
        self.core.on_checkpoint("a", 1, at(seq), at_once=at_once, now_s=self.now_s)
        self.pump()

    def leave(self) -> None:
        self.core.ask_leave(self.now_s)
        self.pump()


def owning(**options: Any) -> Desk:
    """A worker that has shard a, at 10 s."""
    desk = Desk(**options)
    desk.run(10.0)
    assert list(desk.core.consumers) == ["a"]
    return desk


# --- hand-overs


def handed(ask: asks.Take, victim: WorkerId = ANA) -> Lease:
    return Lease(ask.shard, 4, ME, victim)


@pytest.mark.parametrize("force_s", [None, 0.0, 20.0, 40.0])
def test_a_victim_is_fenced_when_it_had_its_time_and_not_before(force_s: float | None) -> None:
    """It counts from when we were announced, and each look asks again."""
    desk = Desk("ab", {ANA: "ab"}, force_s=force_s)
    desk.answers[asks.Take] = handed
    desk.run(120.0)
    first, *later = [(at_s, ask) for at_s, ask in desk.told if isinstance(ask, asks.Take)]
    assert (first[1].victim, first[1].over, first[1].is_announced) == (ANA, None, False)
    assert len(later) >= 5
    for (at_s, ask), before_s in zip(later, [first[0], *(s for s, _ in later)], strict=False):
        assert at_s == before_s + RENEW_S
        assert ask.shard == first[1].shard
        assert ask.is_announced
        is_late = force_s is not None and at_s >= first[0] + force_s
        assert ask.over == (ANA if is_late else None)


def test_the_time_of_a_victim_that_came_later_counts_from_then() -> None:
    """The shard went from one to another behind our back: the second has all of its time, too."""
    desk = Desk("ab", {ANA: "ab"}, force_s=40.0)
    victims = iter([ANA, ANA, BOB])
    desk.answers[asks.Take] = lambda ask: handed(ask, next(victims, BOB))
    desk.run(120.0)
    takes = [(at_s, ask) for at_s, ask in desk.told if isinstance(ask, asks.Take)]
    begun_s = takes[2][0]
    assert [ask.victim for _, ask in takes[:4]] == [ANA, ANA, ANA, BOB]
    for at_s, ask in takes[3:]:
        assert ask.over == (BOB if at_s >= begun_s + 40.0 else None)
    assert takes[-1][1].over == BOB


def test_a_shard_that_comes_is_looked_at_at_once_when_somebody_says_so() -> None:
    desk = Desk("ab", {ANA: "ab"})
    desk.answers[asks.Take] = handed
    desk.run(10.0)
    (shard,) = desk.core.coming
    desk.core.hint_shard(shard, desk.now_s)
    desk.pump()
    assert desk.times(asks.Take)[-1] == 10.0
    before = len(desk.told)
    desk.core.hint_shard("another", desk.now_s)
    desk.pump()
    assert len(desk.told) == before


def test_a_victim_that_died_is_looked_at_at_once() -> None:
    desk = Desk("ab", {ANA: "ab"})
    desk.answers[asks.Take] = handed
    desk.run(4.0)
    desk.answers[asks.Take] = NEVER
    del desk.others[ANA]
    desk.core.hint_worker(ANA, 5.0)
    desk.now_s = 5.0
    desk.pump()
    desk.run(5.0)
    assert 5.0 in desk.times(asks.Take)


@pytest.mark.parametrize(
    ("answer", "after_s"),
    [(AWAY, RETRY_S), (handed, RENEW_S), (Conflict("somebody else's"), None)],
)
def test_a_take_that_came_to_nothing_is_tried_again_in_its_time(
    answer: Any, after_s: float | None
) -> None:
    """While the store is away soon, while it is handed over with the renewals; and where it is
    somebody else's, not before the next plan says so."""
    desk = Desk("ab", {ANA: "ab"})
    desk.answers[asks.Take] = handed
    desk.run(10.0)
    (first_s,) = desk.times(asks.Take)
    desk.answers[asks.Take] = answer
    desk.run(first_s + RENEW_S)
    assert desk.times(asks.Take)[-1] == first_s + RENEW_S
    plans = len(desk.of(asks.ReadGroup))
    desk.run(first_s + RENEW_S + (after_s or RETRY_S))
    takes = desk.of(asks.Take, first_s + RENEW_S)
    if after_s is not None:
        assert [each.is_announced for each in takes] == [True]
        assert list(desk.core.coming) == [takes[0].shard]
    else:
        assert desk.core.coming.keys() <= {each.shard for each in takes}
        assert all(not each.is_announced for each in takes)
        assert len(desk.of(asks.ReadGroup)) == plans + 1


def test_only_so_many_shards_move_at_a_time() -> None:
    """And the rest follow as soon as one of them is there."""
    desk = Desk("abcdefghij", moves_at_once=3)
    waiting: list[asks.Take] = []

    def later(ask: asks.Take) -> object:
        waiting.append(ask)
        return NEVER

    desk.answers[asks.Take] = later
    desk.run(10.0)
    assert len(waiting) == 3
    for number in range(10):
        ask = waiting[number]
        desk.core.answered(ask, desk._usual(ask), None, desk.now_s)
        desk.pump()
        assert len(waiting) == min(10, number + 4)
    assert len(desk.core.consumers) == 10


# --- what is written of a shard


def test_a_save_is_tried_again_until_it_is_kept() -> None:
    """With the newest by then, and not before its time."""
    desk = owning()
    desk.answers[asks.Save] = AWAY
    desk.checkpoint(5)
    assert desk.times(asks.Save) == [10.0]
    desk.checkpoint(6, at_once=False)
    desk.run(20.0)
    assert desk.times(asks.Save) == [10.0, 13.0, 16.0, 19.0]
    del desk.answers[asks.Save]
    desk.run(30.0)
    assert desk.times(asks.Save)[4:] == [22.0]
    assert [each.checkpoint for each in desk.of(asks.Save)] == [at(5), *[at(6)] * 4]
    (saved,) = desk.of(asks.Saved)
    assert (saved.checkpoint, saved.error) == (at(6), None)


@pytest.mark.parametrize("error", [LeaseLost("gone"), Conflict("gone")])
def test_a_save_that_is_refused_ends_the_shard(error: DlogError) -> None:
    desk = owning()
    desk.answers[asks.Save] = error
    desk.checkpoint(5)
    assert len(desk.of(asks.Save)) == 2, "once more behind its program: nobody may have it yet"
    for saved in desk.of(asks.Saved):
        assert (saved.checkpoint, saved.error) == (at(5), error)
    (shutdown,) = desk.of(asks.Shutdown)
    assert shutdown.reason is StopReason.LOST
    (stopped,) = desk.of(asks.ShardStopped)
    assert stopped.reason is StopReason.LOST
    assert desk.of(asks.Release) == []


def test_a_save_that_finds_another_owner_hands_the_shard_over() -> None:
    desk = owning()
    desk.answers[asks.Save] = Held(Lease("a", 1, BOB, ME, at(5)), 2, 1)
    desk.checkpoint(5)
    (shutdown,) = desk.of(asks.Shutdown)
    assert shutdown.reason is StopReason.HANDED_OVER
    (released,) = desk.of(asks.Release)
    assert (released.checkpoint, released.is_finished) == (None, False), "it is saved already"
    assert released.held.lease.owner == BOB


@pytest.mark.parametrize(
    ("reason", "is_finished"), [(StopReason.ENDED, True), (StopReason.HANDED_OVER, False)]
)
def test_a_release_carries_the_last_checkpoint_and_is_tried_until_it_is_done(
    reason: StopReason, is_finished: bool
) -> None:
    desk = owning()
    desk.checkpoint(7, at_once=False)
    desk.answers[asks.Release] = AWAY
    if is_finished:
        desk.core.on_end("a", desk.now_s)
    else:
        desk.core._stop("a", reason)
    desk.pump()
    desk.run(16.0)
    assert desk.times(asks.Release) == [10.0, 13.0, 16.0]
    for each in desk.of(asks.Release):
        assert (each.checkpoint, each.is_finished) == (at(7), is_finished)
    assert desk.of(asks.ShardStopped) == []
    del desk.answers[asks.Release]
    desk.shards = []
    desk.run(19.0)
    assert [each.checkpoint for each in desk.of(asks.Saved)] == [at(7)]
    (stopped,) = desk.of(asks.ShardStopped)
    assert stopped.reason is reason
    assert ("a" in desk.core.graph.finished) is is_finished


def test_a_release_that_is_refused_was_lost_before() -> None:
    desk = owning()
    desk.checkpoint(7, at_once=False)
    desk.answers[asks.Release] = LeaseLost("gone")
    desk.core.on_end("a", desk.now_s)
    desk.pump()
    (stopped,) = desk.of(asks.ShardStopped)
    assert stopped.reason is StopReason.LOST
    assert desk.of(asks.Saved) == []
    assert "a" not in desk.core.graph.finished


def test_a_shard_that_arrives_when_it_may_be_somebody_else_s_goes_back() -> None:
    """The answer took longer than anybody waits for us; or we are leaving by then."""
    for is_leaving in (True, False):
        desk = Desk()
        desk.answers[asks.Take] = NEVER
        desk.run(5.0)
        (take,) = desk.of(asks.Take)
        if is_leaving:
            desk.leave()
        else:
            desk.answers[asks.Renew] = AWAY
            desk.run(100.0)
        desk.core.answered(take, desk._usual(take), None, desk.now_s)
        desk.pump()
        assert desk.of(asks.StartShard) == []
        (release,) = desk.of(asks.Release)
        assert (release.shard, release.checkpoint, release.is_finished) == ("a", None, False)
        assert desk.core.returning == {}


# --- until when


def test_nothing_is_delivered_behind_the_deadline_and_it_goes_on_when_it_was_false() -> None:
    """It counts from when the last renewal that was confirmed was sent."""
    desk = owning()
    renewed_s = desk.times(asks.Renew)[-1]
    desk.answers[asks.Renew] = AWAY
    deadline_s = renewed_s + 0.95 * TIMEOUT_S
    desk.run(80.0)
    for at_s, is_ours in ((deadline_s - 0.001, True), (deadline_s, False), (deadline_s + 9, False)):
        assert desk.core.may_deliver("a", 1, at_s) is is_ours
        assert desk.core.still_owner("a", 1, at_s) is is_ours
    assert desk.of(asks.StopFetch) == []
    del desk.answers[asks.Renew]
    desk.run(90.0)
    assert desk.core.may_deliver("a", 1, 90.0)


def test_failed_renewals_are_tried_again_soon() -> None:
    desk = owning()
    since_s = desk.times(asks.Renew)[-1]
    desk.answers[asks.Renew] = AWAY
    desk.run(30.0)
    tried = desk.times(asks.Renew, since_s)
    assert tried[0] == since_s + RENEW_S
    assert tried[1:3] == [tried[0] + RETRY_S, tried[0] + 2 * RETRY_S]


def test_a_worker_that_was_taken_for_dead_stops_all_and_saves_what_it_can() -> None:
    desk = owning()
    desk.checkpoint(8, at_once=False)
    desk.answers[asks.Renew] = LeaseLost("dead")
    desk.run(40.0)
    (save,) = desk.of(asks.Save)
    assert save.checkpoint == at(8)
    assert desk.of(asks.Release) == []
    (stopped,) = desk.of(asks.ShardStopped)
    assert stopped.reason is StopReason.LOST
    (ended,) = desk.of(asks.WorkerEnded)
    assert (ended.is_lost, desk.core.wakes_at_s(desk.now_s)) == (True, math.inf)


def test_the_last_word_is_said_until_it_is_heard() -> None:
    """All shards are given up first, and renewals go on until then."""
    desk = owning()
    desk.answers[asks.Leave] = AWAY
    desk.leave()
    assert [type(what) for _, what in desk.told[-4:]][-1] is asks.Leave
    desk.run(17.0)
    assert desk.times(asks.Leave) == [10.0, 13.0, 16.0]
    assert desk.of(asks.WorkerEnded) == []
    del desk.answers[asks.Leave]
    desk.run(30.0)
    assert desk.times(asks.Leave) == [10.0, 13.0, 16.0, 19.0]
    (ended,) = desk.of(asks.WorkerEnded)
    assert (ended.is_lost, ended.why) == (False, "closed")
    kinds = [type(what) for _, what in desk.told]
    assert kinds.index(asks.ShardStopped) < kinds.index(asks.Leave)


def test_who_leaves_renews_as_long_as_a_shard_is_being_given_up() -> None:
    desk = owning()
    desk.answers[asks.Release] = AWAY
    desk.leave()
    desk.run(60.0)
    assert len(desk.of(asks.Renew, 10.0)) >= 3
    assert desk.of(asks.Leave) == []
    assert desk.of(asks.ReadGroup, 10.0) == []
    del desk.answers[asks.Release]
    desk.run(64.0)
    assert len(desk.of(asks.WorkerEnded)) == 1


def test_while_the_last_word_is_on_its_way_nothing_else_is_said() -> None:
    """A renewal, or a look at our own node, would say that we are dead."""
    desk = owning()
    desk.answers[asks.Leave] = NEVER
    desk.leave()
    since = len(desk.told)
    assert isinstance(desk.told[-1][1], asks.Leave)
    desk.run(100.0)
    desk.core.hint_worker(ME, desk.now_s)
    desk.core.member.wanted.add("a")
    desk.core.hint_group(desk.now_s)
    desk.pump()
    assert {type(what) for _, what in desk.told[since:]} <= {asks.LookAtWorker}
    assert desk.core.wakes_at_s(desk.now_s) == math.inf
    desk.core.answered(asks.LookAtWorker(ME), None, None, desk.now_s)
    (leave,) = desk.of(asks.Leave)
    desk.core.answered(leave, None, None, desk.now_s)
    desk.pump()
    (ended,) = desk.of(asks.WorkerEnded)
    assert not ended.is_lost, "it is no loss that we left"


def test_who_leaves_takes_nothing_of_a_plan_that_was_on_its_way() -> None:
    desk = Desk()
    reads: list[asks.ReadGroup] = []

    def later(ask: asks.ReadGroup) -> object:
        reads.append(ask)
        return NEVER

    desk.answers[asks.ReadGroup] = later
    desk.run(5.0)
    desk.core.ask_leave(desk.now_s)
    desk.core.answered(reads[0], desk._usual(reads[0]), None, desk.now_s)
    desk.pump()
    desk.run(30.0)
    assert desk.of(asks.Take) == []
    assert len(desk.of(asks.WorkerEnded)) == 1


# --- weights


def test_one_worker_weighs_and_writes_down_what_moves_something() -> None:
    """Not the noise, not what it could not measure, and not while it leaves."""
    desk = Desk("abcd", {BOB: "cd"}, weigh_s=100.0)
    desk.run(90.0)
    assert sorted(desk.core.consumers) == ["a", "b"]
    assert desk.of(asks.Weigh) == [], "the first of the workers does"
    del desk.others[BOB]
    desk.others[WorkerId("zoe", "9" * 32)] = "cd"
    desk.answers[asks.Weigh] = {"a": 100, "b": 100, "c": 101, "d": 99}
    desk.run(450.0)
    weighed = desk.times(asks.Weigh)
    assert len(weighed) >= 2
    assert {later - at_s for at_s, later in itertools.pairwise(weighed)} == {100.0}
    assert desk.of(asks.WriteWeights) == []
    desk.answers[asks.Weigh] = AWAY
    desk.run(weighed[-1] + 101.0)
    assert desk.of(asks.WriteWeights) == []
    assert desk.times(asks.Weigh)[-1] == weighed[-1] + 100.0
    desk.answers[asks.Weigh] = {"a": 900, "b": 700, "c": 1, "d": 1}
    desk.run(weighed[-1] + 201.0)
    (written,) = desk.of(asks.WriteWeights)
    assert written.weights == {"a": 225, "b": 175, "c": 10, "d": 10}


# --- looking


def test_a_group_that_cannot_be_read_is_read_again_soon() -> None:
    desk = Desk()
    desk.answers[asks.ReadGroup] = AWAY
    desk.run(10.0)
    times = desk.times(asks.ReadGroup)
    assert times == [times[0] + n * RETRY_S for n in range(len(times))]
    assert len(times) >= 3
    assert desk.of(asks.Take) == []


def test_a_group_is_read_soon_behind_moves_and_now_and_then_when_it_is_settled() -> None:
    desk = owning()
    (first_s,) = desk.times(asks.ReadGroup)
    moved_s = first_s + 2 * RENEW_S
    desk.run(moved_s + 2 * REPLAN_S)
    settled = [moved_s + REPLAN_S, moved_s + 2 * REPLAN_S]
    assert desk.times(asks.ReadGroup, first_s) == [moved_s, *settled]


LOOKS: list[tuple[Lease, int, Callable[[Desk], Any]]] = [
    (Lease("a", 1, ME, ME), 1, lambda desk: desk.of(asks.StopFetch) == []),
    (Lease("a", 1, BOB, ME), 1, lambda desk: desk.of(asks.Shutdown)[0].reason),
    (Lease("a", 2, BOB, BOB), 2, lambda desk: desk.of(asks.Shutdown)[0].reason),
    (Lease("a", 2, ME, ME), 2, lambda desk: desk.of(asks.Shutdown)[0].reason),
    (Lease("a", 2, is_finished=True), 2, lambda desk: desk.of(asks.Shutdown)[0].reason),
]
EXPECTED = [True, StopReason.HANDED_OVER, StopReason.LOST, StopReason.LOST, StopReason.LOST]


@pytest.mark.parametrize(("row", "expected"), list(zip(LOOKS, EXPECTED, strict=True)))
def test_what_a_look_finds_of_a_shard_that_we_have(row: Any, expected: Any) -> None:
    """Ours still, wanted by another worker, or lost: to somebody else, or to another grant."""
    lease, turn, outcome = row
    desk = owning()
    desk.answers[asks.Look] = Held(lease, 3, turn)
    desk.core.member.wanted.add("a")
    desk.core.on_time(desk.now_s)
    desk.pump()
    assert len(desk.of(asks.Look)) == 1
    assert outcome(desk) == expected


@pytest.mark.parametrize(
    ("lease", "kind"),
    [
        (Lease("b", 4, BOB, BOB), None),
        (Lease("b", 4, ME, ME), asks.Drop),
        (Lease("b", 4, BOB, ME), asks.Drop),
        (Lease("b", 4, ME, BOB), asks.Renounce),
        (Lease("b", 4, ME, None), asks.Take),
        (Lease("b", 4, BOB, None), asks.ReadGroup),
        (Lease("b", 4, None, None), asks.ReadGroup),
        (Lease("b", 4, is_finished=True), asks.ReadGroup),
    ],
)
def test_what_a_look_finds_of_a_shard_that_we_do_not_have(lease: Lease, kind: Any) -> None:
    """What names us and we know nothing of is given back; what was left to us is taken; what is
    free, or done, is a reason to plan."""
    desk = owning(others={BOB: "b"}, shards="ab")
    desk.run(40.0)
    desk.answers[asks.Look] = Held(lease, 3, 4)
    desk.core.member.wanted.add("b")
    since = len(desk.told)
    desk.core.on_time(desk.now_s)
    desk.pump()
    desk.run(desk.now_s + 1.0)
    kinds = {type(what) for _, what in desk.told[since:]} - {asks.Look, asks.Renew}
    kinds -= {asks.LookAtWorker, asks.StartShard}
    assert kinds == (set() if kind is None else {kind}), desk.told[since:]
    assert ("b" in desk.core.graph.finished) is lease.is_finished
