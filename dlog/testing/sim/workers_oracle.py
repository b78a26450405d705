"""What has to be true of real workers: beside the truth of the metadata store, of what was appended
to lease logs, and of what each program was given and said.

A *visit* is one grant of a shard, as the program of it sees it: by its token. A *turn* is the same
in the lease's node; where leases are in logs, the two are different numbers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dlog.errors import FormatError, LeaseLost
from dlog.groups.consumer import StopReason
from dlog.groups.leases import Lease
from dlog.groups.places import GroupPlaces
from dlog.groups.view import WorkerId
from dlog.groups.worker import Worker
from dlog.meta.holds import Hold
from dlog.meta.layout import Layout, unescape
from dlog.reader.message import Message, MessageBatch
from dlog.testing.sim.workers_process import WorkerProcess
from dlog.testing.sim.workers_swarm import DRIFT_MAX, TIMEOUT_MS, WorkersWeather
from dlog.testing.sim.world import Violation, World, require

GROUP, STREAM = "g", "s"
HELD, EXCLUSIVE, MONOTONE, ONE_OWNER = "I19", "I20", "I21", "I22"
ONCE, FLUSHED, ORDER, BUSY, TOLD = "LH-11", "LH-51", "LH-57", "LH-28", "LH-58"
CALM_MS = 2 * TIMEOUT_MS  # behind a trouble: from then on nobody may be taken for dead


@dataclass(eq=False)
class Life:
    """One worker that a process opens."""

    name: str
    process: WorkerProcess
    worker: Worker | None = None
    is_closing: bool = False
    is_hurried: bool = False
    is_over: bool = False
    was_replaced: bool = False

    @property
    def core(self) -> Any:
        """White box: when may it be taken for dead, by its own clock?"""
        return None if self.worker is None else self.worker._heart._core

    @property
    def is_alive(self) -> bool:
        return self.process.is_alive and not self.is_over

    @property
    def is_settled(self) -> bool:
        """Neither on its way to be a member nor to its end."""
        return not self.is_alive or (self.is_member and not self.is_closing)

    @property
    def is_member(self) -> bool:
        if not self.is_alive or self.core is None or self.core.has_ended:
            return False
        return bool(self.core.member.is_member)


@dataclass(eq=False)
class Visit:
    life: Life
    log: str
    token: int
    me: WorkerId
    turn: int
    shard: Any  # its ShardInfo
    at: int  # the next message that it is to be given
    said: int
    handed: int
    failed_from: int | None = None  # the batch at hand raised
    failures: Counter[int] = field(default_factory=Counter)  # of single messages
    calls: int = 0
    is_initialized: bool = False
    is_told: bool = False
    is_over: bool = False
    reason: StopReason | None = None

    def __repr__(self) -> str:
        return f"{self.log} with token {self.token} of {self.me}"


class Judge:
    """Drivers take what programs and stores raise for failures of theirs, and try again: so the
    first violation is kept, and ends the history whatever becomes of it."""

    def __init__(self) -> None:
        self.violation: Violation | None = None

    def require(self, held: bool, promise: str, what: str, *about: object) -> None:
        try:
            require(held, promise, what, *about)
        except Violation as violation:
            self.violation = self.violation or violation
            raise


class Database(Judge):
    """Of the programs: what they do to it is guarded by the token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: dict[str, int] = {}
        self.next_seq: dict[str, int] = {}
        self.values: dict[bytes, int] = {}  # how often they came
        self.skipped: set[tuple[str, int]] = set()
        self.refused = 0
        self._last: dict[bytes, int] = {}  # by key

    def begin(self, log: str, token: int) -> None:
        self.tokens[log] = max(token, self.tokens.get(log, 0))

    def add(self, log: str, token: int, message: Message) -> None:
        if token < self.tokens.get(log, 0):
            self.refused += 1
            raise LeaseLost("somebody else was here")
        value, key = message.value or b"", message.key or b""
        self.values[value] = self.values.get(value, 0) + 1
        at = self.next_seq.get(log, 0)
        if message.seq < at:
            return  # it is there
        self.skipped.update((log, seq) for seq in range(at, message.seq))
        self.next_seq[log] = message.seq + 1
        number = int(value.lstrip(b"!"))
        last = self._last.get(key, -1)
        self.require(number > last, "I17", f"{key!r}: {number} came behind {last}, in {log}")
        self._last[key] = number


class WorkersOracle(Judge):
    def __init__(self, world: World, weather: WorkersWeather) -> None:
        super().__init__()
        self.world, self.weather = world, weather
        self.in_logs = weather.leases == "logs"
        self.places = GroupPlaces(Layout(), GROUP, STREAM)
        self.database = Database()
        self.lives: list[Life] = []
        self.leases: dict[str, Lease] = {}  # the truth of the nodes
        self.kept: dict[str, int] = {}  # of checkpoints, by log
        self.holds: dict[str, int] = {}
        self.visits: dict[tuple[str, int], Visit] = {}
        self.letters: set[tuple[str, int]] = set()  # that must be there
        self.buried: set[bytes] = set()  # values of those that were put
        self.changes = 0  # of consumers
        self.registered: set[WorkerId] = set()
        self.dead: set[WorkerId] = set()
        self._grants: dict[tuple[str, int], Lease] = {}  # by token, as they began
        self._turn_of: dict[tuple[str, int], int] = {}  # by token
        self._last_turn: dict[tuple[str, WorkerId], int] = {}
        self._by_turn: dict[tuple[str, int], Visit] = {}
        self._announced: dict[tuple[str, int], tuple[WorkerId, float]] = {}
        self._ever_announced: set[tuple[str, int]] = set()
        self._forced: set[tuple[str, int]] = set()  # turns that were ended by force
        self._openings: Counter[str] = Counter()
        self._fenced: dict[str, int] = {}  # the highest epoch that a lease log was opened with
        self.calm_ms = 0.0
        self._leases_at = f"{self.places.leases}/"
        self._workers_at = f"{self.places.workers}/"

    def names(self) -> list[str]:
        """By which members go that mean to stay."""
        return [each.name for each in self.lives if each.is_member and not each.core.is_leaving]

    # --- the metadata store

    def on_write(self, path: str, value: bytes) -> None:
        if path.startswith(self._leases_at):
            self._on_lease(Lease.from_bytes(value, where=path))
        elif path.startswith(self._workers_at):
            worker = WorkerId.from_node(path[len(self._workers_at) :])
            if worker in self.dead:  # a registration that was late; it is buried once more
                is_late = self.weather.climate.meta.late > 0.0
                self.require(is_late, EXCLUSIVE, f"{worker} came back from the dead")
                self.dead.discard(worker)
            if worker not in self.registered:
                self.registered.add(worker)
                for life in self.lives:
                    life.was_replaced |= life.name == worker.name and life.core is not None
        elif "/holds/" in path:
            hold = Hold.from_bytes(value, unescape(path.rpartition("/")[2]), where=path)
            self._on_hold(unescape(path.split("/")[-3]), hold)

    def _on_hold(self, log: str, hold: Hold) -> None:
        if not hold.name.startswith("group "):
            return
        self.holds[log] = hold.seq
        kept = self.kept.get(log, 0)
        self.require(hold.seq <= kept, HELD, f"{log} is held at {hold.seq}, kept is {kept}")

    def on_drop(self, path: str) -> None:
        if "/holds/group" in path:
            log = unescape(path.split("/")[-3])
            self.holds.pop(log, None)
        if not path.startswith(self._workers_at):
            return
        try:
            worker = WorkerId.from_node(path[len(self._workers_at) :])
        except FormatError:
            return
        self.dead.add(worker)
        life = self._life_of(worker)
        if life is None or not life.process.is_alive:
            return
        assert life.worker is not None
        ending = life.worker._heart._ending
        if life.is_hurried and ending is not None and ending.is_set():
            return  # it was in a hurry, and did not wait to be let go
        core, world = life.core, self.world
        if core._is_parting or (core.is_leaving and core._is_gone()):  # it left by itself
            left = [each for each in self.leases.values() if each.consumer == worker]
            known = [each.shard for each in left if each.shard in core.consumers]
            self.require(not known, ORDER, f"{worker} left before it released", *known)
            return
        now_s, deadline_s = life.process.now_s(), core.member.deadline_s
        if not (self.weather.trusts_name and life.was_replaced):
            self.require(
                now_s >= deadline_s, ONE_OWNER, f"{worker} was buried alive", now_s, deadline_s
            )
        process = life.process
        well_ms = process.last_trouble_ms
        is_well = not process.is_frozen and not process.is_cut
        if world.is_calm and is_well and world.now_ms - max(well_ms, self.calm_ms) > CALM_MS:
            self.require(
                self.weather.heart == "loop" and process.is_blocked,
                BUSY,
                f"{worker} was taken for dead, and all was well with it",
            )

    def check(self) -> None:
        found = self.violation or self.database.violation
        if found is not None:
            raise found

    def on_calm(self) -> None:
        self.calm_ms = self.world.now_ms

    def _life_of(self, worker: WorkerId) -> Life | None:
        for life in self.lives:
            if life.core is not None and life.core.me == worker:
                return life
        return None

    def _on_lease(self, lease: Lease) -> None:
        log = lease.shard
        was = self.leases.get(log, Lease(log))
        self.leases[log] = lease
        self.require(lease.epoch >= was.epoch, EXCLUSIVE, "an epoch went back", log, was, lease)
        if lease.consumer is not None and lease.epoch > was.epoch:
            self._on_granted(log, lease, was)
        elif lease.consumer != was.consumer:
            self.require(lease.consumer is None, EXCLUSIVE, "a grant without an epoch", was, lease)
            self._on_released(log, lease, was)
        if lease.owner != lease.consumer and lease.owner is not None:
            turn = log, lease.epoch
            self._ever_announced.add(turn)
            if self._announced.get(turn, (None, 0.0))[0] != lease.owner:
                self._announced[turn] = lease.owner, self.world.now_ms
        if not self.in_logs and lease.checkpoint != was.checkpoint:
            self.require(
                lease.epoch == was.epoch, MONOTONE, "a checkpoint of another epoch", was, lease
            )
            self.require(was.consumer is not None, MONOTONE, "a checkpoint of nobody", was, lease)
            self._on_kept(log, lease, self.visits.get((log, lease.epoch)))
        if lease.is_finished and not was.is_finished:
            # Where leases are in logs, the node may be told by whoever comes next.
            ended = [
                each
                for each in self.visits.values()
                if each.log == log and each.reason is StopReason.ENDED
            ]
            is_end = any(self.in_logs or each.turn == was.epoch for each in ended)
            self.require(is_end, ORDER, "a shard is finished that was not at its end", log)

    def _on_granted(self, log: str, lease: Lease, was: Lease) -> None:
        me = lease.consumer
        assert me is not None
        self.changes += 1
        self._last_turn[log, me] = lease.epoch
        if not self.in_logs:
            self._grants[log, lease.epoch] = lease
            self._turn_of[log, lease.epoch] = lease.epoch
        victim = was.consumer
        if victim is None or victim == me or victim in self.dead:
            return
        owner, since_ms = self._announced.get((log, was.epoch), (None, 0.0))
        force_ms, age_ms = self.weather.hand_over_ms, self.world.now_ms - since_ms
        told = f"{log} was taken from {victim}, which lives"
        self.require(force_ms is not None, ONE_OWNER, told)
        assert force_ms is not None
        is_due = owner == me and age_ms >= force_ms * (1 - 2 * DRIFT_MAX) - 1.0
        self.require(is_due, ONE_OWNER, f"{told}: it had {age_ms:.0f} ms of {force_ms}, for", owner)
        self._forced.add((log, was.epoch))
        self.world.mark("a shard is taken by force")

    def _on_released(self, log: str, lease: Lease, was: Lease) -> None:
        self.world.mark("a shard is released")
        visit = self._by_turn.get((log, was.epoch))
        if visit is None or visit.reason is StopReason.LOST:
            return  # who knows nothing of a lease that names it gives it back
        self.require(visit.calls == 0, ORDER, f"{visit}: released while its program is at a call")
        was_cut_short = visit.is_told and visit.life.is_hurried
        self.require(
            visit.is_over or was_cut_short or not visit.is_initialized,
            ORDER,
            f"{visit}: released before its program was told",
        )
        kept = self.kept.get(log, 0)
        if not self.in_logs and lease.checkpoint is not None:
            kept = lease.checkpoint.next_seq
        self.require(kept >= visit.said, FLUSHED, f"{visit}: {visit.said} was said, kept is {kept}")

    def _on_kept(self, log: str, lease: Lease, visit: Visit | None) -> None:
        self.require(lease.checkpoint is not None, MONOTONE, "a checkpoint is gone", log, lease)
        assert lease.checkpoint is not None
        before, at = self.kept.get(log), lease.checkpoint.next_seq
        self.require(at >= (before or 0), MONOTONE, "a checkpoint went back", log, before, at)
        self.kept[log] = at
        if visit is None:
            self.require(before is None, MONOTONE, "a checkpoint before a program began", log, at)
            return
        most = visit.handed
        if self.weather.checkpoints != "batch" and visit.reason is not StopReason.ENDED:
            most = visit.said
        self.require(at <= most, MONOTONE, f"{visit}: {at} is kept, and nobody said it: {most}")

    # --- lease logs

    def on_opening(self, log: str) -> None:
        """Whoever has the log may be fenced from here on; for ever, if this one fails."""
        self._openings[log] += 1

    def on_opened(self, log: str, epoch: int) -> None:
        self._openings[log] -= 1
        self._fenced[log] = max(epoch, self._fenced.get(log, 0))

    def on_append(self, lease: Lease) -> None:
        """It is on its way."""
        key = lease.shard, lease.epoch
        if key not in self._grants and lease.consumer is not None:
            self._grants[key] = lease
            self._turn_of[key] = self._last_turn.get((lease.shard, lease.consumer), 0)
            start = 0 if lease.checkpoint is None else lease.checkpoint.next_seq
            kept = self.kept.get(lease.shard, 0)
            self.require(
                start >= kept, MONOTONE, f"{lease.shard}: begins at {start}, kept is {kept}"
            )
            if lease.checkpoint is not None:
                self.kept[lease.shard] = start  # also of one that died before it was told so

    def on_appended(self, lease: Lease) -> None:
        """It is there, as its writer was told; that may have slept meanwhile."""
        log = lease.shard
        if lease.checkpoint is None:
            return
        at = lease.checkpoint.next_seq
        for (of, epoch), grant in self._grants.items():
            if of == log and epoch > lease.epoch:
                start = 0 if grant.checkpoint is None else grant.checkpoint.next_seq
                told = f"{log}: {at} was kept with epoch {lease.epoch}, {epoch} begins at {start}"
                self.require(start >= at, MONOTONE, told)
        if at > self.kept.get(log, -1):
            self._on_kept(log, lease, self.visits.get((log, lease.epoch)))

    # --- programs

    def on_initialize(self, life: Life, shard: Any) -> Visit:
        key = log, token = shard.log, shard.token
        known = self.visits.get(key)
        if known is not None:
            self.require(
                known.shard is shard, EXCLUSIVE, f"{known}: the token is given twice", life
            )
            return known
        grant = self._grants.get(key)
        self.require(grant is not None, EXCLUSIVE, f"{life.name} was never granted {log}, {token}")
        assert grant is not None
        assert grant.consumer is not None
        kept = grant.checkpoint
        start = shard.start.next_seq
        turn = self._turn_of[key]
        visit = Visit(life, log, token, grant.consumer, turn, shard, start, start, start)
        begin = 0 if kept is None else kept.next_seq
        told = f"{visit} begins at {start}, kept is {begin}"
        # One that lost it before it began may find what it never had truncated.
        self.require(start == begin or not self.is_ours(visit), MONOTONE, told)
        if kept is None:
            self.require(log in self.holds or not self.is_ours(visit), HELD, f"{visit}: not held")
        app = b"" if kept is None else kept.app
        self.require(shard.app == app, MONOTONE, "other bytes of the program", shard.app, app)
        self.visits[key] = self._by_turn[log, turn] = visit
        return visit

    def is_ours(self, visit: Visit) -> bool:
        lease = self.leases[visit.log]
        return (lease.consumer, lease.epoch) == (visit.me, visit.turn)

    def _check_ours(self, visit: Visit, what: str) -> None:
        is_forced = (visit.log, visit.turn) in self._forced
        lease = self.leases[visit.log]
        told = f"{visit} {what}; it is {lease.consumer}'s by now, at turn {lease.epoch}"
        self.require(self.is_ours(visit) or is_forced, ONE_OWNER, told)

    def on_process(self, visit: Visit, batch: MessageBatch) -> None:
        first = batch.first_seq
        self.require(visit.calls == 0, ORDER, f"{visit}: two calls at once")
        self.require(not visit.is_told, ORDER, f"{visit}: a batch behind its end")
        self._check_ours(visit, "is delivered")
        expected = visit.at
        if visit.failed_from is not None:
            expected = max(visit.failed_from, visit.said)
        while expected < first and self.weather.on_error == "dead_letter":
            tries = visit.failures[expected]
            self.require(
                tries >= self.weather.attempts, TOLD, f"{visit}: {expected} failed {tries}"
            )
            self.letters.add((visit.log, expected))
            expected += 1
        self.require(first == expected, "I17", f"{visit}: delivered is {first}, not {expected}")
        visit.calls = 1
        visit.handed = max(visit.handed, batch.last_seq + 1)

    def on_processed(self, visit: Visit, batch: MessageBatch, error: BaseException | None) -> None:
        visit.calls = 0
        if error is None:
            visit.at, visit.failed_from = batch.last_seq + 1, None
            if self.weather.checkpoints == "batch":
                self.on_said(visit, visit.at, b"")
            return
        visit.failed_from = batch.first_seq
        if len(batch) == 1 and isinstance(error, Exception):
            visit.failures[batch.first_seq] += 1

    def on_effect(self, visit: Visit) -> None:
        if visit.shard.still_owner():
            self._check_ours(visit, "is told to be the owner")

    def on_said(self, visit: Visit, upto: int, app: bytes) -> None:
        visit.said = max(visit.said, upto)

    def on_saved(self, visit: Visit, upto: int) -> None:
        kept = self.kept.get(visit.log, 0)
        self.require(
            kept >= upto, FLUSHED, f"{visit}: {upto} is told to be kept, and is not: {kept}"
        )

    def on_shutdown(self, visit: Visit, reason: StopReason) -> None:
        self.require(not visit.is_over, TOLD, f"{visit}: told twice to shut down")
        self.require(visit.is_initialized, TOLD, f"{visit}: shut down before it began")
        self.require(visit.calls == 0, ORDER, f"{visit}: shut down in the middle of a call")
        self.world.mark(f"a shard stops: {reason.value}")
        visit.is_told, visit.reason = True, reason
        life, weather = visit.life, self.weather
        turn = visit.log, visit.turn
        why = {
            StopReason.HANDED_OVER: turn in self._ever_announced,
            StopReason.LOST: not self.is_ours(visit)
            or visit.me in self.dead
            or self._fenced.get(visit.log, 0) > visit.token
            or self._openings[visit.log] > 0,
            StopReason.ENDED: True,
            StopReason.CLOSING: life.is_closing or life.was_replaced or weather.job,
            StopReason.FAILED: weather.on_error == "stop",
        }
        self.require(why[reason], TOLD, f"{visit}: told the wrong reason, {reason.value}")

    def on_shut_down(self, visit: Visit) -> None:
        visit.is_over = True

    # --- ends

    def on_closed(self, life: Life) -> None:
        """Its `close()` returned."""
        me = life.core.me
        # Whoever was buried is done with; and how it left was judged then.
        if not (life.is_hurried or self.weather.climate.meta.late or me in self.dead):
            ours = [(log, it.epoch) for log, it in self.leases.items() if it.consumer == me]
            left = [self._by_turn.get(turn) for turn in ours]
            had = [each for each in left if each is not None and each.reason is not StopReason.LOST]
            self.require(not had, ORDER, f"{me} was closed, and has shards", *had)
        for visit in self.visits.values():
            if visit.life is not life or life.is_hurried:
                continue
            self.require(visit.calls == 0, ORDER, f"{visit}: at a call when its worker was closed")
            told = visit.is_told or not visit.is_initialized
            self.require(told, TOLD, f"{visit}: never told to shut down")
