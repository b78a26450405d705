"""A worker in the simulator: a process with a clock of its own, the production core and errands,
and a program that takes its time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dlog.effects import (
    CreateNode,
    DeleteNode,
    Effect,
    ListNodes,
    Pause,
    Procedure,
    ReadNode,
    ReplaceNode,
)
from dlog.errors import DlogError, LeaseLost, Outcome, Timeout
from dlog.groups.asks import (
    Ask,
    Leave,
    Order,
    Saved,
    ShardStopped,
    Shutdown,
    StartShard,
    StopFetch,
    Take,
    Weigh,
    WorkerEnded,
)
from dlog.groups.consumer import StopReason
from dlog.groups.core import WorkerCore
from dlog.groups.errands import Errands
from dlog.groups.leases import Checkpoint
from dlog.groups.log_leases import AppendLeaseLog, CloseLeaseLog, OpenLeaseLog, ReadLeaseLog
from dlog.groups.membership import Phase
from dlog.groups.view import WorkerId
from dlog.ids import Position
from dlog.testing.sim.clients import Task
from dlog.testing.sim.groups_oracle import ORDER
from dlog.testing.sim.groups_swarm import DRIFT_MAX
from dlog.testing.sim.metadata import Answered
from dlog.testing.sim.world import Violation, World, require

if TYPE_CHECKING:
    from dlog.testing.sim.groups_world import GroupScene

FROZEN_MS = 200.0
CUT_MS, CUT_ANSWER_MS = 300.0, 4.0
POLL_MS = 5.0
LOG_UID = "u"


def checkpoint_at(seq: int) -> Checkpoint:
    return Checkpoint(Position(LOG_UID, seq, None))


@dataclass(slots=True, eq=False)
class Processor:
    """The program on one shard."""

    shard: str
    epoch: int
    at: int
    is_stopping: bool = False
    is_busy: bool = True  # initializing, at first
    is_waiting: bool = False
    is_told: bool = False  # that it shuts down


class SimMember:
    def __init__(self, scene: GroupScene, name: str, domain: str | None) -> None:
        world, weather = scene.world, scene.weather
        self.scene = scene
        self.world: World = world
        self.name = name
        self.alive = True
        self.frozen = False
        self.is_cut = False
        self.synced = 0
        self._inbox: list[Callable[[], None]] = []
        chance = world.chance
        self.meta_ms: float = chance.pick((1.0, 1.0, weather.slow), f"metadata is slow for {name}")
        drift = (2 * chance.random() - 1) * DRIFT_MAX if weather.is_drifting else 0.0
        self._rate = 1.0 + drift
        self._offset_s = 1000.0 * chance.random()
        self._skew_us = int(chance.random() * 36_000_000_000)  # hours: nobody may mind
        self.id = WorkerId(name, world.chance.token()[-16:])
        self.core = WorkerCore(self.id, self.now_s(), domain=domain, options=weather.options())
        self._errands = Errands(self.id, scene.leases_of(self), scene.read_shards, scene.numbers)
        self.processors: dict[str, Processor] = {}
        self._timer_ms = math.inf
        self._serial = 0
        self._watched: set[str] = set()
        self._groups_watched = 0
        self._is_watching = weather.watches
        self.asked = 0  # operations of metadata
        scene.oracle.members[self.id] = self
        world.note(f"{self.id} begins")
        self.after(0.0, self._begin)

    def __repr__(self) -> str:
        return self.name

    def _begin(self) -> None:
        self.core.on_time(self.now_s())
        self.pump()

    # --- clock, chance, life

    def now_s(self) -> float:
        return self._offset_s + self.world.now_ms / 1000 * self._rate

    def now_us(self) -> int:
        return self._skew_us + int(self.world.now_ms * 1000)

    def fraction(self) -> float:
        return (self.world.chance.random() + 0.5) % 1.0

    def token(self) -> str:
        return self.world.chance.token()

    def after(self, delay_ms: float, what: Callable[[], None]) -> None:
        self.world.after(delay_ms, lambda: self.receive(what))

    def receive(self, what: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.frozen:
            self._inbox.append(what)
        else:
            what()

    def may_be_hit(self) -> bool:
        world, weather = self.world, self.scene.weather
        if weather.crash and world.strikes(weather.crash, "a worker crashes"):
            self.crash()
        elif weather.freeze and world.strikes(weather.freeze, "a worker freezes"):
            self.freeze()
        return not self.alive

    def crash(self) -> None:
        if self.alive:
            self.world.note(f"{self.name} crashes")
            self.alive = False
            self._inbox.clear()
            self.scene.oracle.robbed = True
            self.scene.on_ended(self)

    def freeze(self) -> None:
        if self.alive and not self.frozen:
            self.world.note(f"{self.name} is frozen")
            self.frozen = True
            self.world.after(self.world.chance.delay(FROZEN_MS), self.thaw)

    def thaw(self) -> None:
        if self.frozen:
            self.world.note(f"{self.name} wakes")
            self.frozen = False
            inbox, self._inbox = self._inbox, []
            for what in inbox:
                self.receive(what)

    def cut_off(self) -> None:
        """From metadata, and only this one: nobody else notices anything but its silence."""
        self.world.note(f"{self.name} is cut off from metadata")
        self.world.mark("a worker is cut off")
        self.is_cut = True
        self.world.after(self.world.chance.delay(CUT_MS), self.reach_again)

    def reach_again(self) -> None:
        self.is_cut = False

    def leave(self) -> None:
        if self.alive:
            self.world.note(f"{self.name} is asked to leave")
            self.core.ask_leave(self.now_s())
            self.pump()

    # --- effects of procedures

    def perform(self, effect: Effect, answer: Answered) -> None:
        meta = self.scene.meta
        self.asked += 1
        if self.is_cut and not isinstance(effect, Pause):
            reads = isinstance(effect, (ReadNode, ListNodes, ReadLeaseLog))
            outcome = Outcome.NOT_HAPPENED if reads else Outcome.UNKNOWN
            lost = Timeout("no reply in time", outcome=outcome)
            self.after(CUT_ANSWER_MS, lambda: answer(None, lost))
            return
        match effect:
            case ReadNode(path=path, fresh=fresh):
                self.asked += fresh  # a sync before it
                meta.read(self, path, fresh, answer)
            case ReplaceNode(path=path, value=value, version=version):
                meta.write(self, path, lambda: meta.put(path, value, version), answer)
            case CreateNode(path=path, value=value):
                meta.write(self, path, lambda: meta.create(path, value, None), answer)
            case DeleteNode(path=path, version=version):
                meta.write(self, path, lambda: meta.delete(path, version), answer)
            case ListNodes(path=path):
                meta.list(self, path, answer)
            case Pause(seconds=seconds):
                self.asked -= 1
                self.after(seconds * 1000, lambda: answer(None, None))
            case OpenLeaseLog() | AppendLeaseLog() | CloseLeaseLog() | ReadLeaseLog():
                self.asked -= 1
                self.scene.logs.perform(self, effect, answer)
            case _:
                raise Violation("simulator", f"no driver for {type(effect).__name__}")

    def perform_at_once(self, effect: Effect) -> bool:
        return False

    def run(self, procedure: Procedure[Any], done: Answered) -> None:
        Task(self, procedure, done).resume(None, None)

    # --- the core's driver

    def pump(self) -> None:
        core = self.core
        while self.alive and (effects := core.take()):
            for effect in effects:
                if isinstance(effect, Ask):
                    self._ask(effect)
                else:
                    self._obey(effect)
        if self.alive:
            self._arm()
            if self._is_watching:
                self._watch()

    def _ask(self, ask: Ask) -> None:
        if isinstance(ask, Leave):
            require(not self.processors, ORDER, f"{self.name} leaves with shards in its hands")
        elif isinstance(ask, Take) and ask.over is not None:
            self.world.mark("forced")
            self.scene.oracle.forced.add(ask.shard)

        def done(answer: Any, error: DlogError | None) -> None:
            self.core.answered(ask, answer, error, self.now_s())
            self.pump()

        if isinstance(ask, Weigh):
            self._weigh(done)
        else:
            self.run(self._errands.of(ask), done)

    def _weigh(self, done: Answered) -> None:
        found, error = self.scene.weigh(), None
        if self.is_cut or self.world.strikes(self.scene.weather.meta.refused, "no weights"):
            error = Timeout("no reply in time")
        self.after(self.world.chance.delay(self.meta_ms), lambda: done(found, error))

    def _arm(self) -> None:
        due_s = self.core.wakes_at_s(self.now_s())
        if due_s == math.inf:
            return
        at_ms = (due_s - self._offset_s) / self._rate * 1000 + 1e-6
        at_ms = max(self.world.now_ms, at_ms)
        if at_ms >= self._timer_ms > self.world.now_ms:
            return
        self._timer_ms = at_ms
        self._serial += 1
        serial = self._serial

        def ring() -> None:
            if serial == self._serial:
                self._timer_ms = math.inf
                self.core.on_time(self.now_s())
                self.pump()

        self.world.at(at_ms, lambda: self.receive(ring))

    def _watch(self) -> None:
        scene, core, places = self.scene, self.core, self.scene.places
        for worker in core.member.watched():
            path = places.worker(worker)
            if path not in self._watched:
                self._listen(path, partial(self._hint, core.hint_worker, worker))
        groups = [places.workers, scene.stream_path]
        if scene.weather.weighs:
            groups.append(places.weights)
        if self._groups_watched < len(groups):
            for path in groups:
                if path not in self._watched:
                    self._groups_watched += 1
                    self._listen(path, self._hint_group)
        for shard in core.coming:
            path = places.lease(shard)
            if path not in self._watched:
                self._listen(path, partial(self._hint, core.hint_shard, shard))

    def _hint_group(self) -> None:
        self._groups_watched -= 1
        self.core.hint_group(self.now_s())

    def _hint(self, tell: Callable[[Any, float], None], what: Any) -> None:
        tell(what, self.now_s())

    def _listen(self, path: str, tell: Callable[[], None]) -> None:
        self._watched.add(path)

        def heard() -> None:
            self._watched.discard(path)
            tell()
            self.pump()

        delay_ms = self.meta_ms
        self.scene.meta.watch(path, lambda: self.world.after(delay_ms, lambda: self.receive(heard)))

    # --- orders

    def _obey(self, order: Order) -> None:
        match order:
            case StartShard(shard=shard, epoch=epoch, checkpoint=checkpoint):
                self._start(shard, epoch, checkpoint)
            case StopFetch(shard=shard):
                self._stop_fetch(self.processors[shard])
            case Shutdown(shard=shard, reason=reason):
                self._shut_down(self.processors[shard], reason)
            case ShardStopped(shard=shard, reason=reason):
                processor = self.processors.pop(shard)
                require(processor.is_told, ORDER, f"{shard} ends, and its program was not told")
                self.world.mark(f"a shard stops: {reason.value}")
                is_lost = reason is StopReason.LOST
                self.scene.oracle.robbed |= self.core.member.phase is Phase.LOST
                self.scene.oracle.on_stopped(self.id, shard, processor.epoch, is_lost=is_lost)
            case WorkerEnded(is_lost=is_lost):
                self.world.note(f"{self.name} ends{', lost' if is_lost else ''}")
                self.world.mark("a worker is lost" if is_lost else "a worker ends")
                self.alive = False
                if is_lost:
                    self.scene.oracle.robbed = True
                self.scene.on_ended(self)
            case Saved(shard=shard, checkpoint=checkpoint, error=error):
                if error is None:
                    log = self.scene.shards[shard]
                    log.hold = max(log.hold, checkpoint.next_seq)

    def _start(self, shard: str, epoch: int, checkpoint: Checkpoint | None) -> None:
        self.scene.oracle.on_started(self.id, shard, epoch, checkpoint)
        if self.world.is_told:
            self.world.note(f"{self.name} starts {shard} with epoch {epoch}")
        start = 0 if checkpoint is None else checkpoint.next_seq
        processor = self.processors[shard] = Processor(shard, epoch, start)
        self.after(self.world.chance.delay(1.0), lambda: self._initialized(processor))

    def _initialized(self, processor: Processor) -> None:
        processor.is_busy = False
        self.core.on_initialized(processor.shard, self.now_s())
        self.pump()
        self._go_on(processor)

    def _go_on(self, processor: Processor) -> None:
        """Finish, wait, or the next batch."""
        core, shard, scene = self.core, processor.shard, self.scene
        if not self.alive or self.processors.get(shard) is not processor or processor.is_busy:
            return
        processor.is_waiting = False
        if processor.is_stopping:
            if not processor.is_told:
                processor.is_told = True
                core.on_work_finished(shard, self.now_s())
                self.pump()
            return
        log = scene.shards[shard]
        if processor.at >= log.total:
            if log.is_sealed:
                core.on_end(shard, self.now_s())
                self.pump()
            else:
                processor.is_waiting = True
                log.waiters.append(lambda: self.after(0.1, lambda: self._go_on(processor)))
            return
        if not core.may_deliver(shard, processor.epoch, self.now_s()):
            self.world.mark("delivery waits")
            self.after(POLL_MS, lambda: self._go_on(processor))
            return
        end = min(log.total, processor.at + scene.weather.batch)
        scene.oracle.on_delivered(self, shard, processor.epoch, processor.at, end)
        core.on_delivered(shard, Position(LOG_UID, end, None))
        processor.is_busy = True
        took_ms = 0.2 + self.world.chance.delay(scene.weather.process_ms)
        self.after(took_ms, lambda: self._processed(processor, end))

    def _processed(self, processor: Processor, end: int) -> None:
        if self.may_be_hit():
            return
        if self.frozen:
            self.receive(lambda: self._processed(processor, end))
            return
        processor.is_busy = False
        first, processor.at = processor.at, end
        self.scene.oracle.on_processed(processor.shard, first, end)
        mode = self.scene.weather.checkpoints
        if mode != "late":
            self._say(processor, at_once=mode == "at_once")
        self.pump()
        self._go_on(processor)

    def _say(self, processor: Processor, *, at_once: bool) -> None:
        checkpoint = checkpoint_at(processor.at)
        shard, epoch = processor.shard, processor.epoch
        try:
            self.core.on_checkpoint(shard, epoch, checkpoint, at_once=at_once, now_s=self.now_s())
        except LeaseLost:
            return
        self.scene.oracle.said[shard, epoch] = checkpoint

    def _stop_fetch(self, processor: Processor) -> None:
        processor.is_stopping = True
        if not processor.is_busy:
            self.after(0.0, lambda: self._go_on(processor))

    def _shut_down(self, processor: Processor, reason: StopReason) -> None:
        require(
            processor.is_stopping and not processor.is_busy,
            ORDER,
            f"{processor.shard} is shut down while it is at work",
        )

        def done() -> None:
            if reason is not StopReason.LOST and processor.at > 0:
                self._say(processor, at_once=False)
            self.core.on_shut_down(processor.shard, self.now_s())
            self.pump()

        self.after(self.world.chance.delay(0.5), done)
