"""Who acts in the world of streams: writers that send what their producers mean to send, whoever
changes the shards, readers that remember where they were. Each may crash and freeze at every step;
what they decide is the production's: its procedures, its cores, its values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dlog.effects import Effect
from dlog.errors import AlreadyExists, DlogError, NotFound, Retry
from dlog.ids import MessageId, Position
from dlog.streams.document import Shard
from dlog.streams.lanes import (
    CountNumbers,
    Lanes,
    LastWriter,
    Left,
    LoseLane,
    OpenLane,
    Publish,
    Refuse,
    Resend,
    TellApart,
    Told,
    carry_on,
    producer_key,
)
from dlog.streams.numbers import Inherited, Numbers
from dlog.streams.places import ReadOrder, StreamPosition
from dlog.streams.reshard import EndLog, LookForLog, SeenStream, Site, read_stream
from dlog.streams.routes import ShardRoutes, routes_of
from dlog.testing.sim.clients import Scene, SimClient
from dlog.testing.sim.metadata import Answered
from dlog.testing.sim.stream_logs import AbstractLogs, Stored
from dlog.testing.sim.stream_oracle import AFTER, ORDER, Intents, StreamOracle
from dlog.testing.sim.world import require

NAME = "s"
PATH = "/dlog/streams/s"
STEP_MS = 1.0
WINDOW = 6  # messages on their way at once
GIVE_UP_TRIES = 400  # of a writer that goes on in other shards
LOG_UID = "log-of-{}"


class StreamClient(SimClient):
    """A process that deals with streams."""

    def __init__(self, scene: Scene, name: str, logs: AbstractLogs, oracle: StreamOracle) -> None:
        super().__init__(scene, name)
        self.logs = logs
        self.stream_oracle = oracle
        self.site = Site(NAME, PATH, self)

    def perform(self, effect: Effect, answer: Answered) -> None:
        match effect:
            case EndLog(shard=shard):
                self.logs.end(self, shard.name, answer)
            case LookForLog(log=log):
                error = NotFound(f"no stream and no log {log!r}", log=log)
                self.after(0.1, lambda: answer(None, error))
            case CountNumbers(shard=shard):
                self.logs.count(self, shard.name, lambda v, e: answer(None if e else Numbers(v), e))
            case LastWriter(shard=shard):
                made = self.logs.logs.get(shard.name)
                self.after(0.2, lambda: answer(0 if made is None else made.last_writer, None))
            case _:
                super().perform(effect, answer)


@dataclass(slots=True, eq=False)
class SimLane:
    shard: Shard
    inherited: Inherited
    epoch: int
    last: dict[int, int]  # numbers of producers, those on their way included
    on_their_way: dict[tuple[int, int], Left] = field(default_factory=dict)
    arrives_ms: float = 0.0
    is_dead: bool = False
    is_lost: bool = False


@dataclass(slots=True)
class SimTable:
    routes: ShardRoutes | None
    lanes: dict[int, SimLane]


class SimStreamWriter(StreamClient):
    """One incarnation of a writer: sends in order what is not acknowledged."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        logs: AbstractLogs,
        oracle: StreamOracle,
        intents: list[Intents],
        wanted: frozenset[int] | None,
    ) -> None:
        super().__init__(scene, name, logs, oracle)
        self.core = Lanes(wanted)
        self.intents = intents
        self.cursor = {each.producer_id: each.first_open() for each in intents}
        self.lanes: dict[int, SimLane] = {}
        self.table: SimTable | None = None
        self.is_open = False
        self.is_over = False  # fenced, or given up: a new incarnation has to go on
        self.error: DlogError | None = None
        self.is_moving = False
        self._waits = False
        self._tries = 0

    def start(self) -> None:
        self._move()

    sleeps = False

    def fall_asleep(self) -> None:
        """Until it is woken, whatever else."""
        self.sleeps = self.frozen = True

    def thaw(self) -> None:
        if not self.sleeps:
            super().thaw()

    def wake(self) -> None:
        self.sleeps = False
        self.thaw()

    @property
    def is_done(self) -> bool:
        return all(each.first_open() == len(each.keys) for each in self.intents)

    # --- going on in other shards

    def _move(self) -> None:
        if self.is_moving or self.is_over:
            return
        self.is_moving = True
        self.run(carry_on(self.core, self.site), self._moved)

    def _moved(self, answer: Any, error: DlogError | None) -> None:
        self.is_moving = False
        if error is not None:
            self._tries += 1
            if error.retry is Retry.NEVER or not self.is_open or self._tries > GIVE_UP_TRIES:
                self._end(error)
                return
            self.after(2.0 + self.world.chance.delay(10.0), self._move)
            return
        self._tries = 0
        self.is_open = True
        if self.core.dead:
            self._move()
        self._waits = False
        self.pump()

    def _end(self, error: DlogError) -> None:
        self.error = error
        self.is_over = True

    def _die(self, lane: SimLane) -> None:
        if lane.is_dead:
            return
        lane.is_dead = True
        self.world.mark("a lane dies")
        self.core.dead.add(lane.shard.number)
        if self.is_open:
            self._move()

    # --- sending

    def pump(self) -> None:
        """Send what there is room for, each producer in turn."""
        progress = self.table is not None
        while progress and self.alive and not self.frozen and not self.is_over and not self._waits:
            progress = False
            for intents in self.intents:
                on_their_way = sum(len(lane.on_their_way) for lane in self.lanes.values())
                number = self.cursor[intents.producer_id]
                if number >= len(intents.keys) or on_their_way >= WINDOW or self._waits:
                    continue
                if not self._submit(intents, number):
                    return
                progress = True

    def _submit(self, intents: Intents, number: int) -> bool:
        """False when it has to wait, or the writer is over."""
        table = self.table
        assert table is not None
        told = (intents.producer_id, number)
        if number in intents.given_up:  # whoever gives one up does not come back to it
            self.cursor[intents.producer_id] = number + 1
            return True
        key = intents.keys[number]
        route = producer_key(*told) if key is None else key
        lane = None if table.routes is None else table.lanes.get(table.routes.owner_of(route))
        if lane is None:  # another writer's shard, or the stream is terminated
            intents.given_up.add(number)
            self.cursor[intents.producer_id] = number + 1
            self.world.mark("not ours")
            return True
        if lane.is_lost:
            self._end(AlreadyExists("its shard is somebody else's"))
            return False
        if lane.is_dead:
            self._waits = True
            return False
        self.cursor[intents.producer_id] = number + 1
        try:
            if lane.inherited:
                lane.inherited.refuse_known(route, *told)
            if number <= lane.last.get(intents.producer_id, -1) and told not in lane.on_their_way:
                raise AlreadyExists("the log has it")
        except AlreadyExists:
            self.world.mark("known from before")
            if self.world.is_told:
                self.world.note(
                    f"{self.name} hears that {told} is there, of shard {lane.shard.number}"
                )
            intents.acked.add(number)
            return True
        if told not in lane.on_their_way:
            intents.tries[number] += 1
            self._offer(lane, Left(b"", key, (), None, told, intents))
        return True

    def _offer(self, lane: SimLane, left: Left) -> None:
        assert left.producer is not None
        now = self.world.now_ms
        takes = 0.2 + self.world.chance.delay(self.ledger_ms)
        if self.world.strikes(self.logs.manners.slow_entries, "logs: an append is slow"):
            takes += self.world.chance.delay(60.0)
        if self.world.is_told:
            self.world.note(f"{self.name} sends {left.producer} {left.key!r} to {lane.shard.log}")
        lane.arrives_ms = max(now + takes, lane.arrives_ms + 0.01)
        lane.last[left.producer[0]] = left.producer[1]
        lane.on_their_way[left.producer] = left
        self.logs.append(
            self,
            lane.shard.log,
            lane.epoch,
            Stored(left.key, left.producer, left.value),
            lambda index, error: self._on_told(lane, left, error),
            lane.arrives_ms - now,
        )

    def _on_told(self, lane: SimLane, left: Left, error: DlogError | None) -> None:
        if lane.is_dead:
            return  # its messages are told apart by then
        if error is not None:
            self._die(lane)
            return
        assert left.producer is not None
        lane.on_their_way.pop(left.producer)
        left.ticket.acked.add(left.producer[1])
        if self.table is not None:
            self.pump()

    # --- what the lanes' core asks

    def perform(self, effect: Effect, answer: Answered) -> None:
        match effect:
            case OpenLane(shard=shard, inherited=inherited):
                self._open(shard, inherited, answer)
            case TellApart(number=number):
                self.after(0.3, lambda: answer(self._tell_apart(number), None))
            case Resend(messages=messages):
                self._resend(list(messages), [], answer)
            case _:
                super().perform(effect, answer)

    def perform_at_once(self, effect: Effect) -> bool:
        match effect:
            case Refuse(messages=messages):
                for left in messages:
                    assert left.producer is not None
                    left.ticket.refuse(left.producer[1])
                    if self.core.wanted is not None:
                        left.ticket.given_up.add(left.producer[1])
                    self.world.mark("refused")
                if messages and self.core.wanted is None:
                    self._end(AlreadyExists("what follows its shards is somebody else's"))
            case LoseLane(number=number):
                lane = self.lanes.pop(number)
                lane.is_lost = True
                self.world.mark("a lane is lost")
                lane.on_their_way.clear()  # nobody knows: a new incarnation sends them again
                self._end(AlreadyExists("another writer has the shard"))
            case Publish():
                self._publish()
            case _:
                return super().perform_at_once(effect)
        return True

    def _open(self, shard: Shard, inherited: Inherited, answer: Answered) -> None:
        def opened(epoch: Any, error: DlogError | None) -> None:
            if error is None:
                log = self.logs.find(shard.log)
                self.lanes[shard.number] = SimLane(shard, inherited, epoch, log.numbers())
            answer(None, error)

        self.logs.open(self, shard.log, opened)

    def _tell_apart(self, number: int) -> Told:
        lane = self.lanes[number]
        lane.is_dead = True
        log = self.logs.find(lane.shard.log)
        there = {message.producer for message in log.stored}
        left = []
        for told, each in lane.on_their_way.items():
            if told in there:
                each.ticket.acked.add(told[1])
            else:
                left.append(each)
        lane.on_their_way.clear()
        if self.world.is_told:
            rest = [each.producer for each in left]
            self.world.note(f"{self.name} tells {lane.shard.log} apart: {rest} are not there")
        return Told(left, lane.epoch == log.last_writer)

    def _resend(self, messages: list[Left], rest: list[Left], answer: Answered) -> None:
        """One after the other, so that a lane may die between two of them."""
        table = self._new_table()
        while messages:
            left = messages.pop(0)
            assert left.producer is not None
            assert table.routes is not None
            route = producer_key(*left.producer) if left.key is None else left.key
            lane = table.lanes[table.routes.owner_of(route)]
            if lane.is_dead:
                rest.append(left)
                continue
            if self._is_known(lane, route, left.producer):
                if self.world.is_told:
                    self.world.note(f"{self.name}: {left.producer} is in {lane.shard.log} already")
                if left.producer[1] not in left.ticket.given_up:
                    left.ticket.acked.add(left.producer[1])  # `AlreadyExists`, the user is told
                continue
            self.world.mark("sent again")
            self._offer(lane, left)
            later = 0.1 + self.world.chance.delay(self.ledger_ms)
            self.after(later, lambda: self._resend(messages, rest, answer))
            return
        answer(rest, None)

    def _is_known(self, lane: SimLane, route: bytes, producer: tuple[int, int]) -> bool:
        """Refused with `AlreadyExists`, by what came before the shard or by its log."""
        try:
            lane.inherited.refuse_known(route, *producer)
        except AlreadyExists:
            return True
        return producer[1] <= lane.last.get(producer[0], -1)

    def _new_table(self) -> SimTable:
        meta = self.core.meta
        assert meta is not None
        lanes = {n: lane for n, lane in self.lanes.items() if n in self.core.opened}
        return SimTable(routes_of(meta) if meta.open_shards else None, lanes)

    def _publish(self) -> None:
        self.lanes = {n: lane for n, lane in self.lanes.items() if n in self.core.opened}
        self.table = self._new_table()


class SimSharder(StreamClient):
    """Splits, merges, pins: one change, then it is gone."""

    def change(self, procedure: Any, done: Callable[[], None]) -> None:
        self.run(procedure, lambda answer, error: self._changed(error, done))

    def _changed(self, error: DlogError | None, done: Callable[[], None]) -> None:
        self.world.mark("changed" if error is None else f"change: {type(error).__name__}")
        done()


class SimStreamReader(StreamClient):
    """Reads on and on, or once up to where the shards end; comes back where it was."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        logs: AbstractLogs,
        oracle: StreamOracle,
        *,
        follow: bool,
        at: str | None = None,
        seen: dict[tuple[int, bytes | None], int] | None = None,
        got: set[tuple[int, int]] | None = None,
    ) -> None:
        super().__init__(scene, name, logs, oracle)
        self.follow = follow
        self.saved = at  # the text of its place, kept where no crash reaches it
        self.seen = dict(seen or {})  # the last number of each producer and key
        self.got = set(got or ())
        self.order: ReadOrder | None = None
        self.is_over = False
        self.began: set[int] = set()
        self.ends: dict[int, tuple[int, bool]] = {}

    def start(self) -> None:
        self.run(read_stream(self.site, fresh=True), self._begin)

    def _begin(self, seen: Any, error: DlogError | None) -> None:
        if error is not None:
            self.after(5.0, self.start)
            return
        meta = seen.meta
        at = StreamPosition(meta.uid) if self.saved is None else StreamPosition.parse(self.saved)
        self.order = ReadOrder(meta, at, only=None)
        if self.follow:
            self._step()
        else:
            self._look_for_ends(list(meta.shards))

    def _look_for_ends(self, shards: list[Shard]) -> None:
        """Each at another moment, in any order."""
        if not shards:
            self._step()
            return
        shard = shards.pop(int(self.world.chance.random() * len(shards)))
        log = self.logs.logs.get(shard.log)
        end = (0, False) if log is None else (len(log.stored), log.is_terminated)
        self.ends[shard.number] = end
        self.after(0.1 + self.world.chance.delay(20.0), lambda: self._look_for_ends(shards))

    def _step(self) -> None:
        """One message or one crossing at a time."""
        order = self.order
        assert order is not None
        if self.may_be_hit() or self.is_over:
            return
        for shard in order.ready():
            if shard.number not in self.began:
                self.began.add(shard.number)
                order.begin(shard.number, Position(LOG_UID.format(shard.number), 0, None))
        ended: list[int] = []
        delivered = False
        begun = list(order.reading.items())
        turn = int(self.world.chance.random() * len(begun))
        for number, at in begun[turn:] + begun[:turn]:
            shard = order.meta.shard(number)
            log = self.logs.logs.get(shard.log)
            stored = [] if log is None else log.stored
            end_seq = len(stored) if self.follow else self.ends.get(number, (0, False))[0]
            if at.next_seq < end_seq:
                self._deliver(shard, at.next_seq, stored[at.next_seq])
                delivered = True
                break
            final = log is not None and log.is_terminated if self.follow else self.ends[number][1]
            if final:
                order.end(number)
                ended.append(number)
        if delivered and self.world.chance.hits(0.3, "a reader notes its place"):
            self._save()
        if ended and self.follow:
            self.run(read_stream(self.site), self._on_list)
        elif delivered or ended:
            self.after(0.1, self._step)
        elif not self.follow or (order.is_over and not order.meta.open_shards):
            self._finish()
        else:
            self.after(30.0 if self.world.is_calm else 3.0, self._step)

    def _save(self) -> None:
        assert self.order is not None
        self.saved = self.order.position.to_text()
        self.saved_seen, self.saved_got = dict(self.seen), set(self.got)

    saved_seen: dict[tuple[int, bytes | None], int] | None = None
    saved_got: set[tuple[int, int]] | None = None

    def _on_list(self, seen: SeenStream | None, error: DlogError | None) -> None:
        assert self.order is not None
        if error is not None or seen is None:
            self.after(3.0, lambda: self.run(read_stream(self.site), self._on_list))
            return
        self.order.saw(seen.meta)
        self._step()

    def _deliver(self, shard: Shard, index: int, message: Stored) -> None:
        order = self.order
        assert order is not None
        assert message.producer is not None
        producer_id, number = message.producer
        for parent in order.meta.before(shard.parents):
            log = self.logs.logs.get(parent.log)
            ended = log is not None and log.is_terminated
            require(ended, AFTER, "a reader is in a child, and a parent is open", shard.number)
            require(
                parent.number not in order.reading, AFTER, "read beside its parent", shard.number
            )
        if message.key is not None:
            last = self.seen.get((producer_id, message.key), -1)
            require(number > last, ORDER, "a reader got an older message of a key", number, last)
            self.seen[producer_id, message.key] = number
        require(message.producer not in self.got, ORDER, "delivered twice", message.producer)
        self.got.add(message.producer)
        uid = LOG_UID.format(shard.number)
        order.delivered(shard.number, Position(uid, index + 1, MessageId(shard.number, index, 0)))

    def _finish(self) -> None:
        self.is_over = True
        if not self.follow:
            self._check_whole_keys()

    def _check_whole_keys(self) -> None:
        """What a reading to the end got of a key has no gap: all that stands before its last one.
        Only if it began at the beginning."""
        if self.saved is not None:
            return
        for (producer_id, key), last in self.seen.items():
            if key is None:
                continue
            for (other_id, number), (shard, _) in self.stream_oracle.where.items():
                if other_id != producer_id or number >= last:
                    continue
                if self.stream_oracle.intents[other_id].keys[number] == key:
                    told = (other_id, number)
                    require(told in self.got, ORDER, "a gap in what was read of a key", told, shard)

    def catch_up(self) -> list[tuple[int, int]]:
        """What it has not got of all there is."""
        return sorted(self.stream_oracle.all_there() - self.got)
