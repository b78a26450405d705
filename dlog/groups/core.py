"""A worker of a group, as a state machine without IO: facts come in, errands and orders go out.

Who drives it calls a fact, performs what `take()` gives (see `asks`), answers each errand by
`answered`, and calls `on_time` when `wakes_at_s` has come. At each batch it asks `may_deliver`:
by that, not by a timer, a worker that slept, or whose metadata store is away, delivers nothing from
the moment on at which another one may have its shards, and goes on by itself when it turns out that
nobody has.

    joining → member → leaving → ended            lost: somebody took us for dead; all is stopped

It plans when something changed (workers, shards, the end of one), and now and then in case nobody
told. Of the plan it makes the moves that it is the taker of.
"""

from __future__ import annotations

import math
from typing import Any

from dlog.errors import Conflict, DlogError, LeaseLost
from dlog.groups import asks
from dlog.groups.agenda import Agenda
from dlog.groups.consumer import ShardConsumer, ShardState, StopReason, StopStep
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.membership import ALL_DONE, REPLACED, GroupOptions, Membership, Phase
from dlog.groups.outlook import Outlook, gates, look_out
from dlog.groups.plan import moves_of, plan
from dlog.groups.presence import Rung
from dlog.groups.shards import ShardGraph
from dlog.groups.store import Held
from dlog.groups.underway import Coming, Rings, Underway
from dlog.groups.view import Move, WorkerId, WorkerView
from dlog.groups.weights import is_worth_it, weights_of
from dlog.ids import Position


class WorkerCore:
    def __init__(
        self,
        me: WorkerId,
        now_s: float,
        *,
        domain: str | None = None,
        options: GroupOptions | None = None,
    ) -> None:
        self.me, self.options = me, options or GroupOptions()
        self.member = Membership(me, self.options, now_s, domain)
        self.graph = ShardGraph()
        self.consumers: dict[str, ShardConsumer] = {}
        self.coming: dict[str, Coming] = {}
        self.returning: dict[str, Held] = {}  # claimed, and not wanted any more
        self.halted: dict[str, Held] = {}  # failed here: kept, so that it fails nowhere else
        self.underway = Underway()
        self.moves: tuple[Move, ...] = ()  # of the last plan, of everybody
        self.agenda = Agenda(self.options, now_s)
        self.is_leaving = self.has_ended = False
        self.why_leaving = ""
        self._effects: list[asks.Ask | asks.Order] = []
        self._to_take: dict[str, WorkerId | None] = {}  # and who has it
        self._to_look: dict[str, None] = {}
        self._rings = Rings()
        self._unheld: set[str] = set()
        self._unblocked: set[str] = set()
        self._left = False

    # --- questions

    def take(self) -> list[asks.Ask | asks.Order]:
        effects, self._effects = self._effects, []
        return effects

    def may_deliver(self, shard: str, epoch: int, now_s: float) -> bool:
        """A batch, now? Nobody else can have the shard at this moment."""
        consumer = self.consumers.get(shard)
        return (
            consumer is not None
            and consumer.state is ShardState.PROCESSING
            and self._owns(consumer, epoch, now_s)
        )

    def still_owner(self, shard: str, epoch: int, now_s: float) -> bool:
        """For whoever is in the middle of something: the shard is not, and was not, anybody
        else's."""
        consumer = self.consumers.get(shard)
        return consumer is not None and self._owns(consumer, epoch, now_s)

    def _owns(self, consumer: ShardConsumer, epoch: int, now_s: float) -> bool:
        return consumer.epoch == epoch and not consumer.is_fenced and now_s < self.member.deadline_s

    def wakes_at_s(self, now_s: float) -> float:
        """When `on_time` has something to do."""
        if self.has_ended:
            return math.inf
        if self.is_leaving and self._is_gone():
            return math.inf if self.member.is_renewing else self.underway.retry_s.get("", math.inf)
        of = self.underway.due_s
        due = of(self.member.due_s(), ((c.shard, c.due_s()) for c in self.consumers.values()))
        due = of(due, ((shard, 0.0) for shard in self.returning))
        if not self.member.is_member:
            return due
        if self._to_look and self.underway.moving() < self.options.moves_at_once:
            due = of(due, ((shard, 0.0) for shard in self._to_look))
        if not self.is_leaving and now_s < self.member.deadline_s:
            due = of(due, ((shard, coming.look_s) for shard, coming in self.coming.items()))
            due = min(due, self.agenda.due_s())
        return due

    # --- facts

    def on_time(self, now_s: float) -> None:
        self._step(now_s)

    def hint_group(self, now_s: float) -> None:
        """The list of workers or the shards of the stream may have changed."""
        self.agenda.soon(now_s)
        self._step(now_s)

    def hint_worker(self, worker: WorkerId, now_s: float) -> None:
        if worker == self.me:
            self._effects += self.member.look_at_ours()
        self.member.hint(worker, now_s)
        self._step(now_s)

    def hint_shard(self, shard: str, now_s: float) -> None:
        coming = self.coming.get(shard)
        if coming is not None:
            coming.look_s = now_s
        self._step(now_s)

    def on_initialized(self, shard: str, now_s: float) -> None:
        self.consumers[shard].initialized()
        self._step(now_s)

    def on_delivered(self, shard: str, position: Position) -> None:
        """A batch goes to the program; `may_deliver` was asked."""
        self.consumers[shard].delivered(position)

    def on_checkpoint(
        self, shard: str, epoch: int, checkpoint: Checkpoint, *, at_once: bool, now_s: float
    ) -> None:
        """By the program, also while it is being stopped."""
        consumer = self.consumers.get(shard)
        if consumer is None or consumer.epoch != epoch or not consumer.takes_checkpoints:
            raise LeaseLost(f"shard {shard!r} is not ours any more", epoch=epoch)
        consumer.tracker.checkpoint(checkpoint, at_once=at_once)
        if at_once:
            self._step(now_s)

    def on_end(self, shard: str, now_s: float) -> None:
        """All of it was delivered, and nothing will be added: it is sealed, or the job ends
        here."""
        self._stop(shard, StopReason.ENDED)
        self._step(now_s)

    def on_failed(self, shard: str, now_s: float) -> None:
        """The program did, and shall not be given the same again: the shard is stopped and kept."""
        self._stop(shard, StopReason.FAILED)
        self._step(now_s)

    def on_work_finished(self, shard: str, now_s: float) -> None:
        consumer = self.consumers[shard]
        consumer.finished_work()
        assert consumer.reason is not None
        self._effects.append(asks.Shutdown(shard, consumer.reason))
        self._step(now_s)

    def on_shut_down(self, shard: str, now_s: float) -> None:
        self.consumers[shard].shut_down()
        self._step(now_s)

    def resume(self, shard: str, now_s: float) -> None:
        """What failed here goes back to the group: whoever gets it tries it again."""
        if shard in self.halted:
            self.returning[shard] = self.halted.pop(shard)
        self._step(now_s)

    def ask_leave(self, now_s: float, why: str = "closed") -> None:
        if not self.is_leaving and self.member.phase is not Phase.LOST:
            self.is_leaving, self.why_leaving = True, why
            self._to_take.clear()
            for shard in list(self.consumers):
                self._stop(shard, StopReason.CLOSING)
            for shard in list(self.halted):
                self.returning[shard] = self.halted.pop(shard)
        self._step(now_s)

    # --- answers

    def answered(self, ask: asks.Ask, answer: Any, error: DlogError | None, now_s: float) -> None:
        match ask:
            case asks.Register():
                self.member.on_registered(answer if error is None else None, now_s)
            case asks.Renew():
                self._on_renewed(ask, answer, error, now_s)
            case asks.LookAtWorker() | asks.Bury():
                self._on_looked(ask.worker, answer, error, now_s)
            case asks.ReadGroup():
                self._on_group(answer, error, now_s)
            case asks.Weigh():
                self._on_weighed(answer, error, now_s)
            case asks.WriteWeights():
                self.agenda.soon(now_s)  # by ours, or by those that somebody else wrote
            case asks.Leave():
                self._left = error is None
                self.underway.retry_s[""] = now_s + self.options.retry_s
            case asks.Ring():
                self._on_rung(ask, answer, error, now_s)
            case asks.OfShard():
                self._on_shard(ask, answer, error, now_s)
        self._step(now_s)

    def _on_renewed(
        self, ask: asks.Renew, answer: Any, error: DlogError | None, now_s: float
    ) -> None:
        was_member = self.member.is_member
        if error is None:
            self.member.on_renewed(ask, answer, now_s)
        else:
            self.member.on_not_renewed(error, now_s, is_lost=isinstance(error, LeaseLost))
        if self.member.is_member and not was_member:
            self.agenda.soon(now_s)

    def _on_looked(
        self, worker: WorkerId, answer: Any, error: DlogError | None, now_s: float
    ) -> None:
        if worker == self.me:
            if error is not None or (self.is_leaving and self._is_gone()):
                self.member.on_not_looked(worker, now_s)  # it is no loss that we left
            else:
                self.member.on_looked_at_ours(answer)
        elif error is not None:
            self.member.on_not_looked(worker, now_s)
        elif self.member.on_looked(worker, answer, now_s):
            self.agenda.soon(now_s)
            for coming in self.coming.values():
                if coming.victim == worker:
                    coming.look_s = now_s

    def _on_group(self, answer: Any, error: DlogError | None, now_s: float) -> None:
        self.agenda.read()
        if error is not None or self.is_leaving:
            self.agenda.not_read(now_s)
            return
        shards, workers = answer
        self.graph.update(shards)
        self.member.on_group(workers, now_s)
        self._effects += self.member.bury_namesakes()
        if self.member.is_replaced():
            self.ask_leave(now_s, REPLACED)
            return
        is_done = self.graph.is_done or not shards  # where no log was made yet, a job has none
        if self.options.is_job and is_done and not self.consumers:
            self.ask_leave(now_s, ALL_DONE)
            return
        self._plan(now_s)

    def _on_rung(self, ask: asks.Ring, answer: Any, error: DlogError | None, now_s: float) -> None:
        self._rings.answered(ask.worker)
        if error is None and answer is Rung.GONE:
            self.agenda.soon(now_s)
        elif error is not None or answer is Rung.ASKED:
            for shard in ask.shards:
                if shard in self.coming:
                    self.coming[shard].look_s = now_s + self.options.retry_s

    def _on_shard(
        self, ask: asks.OfShard, answer: Any, error: DlogError | None, now_s: float
    ) -> None:
        shard = ask.shard
        self.underway.answered(shard)
        if error is not None and not isinstance(error, (LeaseLost, Conflict)):
            self.underway.retry_s[shard] = now_s + self.options.retry_s
        match ask:
            case asks.Take():
                self._rings.taken(ask, answer)
                self._on_taken(shard, answer, error, now_s)
            case asks.Look():
                if error is None:
                    self._on_lease(answer, now_s)
                else:
                    self._to_look.setdefault(shard)
            case asks.Save():
                self._on_saved(ask, answer, error, now_s)
            case asks.Prove():
                self._on_proven(ask, answer, error, now_s)
            case asks.Release():
                self._on_released(ask, error, now_s)
            case asks.Renounce() | asks.Drop():
                if error is None or isinstance(error, (LeaseLost, Conflict)):
                    self.coming.pop(shard, None)
                    self.member.is_stale = True

    def _on_taken(self, shard: str, answer: Any, error: DlogError | None, now_s: float) -> None:
        coming = self.coming.get(shard)
        if isinstance(answer, Held) and error is None:
            self.coming.pop(shard, None)
            self.member.is_stale = True
            if self.is_leaving or now_s >= self.member.deadline_s:
                self.returning[shard] = answer  # or it is somebody else's by now
                return
            options = self.options
            consumer = ShardConsumer(shard, answer, options.flush_s, now_s, prove_s=options.prove_s)
            self.consumers[shard] = consumer
            self._effects.append(asks.StartShard(shard, consumer.epoch, consumer.start))
        elif isinstance(answer, Lease) and error is None:
            self._on_announced(shard, answer, now_s)
        elif isinstance(error, (LeaseLost, Conflict)):
            self.coming.pop(shard, None)
            self.agenda.soon(now_s, self.options.retry_s)
        elif coming is not None:
            coming.look_s = now_s + self.options.retry_s
        else:
            self._to_look[shard] = None  # it may have been done all the same
            self.agenda.soon(now_s, self.options.retry_s)

    def _on_announced(self, shard: str, lease: Lease, now_s: float) -> None:
        if lease.is_finished:
            self._on_finished(shard, now_s)
            return
        if lease.owner == self.me and lease.consumer is not None:
            look_s = now_s + self.options.renew_s
            coming = self.coming.setdefault(shard, Coming(lease.consumer, now_s, look_s))
            coming.look_s = look_s
            self._rings.want(lease.consumer, shard)
            if coming.victim != lease.consumer:
                coming.victim, coming.since_s = lease.consumer, now_s
            self.member.is_stale |= not coming.is_told
            coming.is_told = True
            return
        self.coming.pop(shard, None)
        whose = lease.consumer or lease.owner
        if whose is not None and whose != self.me:
            self._rings.want(whose, shard)  # which may not know of it
        self.agenda.soon(now_s, self.options.retry_s)

    def _on_finished(self, shard: str, now_s: float) -> None:
        self.graph.finish(shard)
        self.coming.pop(shard, None)
        self._unblocked.update(self.graph.children(shard))
        self.agenda.soon(now_s)

    def _on_lease(self, seen: Held, now_s: float) -> None:
        """Of a shard that we were asked to look at, or wonder about."""
        lease, shard = seen.lease, seen.lease.shard
        self.member.looked_into(shard)
        consumer = self.consumers.get(shard)
        if lease.is_finished and consumer is None:
            self._on_finished(shard, now_s)
        elif consumer is not None:
            if lease.consumer != self.me or seen.turn != consumer.held.turn:
                self._stop(shard, StopReason.LOST)
            elif lease.owner != self.me:
                self._stop(shard, StopReason.HANDED_OVER)
        elif shard in self.halted and lease.owner != self.me:
            self.returning[shard] = self.halted.pop(shard)
        elif lease.consumer == self.me and shard not in (*self.returning, *self.halted):
            # A claim of ours came true behind our back.
            self._send(asks.Drop(shard, seen))
        elif lease.owner == self.me and lease.consumer is None and not self.is_leaving:
            self._to_take[shard] = None  # it was left to us
        elif lease.owner == self.me and shard not in self.coming:
            self._send(asks.Renounce(shard))  # an announcement that we do not remember
        elif lease.consumer is None:
            self.agenda.soon(now_s)

    def _on_saved(self, ask: asks.Save, answer: Any, error: DlogError | None, now_s: float) -> None:
        consumer = self.consumers.get(ask.shard)
        if consumer is None or consumer.epoch != ask.held.lease.epoch:
            return
        if error is None:
            consumer.tracker.saved(now_s)
            consumer.proven(answer, now_s)
            self._effects.append(asks.Saved(ask.shard, ask.checkpoint))
            if answer.lease.owner != self.me:
                self._stop(ask.shard, StopReason.HANDED_OVER)
            return
        is_lost = isinstance(error, (LeaseLost, Conflict))
        consumer.tracker.not_saved(at_once=not is_lost)
        if is_lost:
            self._effects.append(asks.Saved(ask.shard, ask.checkpoint, error))
            self._stop(ask.shard, StopReason.LOST)
        if consumer.is_fenced and consumer.step is StopStep.FLUSHING:
            self._complete(consumer, now_s)  # it had its try

    def _on_proven(
        self, ask: asks.Prove, answer: Any, error: DlogError | None, now_s: float
    ) -> None:
        consumer = self.consumers.get(ask.shard)
        if consumer is None or consumer.epoch != ask.held.lease.epoch:
            return
        if error is None:
            consumer.proven(answer, now_s)
        elif isinstance(error, (LeaseLost, Conflict)):
            self._stop(ask.shard, StopReason.LOST)

    def _on_released(self, ask: asks.Release, error: DlogError | None, now_s: float) -> None:
        shard = ask.shard
        if error is not None and not isinstance(error, (LeaseLost, Conflict)):
            return  # again, when it is time
        consumer = self.consumers.get(shard)
        if consumer is None or consumer.epoch != ask.held.lease.epoch:
            self.returning.pop(shard, None)
            self.agenda.soon(now_s)
            return
        if error is not None:
            consumer.stop(StopReason.LOST)
        elif ask.checkpoint is not None:
            self._effects.append(asks.Saved(shard, ask.checkpoint))
        self._complete(consumer, now_s)
        if error is None and ask.is_finished:
            self._on_finished(shard, now_s)

    # --- stopping a shard

    def _stop(self, shard: str, reason: StopReason) -> None:
        consumer = self.consumers.get(shard)
        if consumer is not None and consumer.stop(reason):
            self._effects.append(asks.StopFetch(shard))

    def _complete(self, consumer: ShardConsumer, now_s: float) -> None:
        consumer.completed()
        assert consumer.reason is not None
        del self.consumers[consumer.shard]
        self.underway.retry_s.pop(consumer.shard, None)
        self.member.is_stale = True
        reason = StopReason.LOST if consumer.is_fenced else consumer.reason
        self._effects.append(asks.ShardStopped(consumer.shard, reason))
        self.agenda.soon(now_s)

    def _flush(self, consumer: ShardConsumer, now_s: float) -> None:
        """Its last checkpoint, and the lease, in one change; where the lease is lost, a last try to
        save: nobody may have claimed it yet."""
        shard, unsaved = consumer.shard, consumer.tracker.unsaved
        if consumer.is_fenced or self.member.phase is Phase.LOST:
            consumer.is_fenced = True
            if unsaved is None:
                self._complete(consumer, now_s)
            else:
                self._send(asks.Save(shard, consumer.held, consumer.tracker.sent()))
        elif consumer.reason is StopReason.FAILED and not self.is_leaving:
            if unsaved is not None:
                self._send(asks.Save(shard, consumer.held, consumer.tracker.sent()))
            else:
                consumer.releasing()
                self.halted[shard] = consumer.held
                self._complete(consumer, now_s)
        else:
            consumer.releasing()
            self._release(consumer)

    def _release(self, consumer: ShardConsumer) -> None:
        is_finished = consumer.reason is StopReason.ENDED
        unsaved = consumer.tracker.unsaved
        self._send(asks.Release(consumer.shard, consumer.held, unsaved, is_finished))

    # --- planning

    def _plan(self, now_s: float) -> None:
        outlook = self._look_out()
        self.moves = plan(outlook.view)
        self._to_take = {
            move.shard: outlook.consumers.get(move.shard)
            for move in moves_of(self.moves, self.me)
            if move.shard not in self.coming
        }
        self._rings.planned((each for each in self.moves if each.taker != self.me), self._unblocked)
        self._unblocked.clear()
        self._wonder(outlook.unheld)
        self._to_look |= self.member.contested((*self.consumers, *self.halted))
        is_settled = not self.moves and not self._to_look
        self.agenda.planned(now_s, others=len(self.member.others), is_settled=is_settled)

    def _look_out(self) -> Outlook:
        return look_out(
            self.graph,
            WorkerView(self.me, self.member.domain),
            self.member.others,
            replaced=self.member.replaced(),
            holds=(*self.consumers, *self.halted, *self.returning),
            keeps=(each.shard for each in self.consumers.values() if each.reason is None),
            coming={shard: coming.victim for shard, coming in self.coming.items()},
        )

    def _on_weighed(self, answer: Any, error: DlogError | None, now_s: float) -> None:
        self.agenda.weighed(now_s)
        if error is None and not self.is_leaving:
            weights = weights_of(answer)
            if is_worth_it(self._look_out().view, weights):
                self._effects.append(asks.WriteWeights(weights))

    def _wonder(self, unheld: set[str]) -> None:
        """Shards that nobody has may be at their end, which only their leases tell: parents that
        others wait for, and what stays without anybody."""
        often = unheld if self.options.is_job else unheld & self._unheld
        self._unheld = unheld
        ours = self.consumers.keys() | self._to_take.keys() | self.underway.busy.keys()
        wondered = gates(self.graph, self.member.others) | often
        self._to_look |= dict.fromkeys(sorted(wondered - ours))

    # --- what is to be done

    def _send(self, ask: asks.OfShard) -> None:
        self.underway.busy[ask.shard] = ask
        self._effects.append(ask)

    def _step(self, now_s: float) -> None:
        if self.has_ended:
            return
        if self.member.phase is Phase.LOST:
            self._lose()
        if self.member.wanted and not self._is_parting:
            for shard in sorted(self.member.wanted - self.underway.busy.keys()):
                self.member.wanted.discard(shard)
                self._to_look.setdefault(shard)
        self._work(now_s)
        if self.member.is_member and not self.is_leaving:
            self._seek(now_s)
        self._effects += self._rings.due()
        if not self._left and not (self.is_leaving and self._is_gone()):
            holds = (*self.consumers, *self.halted, *self.returning)
            self._effects += self.member.asks(now_s, holds, self.coming)
        self._end(now_s)

    def _lose(self) -> None:
        for shard in list(self.consumers):
            self.consumers[shard].is_fenced = True
            self._stop(shard, StopReason.LOST)
        for each in (self.coming, self.returning, self.halted, self._to_take, self._to_look):
            each.clear()

    def _work(self, now_s: float) -> None:
        for shard, consumer in list(self.consumers.items()):
            if consumer.due_s() > now_s or not self.underway.is_free(shard, now_s):
                continue
            if consumer.step is StopStep.FLUSHING:
                self._flush(consumer, now_s)
            elif consumer.step is StopStep.RELEASING:
                self._release(consumer)
            elif consumer.tracker.unsaved is None:
                self._send(asks.Prove(shard, consumer.held))
            else:
                self._send(asks.Save(shard, consumer.held, consumer.tracker.sent()))
        for shard, held in self.returning.items():
            if self.underway.is_free(shard, now_s):
                self._send(asks.Release(shard, held, None, is_finished=False))
        for shard in [each for each in self._to_look if self.underway.is_free(each, now_s)]:
            if self.underway.moving() < self.options.moves_at_once:
                del self._to_look[shard]
                self._send(asks.Look(shard))
        if self.is_leaving:
            for shard in self.coming:
                if self.underway.is_free(shard, now_s):
                    self._send(asks.Renounce(shard))

    def _seek(self, now_s: float) -> None:
        """More shards: those that are coming, those of the plan, and a new plan."""
        if now_s >= self.member.deadline_s:
            return
        if self.agenda.begins_plan(now_s):
            self._effects.append(asks.ReadGroup())
        if self.agenda.begins_weighing(now_s, is_first=self.member.is_first):
            self._effects.append(asks.Weigh())
        for shard, coming in self.coming.items():
            if now_s >= coming.look_s and self.underway.is_free(shard, now_s):
                force_s = self.options.force_s
                is_late = force_s is not None and now_s >= coming.since_s + force_s
                over = coming.victim if is_late else None
                self._send(asks.Take(shard, coming.victim, is_announced=True, over=over))
        for shard in [each for each in self._to_take if self.underway.is_free(each, now_s)]:
            if self.underway.moving() < self.options.moves_at_once:
                victim = self._to_take.pop(shard)
                if shard not in self.consumers and shard not in self.returning:
                    self._send(asks.Take(shard, victim))

    def _end(self, now_s: float) -> None:
        if not self.is_leaving and self.member.phase is not Phase.LOST:
            return
        if self.consumers or self.underway.busy:
            return
        if self.member.phase is Phase.LOST:
            self.has_ended = True
            self._effects.append(asks.WorkerEnded("", True, "taken for dead"))
        elif self.is_leaving and self._left:
            self.has_ended = True
            self._effects.append(asks.WorkerEnded("", False, self.why_leaving))
        elif self.is_leaving and not self.member.is_renewing:
            # The very last thing: until then nobody takes us for dead.
            if self._is_gone() and now_s >= self.underway.retry_s.get("", 0.0):
                self.underway.retry_s[""] = math.inf
                self._effects.append(asks.Leave())

    def _is_gone(self) -> bool:
        """Nothing is left to renew for; or there never was."""
        ours = (self.consumers, self.coming, self.returning, self.underway.busy, self._to_look)
        return self.member.seen is None or self._is_parting or not any(ours)

    @property
    def _is_parting(self) -> bool:
        """Our node is being deleted, or is gone."""
        return self._left or self.underway.retry_s.get("") == math.inf
