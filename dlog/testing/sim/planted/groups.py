"""Bugs of groups: a shard is consumed by two or by nobody, a checkpoint goes back or is lost, a
worker is taken for dead or is not, shards wander."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from dlog.effects import CreateNode, Procedure, ReadNode
from dlog.errors import DlogError, LeaseLost, NotFound
from dlog.groups import core, log_leases, meta_leases, outlook, plan, presence, store
from dlog.groups.agenda import Agenda
from dlog.groups.asks import Leave, Release, Renew, Ring, Save, Saved
from dlog.groups.consumer import ShardConsumer, StopReason, StopStep
from dlog.groups.core import WorkerCore
from dlog.groups.expiry import Expiry
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.log_leases import LogLeases
from dlog.groups.membership import GroupOptions, Membership, Phase
from dlog.groups.meta_leases import MetaLeases
from dlog.groups.shards import ShardGraph
from dlog.groups.store import Held
from dlog.groups.tracker import CheckpointTracker
from dlog.groups.view import View, WorkerId
from dlog.groups.workers import WorkerNode
from dlog.ids import Position
from dlog.testing.sim.planted import Patch, Plants

plants = Plants("groups")
PLANTS = plants.by_name

NODES: dict[str, Any] = {"store": "nodes", "force": False, "seals": False}
LOGS: dict[str, Any] = {**NODES, "store": "logs"}
BUSY: dict[str, Any] = {"messages": 5, "more": 6, "batch": 1, "workers": 3}
CALM: dict[str, Any] = {"crash": 0.0, "freeze": 0.0, "force": False}
SLEEPY: dict[str, Any] = {**NODES, **BUSY, "freeze": 0.02}
AWAY: dict[str, Any] = {**NODES, **BUSY, "meta_pauses": True, "cuts": 4, "more": 12}
JOINED: dict[str, Any] = {**BUSY, "joiners": 2, "shards": 5, "seals": False}


# --- I20, I21: epochs and checkpoints


@plants(
    "P32: a stale epoch is accepted",
    **{**NODES, "messages": 20, "batch": 1, "process_ms": 20.0, "checkpoints": "memory"},
    freeze=0.02,
    workers=2,
    shards=2,
)
def a_stale_epoch_saves_a_checkpoint(patch: Patch) -> None:
    patch.setattr(Lease, "check_consumer", lambda self, me, epoch: None)


@plants(
    "P33: a checkpoint moves back on a retry", **BUSY, meta_reply_lost=0.2, checkpoints="at_once"
)
def a_retry_takes_the_old_checkpoint(patch: Patch) -> None:
    genuine = CheckpointTracker.not_saved

    def not_saved(self: CheckpointTracker, *, at_once: bool) -> None:
        self.newest = self._under_way
        genuine(self, at_once=at_once)

    patch.setattr(CheckpointTracker, "not_saved", not_saved)


@plants("I20: each grant has an epoch of its own", **NODES)
def an_epoch_stays_what_it_was(patch: Patch) -> None:
    def taken(self: Lease, me: WorkerId, now_us: int, *, epoch: int | None = None) -> Lease:
        return dataclasses.replace(self, owner=me, consumer=me, epoch=max(1, self.epoch))

    patch.setattr(Lease, "taken", taken)


@plants("I21: what was delivered is not done", **BUSY, crash=0.03, restarts=1.0)
def what_was_delivered_counts_as_done(patch: Patch) -> None:
    genuine = CheckpointTracker.sent

    def sent(self: CheckpointTracker) -> Checkpoint:
        genuine(self)
        assert self.newest is not None
        log_uid = self.newest.position.log_uid
        ahead = Checkpoint(Position(log_uid, self._delivered_seq, None))
        self.newest = self._under_way = ahead
        return ahead

    patch.setattr(CheckpointTracker, "sent", sent)


@plants("LH-50: what waits in memory is flushed", **CALM, checkpoints="memory", messages=3)
def checkpoints_in_memory_are_never_flushed(patch: Patch) -> None:
    genuine = CheckpointTracker.due_s

    def due_s(self: CheckpointTracker) -> float | None:
        return genuine(self) if self._at_once else None

    patch.setattr(CheckpointTracker, "due_s", due_s)


@plants("I21: a save that failed is made again", **BUSY, meta_refused=0.2, store="nodes")
def a_save_that_failed_is_forgotten(patch: Patch) -> None:
    def not_saved(self: CheckpointTracker, *, at_once: bool) -> None:
        self.stored, self._under_way = self._under_way, None

    patch.setattr(CheckpointTracker, "not_saved", not_saved)


@plants("LH-51: whoever gives a shard up flushes it", **{**CALM, **JOINED}, checkpoints="late")
def a_shard_is_released_without_its_checkpoint(patch: Patch) -> None:
    def release(self: WorkerCore, consumer: ShardConsumer) -> None:
        self._send(Release(consumer.shard, consumer.held, None, is_finished=False))

    patch.setattr(WorkerCore, "_release", release)


@plants("LH-52: the consumer saves, whoever owns the lease", **{**CALM, **JOINED}, store="nodes")
def only_the_owner_may_save(patch: Patch) -> None:
    genuine = Lease.check_consumer

    def check(self: Lease, me: WorkerId, epoch: int) -> None:
        genuine(self, me, epoch)
        if self.owner != me:
            raise LeaseLost("it is being handed over")

    patch.setattr(Lease, "check_consumer", check)


@plants("LH-48: the checkpoint is read when the shard becomes ours", **{**NODES, **JOINED})
def the_checkpoint_is_that_of_the_announcement(patch: Patch) -> None:
    seen: dict[tuple[WorkerCore, str], Lease] = {}  # by core: a history knows of no other one
    announced, taken = WorkerCore._on_announced, WorkerCore._on_taken

    def on_announced(self: WorkerCore, shard: str, lease: Lease, now_s: float) -> None:
        seen.setdefault((self, shard), lease)
        announced(self, shard, lease, now_s)

    def on_taken(self: WorkerCore, shard: str, answer: Any, error: Any, now_s: float) -> None:
        old = seen.pop((self, shard), None) if isinstance(answer, Held) else None
        if old is not None:
            lease = dataclasses.replace(answer.lease, checkpoint=old.checkpoint)
            answer = answer._replace(lease=lease)
        taken(self, shard, answer, error, now_s)

    patch.setattr(WorkerCore, "_on_announced", on_announced)
    patch.setattr(WorkerCore, "_on_taken", on_taken)


@plants("P29: a hold moves behind what is kept", **BUSY, crash=0.03, truncations=6, restarts=1.0)
def a_hold_moves_before_the_checkpoint_is_kept(patch: Patch) -> None:
    genuine = WorkerCore.on_checkpoint

    def on_checkpoint(
        self: WorkerCore, shard: str, epoch: int, checkpoint: Checkpoint, **more: Any
    ) -> None:
        genuine(self, shard, epoch, checkpoint, **more)
        self._effects.append(Saved(shard, checkpoint))

    patch.setattr(WorkerCore, "on_checkpoint", on_checkpoint)


# --- I22: who is dead, and until when one may go on


@plants("P34: a lease is judged by a stored time", **SLEEPY, joiners=2)
def a_lease_is_judged_by_its_stored_time(patch: Patch) -> None:
    genuine = MetaLeases.claim

    def claim(self: MetaLeases, shard: str, me: WorkerId, **more: Any) -> Procedure[Held]:
        seen = yield from self.look(shard)
        lease, now_us = seen.lease, self._now_us()
        is_old = now_us - lease.updated_us > 200_000
        if is_old and lease.consumer not in (None, me) and not lease.is_finished:
            taken = lease.taken(me, now_us)
            version = yield from self._nodes.write(taken, seen.version, "")
            return Held(taken, version, taken.epoch)
        return (yield from genuine(self, shard, me, **more))

    patch.setattr(MetaLeases, "claim", claim)


@plants("P35: the loss of our place is ignored", **SLEEPY)
def who_was_buried_goes_on(patch: Patch) -> None:
    genuine, deadline = Membership.on_not_renewed, math.inf

    def on_not_renewed(self: Membership, error: DlogError, now_s: float, *, is_lost: bool) -> None:
        genuine(self, error, now_s, is_lost=False)
        if is_lost:
            self.confirmed_s = deadline

    patch.setattr(Membership, "on_not_renewed", on_not_renewed)


@plants("I22: nothing is delivered behind the deadline", **SLEEPY)
def a_sleeper_goes_on_where_it_stopped(patch: Patch) -> None:
    def owns(self: WorkerCore, consumer: ShardConsumer, epoch: int, now_s: float) -> bool:
        return consumer.epoch == epoch and not consumer.is_fenced

    patch.setattr(WorkerCore, "_owns", owns)


@plants("I22: a deadline counts from when the renewal was sent", **AWAY, slow=40.0)
def a_deadline_counts_from_the_answer(patch: Patch) -> None:
    genuine = Membership.on_renewed

    def on_renewed(self: Membership, ask: Renew, seen: Any, now_s: float) -> None:
        genuine(self, ask, seen, now_s)
        self.confirmed_s = now_s

    patch.setattr(Membership, "on_renewed", on_renewed)


@plants("I22: a renewal that failed proves nothing", **{**AWAY, "cuts": 8})
def a_renewal_that_failed_counts(patch: Patch) -> None:
    genuine = Membership.on_not_renewed

    def on_not_renewed(self: Membership, error: DlogError, now_s: float, *, is_lost: bool) -> None:
        genuine(self, error, now_s, is_lost=is_lost)
        self.confirmed_s = now_s

    patch.setattr(Membership, "on_not_renewed", on_not_renewed)


@plants("I22: clocks run apart", **AWAY, is_drifting=True)
def a_deadline_lasts_too_long(patch: Patch) -> None:
    def deadline_s(self: Membership) -> float:
        if self.confirmed_s is None or self.phase is Phase.LOST:
            return -math.inf
        return self.confirmed_s + 1.2 * self.options.timeout_s

    patch.setattr(Membership, "deadline_s", property(deadline_s))


@plants("LH-46: whoever takes a lease knows that its consumer is dead", **JOINED)
def a_lease_is_taken_from_the_living(patch: Patch) -> None:
    def check_free(places: Any, lease: Lease, me: WorkerId, over: Any) -> Procedure[None]:
        yield from ()

    patch.setattr(meta_leases, "check_free", check_free)


@plants(
    "LH-46: dead is judged behind the look at the lease",
    **JOINED,
    meta_stale=1.0,
    survives="the lease was read behind a sync, and no plain read is older than our last sync",
)
def death_is_believed_of_an_old_read(patch: Patch) -> None:
    def is_dead(places: Any, worker: WorkerId) -> Procedure[bool]:
        try:
            yield ReadNode(places.worker(worker), fresh=False)
        except NotFound:
            return True
        return False

    patch.setattr(store, "is_dead", is_dead)


@plants("LH-46: who renewed is not buried", **JOINED)
def who_renewed_is_buried(patch: Patch) -> None:
    genuine = presence.bury

    def bury(places: Any, worker: WorkerId, counter: int) -> Procedure[Any]:
        seen = yield from presence.read_worker(places, worker)
        if seen is None:
            return None
        return (yield from genuine(places, worker, seen.node.counter))

    patch.setattr(presence, "bury", bury)
    patch.setattr(Expiry, "see", _see_once)


def _see_once(self: Expiry, worker: WorkerId, counter: int, now_s: float) -> None:
    from dlog.groups.expiry import _Seen

    self._seen.setdefault(worker, _Seen(counter, now_s))


@plants("LH-41: first sight is now", **JOINED, crash=0.01)
def first_sight_is_long_ago(patch: Patch) -> None:
    genuine = Expiry.see

    def see(self: Expiry, worker: WorkerId, counter: int, now_s: float) -> None:
        is_new = worker not in self._seen
        genuine(self, worker, counter, now_s - self.timeout_s if is_new else now_s)

    patch.setattr(Expiry, "see", see)


@plants("LH-45: who renews no more is dead", **BUSY, crash=0.02, restarts=0.0)
def each_look_is_a_renewal(patch: Patch) -> None:
    genuine = Expiry.see

    def see(self: Expiry, worker: WorkerId, counter: int, now_s: float) -> None:
        self.forget(worker)
        genuine(self, worker, counter, now_s)

    patch.setattr(Expiry, "see", see)


@plants("LH-45: somebody looks after everybody", **BUSY, crash=0.02, restarts=0.0)
def nobody_has_neighbours(patch: Patch) -> None:
    genuine = Membership._choose_neighbours

    def choose(self: Membership, now_s: float) -> None:
        genuine(self, now_s)
        self._neighbours.clear()

    patch.setattr(Membership, "_choose_neighbours", choose)


@plants("LH-46: no incarnation is there twice", **SLEEPY)
def who_was_buried_registers_again(patch: Patch) -> None:
    genuine = presence.beat

    def beat(places: Any, seen: Any, counter: int, *lists: Any) -> Procedure[Any]:
        try:
            return (yield from genuine(places, seen, counter, *lists))
        except LeaseLost:
            node = dataclasses.replace(seen.node, counter=counter)
            version = yield CreateNode(places.worker(seen.node.id), node.to_bytes())
            return presence.SeenWorker(node, version)

    patch.setattr(presence, "beat", beat)


# --- the hand-over


@plants("LH-37: a stolen shard waits for its victim", **{**CALM, **JOINED}, process_ms=20.0)
def a_thief_does_not_wait(patch: Patch) -> None:
    def check_free(places: Any, lease: Lease, me: WorkerId, over: Any) -> Procedure[None]:
        yield from store.check_free(
            places, lease, me, lease.consumer if lease.owner == me else over
        )

    patch.setattr(meta_leases, "check_free", check_free)


@plants("LH flaw 4: a victim lets go", **{**CALM, **JOINED})
def a_victim_does_not_listen(patch: Patch) -> None:
    genuine = WorkerCore._stop

    def stop(self: WorkerCore, shard: str, reason: StopReason) -> None:
        if reason is not StopReason.HANDED_OVER:
            genuine(self, shard, reason)

    patch.setattr(WorkerCore, "_stop", stop)


@plants("LH flaw 4: a victim is told", **{**CALM, **JOINED, "messages": 0, "more": 0})
def nobody_rings(patch: Patch) -> None:
    genuine = WorkerCore.take

    def take(self: WorkerCore) -> list[Any]:
        return [each for each in genuine(self) if not isinstance(each, Ring)]

    patch.setattr(WorkerCore, "take", take)


@plants(
    "LH flaw 4: what is asked of us is looked into",
    survives="whoever asked rings again, until a read of the group comes before a renewal",
    shown_by="tests/unit/groups/test_presence.py::test_a_ring_hurts_no_renewal_and_is_heard_by_it",
    **{**CALM, **JOINED},
    watches=False,
)
def a_renewal_forgets_what_is_wanted(patch: Patch) -> None:
    genuine = WorkerNode.renewed

    def renewed(self: WorkerNode, *args: Any) -> WorkerNode:
        return dataclasses.replace(genuine(self, *args), wanted=())

    patch.setattr(WorkerNode, "renewed", renewed)


@plants("LH flaw 4: a release is noticed", **{**CALM, **JOINED}, watches=False)
def a_thief_looks_once(patch: Patch) -> None:
    genuine = WorkerCore._on_announced

    def on_announced(self: WorkerCore, shard: str, lease: Lease, now_s: float) -> None:
        genuine(self, shard, lease, now_s)
        if shard in self.coming:
            self.coming[shard].look_s = math.inf

    patch.setattr(WorkerCore, "_on_announced", on_announced)


# --- the end of a shard, and of a worker


@plants("LH flaw 9: work is finished before the shard is", **{**CALM, **JOINED}, process_ms=20.0)
def a_shard_is_released_while_it_is_at_work(patch: Patch) -> None:
    genuine = WorkerCore._stop

    def stop(self: WorkerCore, shard: str, reason: StopReason) -> None:
        consumer = self.consumers.get(shard)
        genuine(self, shard, reason)
        if consumer is not None and consumer.step is StopStep.FINISHING:
            consumer.step = StopStep.FLUSHING

    patch.setattr(WorkerCore, "_stop", stop)


@plants("LH flaw 9: a program is shut down", **{**CALM, **JOINED})
def a_finished_program_is_not_shut_down(patch: Patch) -> None:
    def on_work_finished(self: WorkerCore, shard: str, now_s: float) -> None:
        consumer = self.consumers[shard]
        consumer.finished_work()
        consumer.shut_down()
        self._step(now_s)

    patch.setattr(WorkerCore, "on_work_finished", on_work_finished)


@plants("LH flaw 9: the renewal ends last", leavers=2, workers=3, seals=False)
def the_renewal_ends_first(patch: Patch) -> None:
    genuine = WorkerCore.ask_leave

    def ask_leave(self: WorkerCore, now_s: float, why: str = "closed") -> None:
        self._effects.append(Leave())
        genuine(self, now_s, why)

    patch.setattr(WorkerCore, "ask_leave", ask_leave)


@plants("LH flaw 7: parents first", splits=1, seals=False, **{**BUSY, "process_ms": 20.0})
def children_do_not_wait_for_their_parents(patch: Patch) -> None:
    patch.setattr(ShardGraph, "blockers", lambda self, shard: ())


@plants("LH flaw 7: an end is kept", splits=1, seals=False)
def an_end_is_only_a_release(patch: Patch) -> None:
    def release(self: WorkerCore, consumer: ShardConsumer) -> None:
        unsaved = consumer.tracker.unsaved
        self._send(Release(consumer.shard, consumer.held, unsaved, is_finished=False))

    patch.setattr(WorkerCore, "_release", release)


@plants("LH flaw 7: who waits for an end looks for it", splits=1, seals=False, crash=0.02)
def nobody_looks_whether_a_parent_is_done(patch: Patch) -> None:
    def gates(graph: Any, others: Any) -> set[str]:
        return set()

    patch.setattr(core, "gates", gates)
    patch.setattr(WorkerCore, "_wonder", lambda self, unheld: None)


# --- plans


@plants("LH flaw 3: a difference of one moves nothing", workers=2, shards=3, quiet=True, **CALM)
def everybody_wants_the_ceiling(patch: Patch) -> None:
    genuine = plan._targets

    def targets(hands: Any, counts: list[int]) -> list[int]:
        found = genuine(hands, counts)
        share, extra = divmod(len(hands.shards), len(counts))
        order = sorted(range(len(counts)), key=lambda place: counts[place])
        return [share + (place in order[:extra]) for place in range(len(counts))] or found

    patch.setattr(plan, "_targets", targets)


@plants("LH-33: what nobody has is taken", crash=0.02, restarts=0.0, workers=3)
def the_dead_keep_their_shards(patch: Patch) -> None:
    genuine = outlook.look_out
    known: dict[int, dict[WorkerId, WorkerNode]] = {}

    def look_out(graph: Any, ours: Any, others: Any, **more: Any) -> Any:
        remembered = known.setdefault(id(graph), {})
        remembered.update(others)
        return genuine(graph, ours, dict(remembered), **more)

    patch.setattr(core, "look_out", look_out)


@plants("LH-29: a worker without shards counts", **CALM, workers=3, shards=3, weights=False)
def who_has_nothing_does_not_count(patch: Patch) -> None:
    def by_owners(view: View) -> Any:
        owners = {each.owner for each in view.shards}
        workers = tuple(each for each in view.workers if each.id in owners)
        return plan.plan(dataclasses.replace(view, workers=workers or view.workers))

    patch.setattr(core, "plan", by_owners)


@plants("P36: a watch is a hint", **{**JOINED, "watches": False})
def nobody_plans_without_being_told(patch: Patch) -> None:
    genuine = Agenda.planned

    def never(self: Agenda, now_s: float, *, others: int, is_settled: bool) -> None:
        genuine(self, now_s, others=others, is_settled=is_settled)
        self._plan_s = math.inf

    patch.setattr(Agenda, "planned", never)


@plants("LH-28: a renewal has its time", **CALM, quiet=True, weights=False)
def it_renews_without_end(patch: Patch) -> None:
    patch.setattr(GroupOptions, "renew_s", property(lambda self: self.timeout_s / 40))


# --- lost replies


@plants("I23: an unknown save is not a save", **BUSY, meta_request_lost=0.2, store="nodes")
def an_unknown_save_is_taken_for_one(patch: Patch) -> None:
    genuine = WorkerCore._on_saved

    def on_saved(self: WorkerCore, ask: Save, answer: Any, error: Any, now_s: float) -> None:
        if error is not None and not isinstance(error, LeaseLost):
            answer, error = ask.held, None
        genuine(self, ask, answer, error, now_s)

    patch.setattr(WorkerCore, "_on_saved", on_saved)


@plants(
    "I27: a claim that came true behind our back is given back",
    meta_reply_lost=0.3,
    meta_late=0.3,
    seals=False,
)
def what_we_do_not_know_we_keep(patch: Patch) -> None:
    genuine = WorkerCore._on_lease

    def on_lease(self: WorkerCore, seen: Held, now_s: float) -> None:
        shard = seen.lease.shard
        if seen.lease.consumer == self.me and shard not in self.consumers:
            self.member.looked_into(shard)
            return
        genuine(self, seen, now_s)

    patch.setattr(WorkerCore, "_on_lease", on_lease)


# --- leases in logs


@plants(
    "I20: a sleeper that opened a lease's log finds out",
    **{**LOGS, **BUSY},
    freeze=0.03,
    survives="whoever lost its turn was taken for dead, so its deadline is over: it gives back "
    "what it took before it delivers anything",
)
def who_opened_the_log_has_the_lease(patch: Patch) -> None:
    def is_ours(lease: Lease, me: WorkerId, epoch: int) -> bool:
        return True

    class Blind:
        """All as it is, but nobody looks again."""

        def __getattr__(self, name: str) -> Any:
            return is_ours if name == "is_ours" else getattr(meta_leases, name)

    patch.setattr(log_leases, "meta_leases", Blind())


@plants("I21: a lease's log is read behind its fence", **{**LOGS, **BUSY}, freeze=0.03)
def the_log_is_read_before_it_is_fenced(patch: Patch) -> None:
    genuine = LogLeases.claim

    def claim(self: LogLeases, shard: str, me: WorkerId, **more: Any) -> Procedure[Held]:
        before = yield log_leases.ReadLeaseLog(shard)
        inner = genuine(self, shard, me, **more)
        answer: Any = None
        error: DlogError | None = None
        while True:
            try:
                effect = inner.send(answer) if error is None else inner.throw(error)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            error = None
            try:
                answer = yield effect
            except DlogError as raised:
                error = raised
                continue
            if isinstance(answer, log_leases.OpenedLeaseLog):
                answer = answer._replace(last=before)

    patch.setattr(LogLeases, "claim", claim)


@plants("LH-51: the log first, then the node", **{**LOGS, **CALM, **JOINED, "slow": 10.0})
def the_node_is_released_before_the_log(patch: Patch) -> None:
    def release(
        self: LogLeases, held: Held, me: WorkerId, checkpoint: Checkpoint | None
    ) -> Procedure[None]:
        yield from self._end_turn(held, me)
        lease = held.lease.released(me, held.lease.epoch, checkpoint, 0)
        yield from self._append(lease)

    patch.setattr(LogLeases, "release", release)
