"""The driver of a stream writer's lanes: opens them, notices when one dies, and carries out what
`dlog.streams.lanes` decides about its messages."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dlog import limits, trace
from dlog.chance import backoff_s
from dlog.drive import Stores
from dlog.effects import Effect
from dlog.errors import (
    Broken,
    Conflict,
    DlogError,
    Fenced,
    ForkedHandle,
    NotFound,
    Outcome,
    Retry,
    WriterClosed,
)
from dlog.meta.listed import WriterMark
from dlog.meta.shards import ShardLog
from dlog.options import LogOptions, WriterOptions
from dlog.reader.looks import Looks
from dlog.reader.resolve import Present, TooLate
from dlog.reason import Reason, ReasonCode, Wait, told_of
from dlog.streams.document import Shard
from dlog.streams.driver import StreamDriver
from dlog.streams.gaps import Gaps
from dlog.streams.lanes import (
    Lanes,
    Left,
    LoseLane,
    OpenLane,
    Publish,
    Refuse,
    Resend,
    TellApart,
    Told,
    carry_on,
    left_of,
    producer_key,
)
from dlog.streams.numbers import Inherited
from dlog.streams.reshard import Site
from dlog.streams.routes import ShardRoutes, routes_of
from dlog.streams.trimmed import TrimmedShard
from dlog.writer.batch import Batch
from dlog.writer.defects import fail_batches
from dlog.writer.engine import Engine
from dlog.writer.owner import new_mark
from dlog.writer.tickets import Ticket
from dlog.writer.writer import Writer

_log = logging.getLogger("dlog.streams")

FAILED_KEPT = 10_000  # messages that are in no shard, until somebody is told of them


class _Death(NamedTuple):
    error: DlogError
    sent: list[Batch]
    left: list[Batch]


class Lane:
    """The writer of one shard."""

    __slots__ = ("death", "inherited", "is_lost", "log", "offer", "offer_marked", "shard", "writer")

    def __init__(self, shard: Shard, log: ShardLog, inherited: Inherited, writer: Writer) -> None:
        self.shard = shard
        self.log = log
        self.inherited = inherited
        self.writer = writer
        self.offer = writer._engine.batcher.offer
        self.offer_marked = writer._engine.batcher.offer_marked
        self.death: _Death | None = None
        self.is_lost = False  # to another writer, for good


class Table(NamedTuple):
    """Who gets what, at one moment. Replaced as a whole."""

    routes: ShardRoutes | None  # None: the stream is terminated
    lanes: Mapping[int, Lane]
    all: tuple[Lane, ...]
    known: dict[bytes, Lane]  # of keys that came by
    refusal: DlogError | None = None

    def find(self, key: bytes) -> Lane | None:
        """None where the key belongs to a shard of somebody else."""
        lane = self.known.get(key)
        if lane is not None:
            return lane
        if self.refusal is not None:
            raise self.refusal.again()
        if self.routes is None:
            raise Conflict("the stream is terminated; nothing was sent", retry=Retry.NEVER)
        found = self.lanes.get(self.routes.owner_of(key))
        if found is not None:
            if len(self.known) >= limits.STREAM_KEYS_KNOWN:
                self.known.clear()
            self.known[key] = found
        return found

    def lane_of(self, key: bytes) -> Lane:
        lane = self.find(key)
        if lane is None:
            assert self.routes is not None
            raise _not_ours(self.routes.owner_of(key))
        return lane


def _not_ours(number: int) -> DlogError:
    return Conflict(
        f"the key belongs to shard {number}, which this writer does not have; nothing was sent",
        retry=Retry.NEVER,
    )


class Following:
    """The lanes of one writer, wherever its shards go."""

    def __init__(
        self,
        stores: Stores,
        site: Site,
        options: WriterOptions,
        log_options: LogOptions,
        wanted: frozenset[int] | None,
    ) -> None:
        self.core = Lanes(wanted)
        self.lanes: dict[int, Lane] = {}
        self.lost: dict[int, Lane] = {}
        self.had: dict[str, str] = {}  # names of the logs that were written, by their uids
        self.failed: list[Batch] = []  # of messages that are in no shard
        self.table = Table(None, {}, (), {})
        self.moves = 0
        self.gaps = Gaps()
        self.moving: asyncio.Task[None] | None = None
        # Of whoever lets options change while lanes are open: the options of a lane that is about
        # to be opened, and a lane that was.
        self.lane_options: Callable[[str, WriterOptions], WriterOptions] = lambda _, given: given
        self.on_lane: Callable[[Lane], None] = lambda _: None
        self.driver = _LaneDriver(self, stores)
        self._stores = stores
        self._site = site
        self._options = options
        self._log_options = log_options
        self._turn = itertools.count()
        self._refusal: DlogError | None = None
        self._begins = False
        self._closed = False
        self._loop = asyncio.get_running_loop()

    async def begin(self) -> None:
        """Open all lanes, or raise."""
        self._begins = True
        try:
            await self.driver.run(carry_on(self.core, self._site))
        finally:
            self._begins = False
        if self.core.dead:
            self.look_again()

    def next_lane(self, table: Table) -> Lane:
        """For a message without a key."""
        if table.refusal is not None:
            raise table.refusal.again()
        if not table.all:
            raise Conflict("the stream is terminated; nothing was sent", retry=Retry.NEVER)
        return table.all[next(self._turn) % len(table.all)]

    def refuse_new(self, refusal: DlogError) -> None:
        """Nothing new is taken; what is under way goes on."""
        self._refusal = refusal
        self.table = Table(None, {}, (), {}, refusal)

    async def close(self) -> DlogError | None:
        """The first failure. A shard that is split while its lane is closed is gone on with."""
        failure: DlogError | None = None
        while True:
            if self.moving is not None:
                await asyncio.shield(self.moving)
                continue
            lanes = [lane for lane in self.lanes.values() if not lane.writer._closed]
            if not lanes:
                break
            failure = await _close_all(lanes) or failure
        failure = await _close_all(self.lost.values()) or failure
        self._closed = True
        unseen = (b.error for b in self.failed if b.error is not None and not b.error_seen)
        told = next(unseen, None)
        return failure if told is None else failure or told.again()

    async def abandon(self) -> None:
        """Close at once, without waiting for anything that is on its way."""
        self.let_go(WriterClosed("given up"))
        await _close_all([*self.lanes.values(), *self.lost.values()])

    def let_go(self, error: DlogError) -> None:
        """End all lanes now: what is on its way is told this error."""
        self._closed = True
        self.refuse_new(error.again(outcome=Outcome.NOT_HAPPENED))
        if self.moving is not None:
            self.moving.cancel()
        for lane in self.all_lanes:
            lane.writer._engine.abandon(error)
        self._fail_left(error)

    def drop(self, error: DlogError) -> None:
        """Nobody holds the writer any more. From any thread."""
        for lane in self.all_lanes:
            lane.writer._closed = True  # its own warning would say the same again
        with contextlib.suppress(RuntimeError):  # the loop is gone, and everything with it
            self._loop.call_soon_threadsafe(self.let_go, error)

    @property
    def all_lanes(self) -> list[Lane]:
        return [*self.lanes.values(), *self.lost.values()]

    @property
    def unacknowledged(self) -> int:
        """Messages taken and not acknowledged; roughly, from any thread."""
        lanes = list(self.lanes.values())
        moving = [b for lane in lanes if lane.death for b in (*lane.death.sent, *lane.death.left)]
        return sum(lane.writer._engine.unacknowledged for lane in lanes) + sum(
            len(batch.values) for batch in moving if not batch.done
        )

    def why(self, lane: Lane) -> Reason | None:
        """Of a lane that died: what those wait for that follow it."""
        if lane.death is None or lane.is_lost or self.moving is None:
            return lane.writer.why()
        told = f"shard {lane.shard.number} ended, and this writer is to go on in those behind it"
        about = {"log": lane.shard.log, **told_of(lane.death.error)}
        if (met := self.driver.in_the_way) is not None:
            told, about = f"{told}: {met.message}", {**about, **told_of(met)}
        wait = Wait(ReasonCode.METADATA, told, about)
        clock = self._stores.clock
        return wait.told(now_s=clock.monotonic_s(), now_us=clock.wall_us())

    def _fail_left(self, error: DlogError) -> None:
        """What was on its way from lanes that died to those that follow."""
        self.core.left = ()
        for lane in self.lanes.values():
            if lane.death is None:
                continue
            _, sent, left = lane.death
            lane.death = _Death(lane.death.error, [], [])
            whole = [[b for b in each if not b.done and b.moved is None] for each in (sent, left)]
            fail_batches(error, *whole)
            for batch in (*sent, *left):
                if batch.done or batch.moved is None:
                    continue
                for idx, ticket in enumerate(batch.moved):
                    if ticket is None:
                        batch.moved[idx] = self._failed_ticket(error.again(outcome=Outcome.UNKNOWN))
                resolve_when_done(batch, batch.moved)

    # --- when a lane dies

    def _died(self, lane: Lane, error: DlogError, sent: list[Batch], left: list[Batch]) -> None:
        """The heir of a lane's messages, called in the turn in which it dies."""
        lane.death = _Death(error, sent, left)
        if self._closed or isinstance(error, (ForkedHandle, WriterClosed)):
            fail_batches(error, sent, left)
            lane.death = _Death(error, [], [])
            return
        self.core.dead.add(lane.shard.number)
        if not self._begins:  # else whoever begins looks again: two of them would fence each other
            self.look_again()

    def look_again(self) -> asyncio.Task[None]:
        """At the newest list: what is ours may be more than we know."""
        if self.moving is None:
            self.moving = self._loop.create_task(self._move())
        return self.moving

    async def _move(self) -> None:
        until_s = self._stores.clock.monotonic_s() + self._options.open_timeout_ms / 1000
        attempt = 0
        try:
            while True:
                try:
                    await self.driver.run(carry_on(self.core, self._site))
                    if not self.core.dead:
                        return
                except DlogError as error:
                    attempt += 1
                    late = self._closed or self._stores.clock.monotonic_s() > until_s
                    if error.retry is Retry.NEVER or late:
                        self._give_up(error)
                        return
                    _log.info(
                        "stream %s: goes on later (try %d): %s", self._site.name, attempt, error
                    )
                    await asyncio.sleep(backoff_s(attempt, self._stores.chance, limit_s=1.0))
        except Exception as defect:  # noqa: BLE001 - a defect must end the handle, not hang it
            _log.exception("stream %s: the writer broke", self._site.name)
            self._give_up(Broken(f"the writer of stream {self._site.name!r} broke: {defect!r}"))
        finally:
            self.moving = None
            if self.core.dead and not self._closed:
                self.moving = self._loop.create_task(self._move())

    def _give_up(self, error: DlogError) -> None:
        """Everything that waits for new lanes is told why there are none."""
        _log.warning("stream %s: shards are lost to this writer: %s", self._site.name, error)
        for number in list(self.core.dead):
            self.lose(number, error)
            self.core.lost.add(number)
            self.core.forget(number)
        self.refuse(self.core.left, error)
        self.core.left = ()
        self.publish()

    async def open_lane(self, shard: Shard, log: ShardLog, inherited: Inherited) -> None:
        count = len(self.core.opened) + len(self.core.to_open())
        window = self._options.window_bytes // count
        window = min(self._options.window_bytes, max(window, limits.STREAM_WINDOW_BYTES_MIN))
        options = dataclasses.replace(self._options, window_bytes=window)
        options = self.lane_options(shard.log, options)
        mark = new_mark(self._stores, options.owner)
        engine = await self._opened(log, options, mark)
        if self._closed:  # meanwhile, without waiting for us
            engine.abandon(WriterClosed("given up", log=log.name))
            raise WriterClosed("given up", log=log.name)
        writer = Writer(engine, Looks(self._stores, log.name))
        lane = Lane(shard, log, inherited, writer)
        engine.heir = lambda error, sent, left: self._died(lane, error, sent, left)
        self.lanes[shard.number] = lane
        self.had[engine.batcher._origin.log_uid] = log.name
        self.on_lane(lane)
        if engine.core.error is not None:  # it died in the turn in which it was opened
            self._died(lane, engine.core.error, [], [])

    async def _opened(self, log: ShardLog, options: WriterOptions, mark: WriterMark) -> Engine:
        for is_made in (False, True):
            engine = Engine(self._stores, log.name, options, mark)
            engine.shard = log
            try:
                await engine.open(None)
                return engine
            except NotFound:
                if is_made:
                    raise
            await self.driver.make(log, self._log_options)
        raise AssertionError("the second try returns or raises")

    async def tell_apart(self, number: int) -> Told:
        lane = self.lanes[number]
        if lane.death is None:
            ended = Fenced(
                f"shard {number} of stream {self._site.name!r} ended", log=lane.shard.log
            )
            lane.writer._engine.abandon(ended)
        lane.writer._closed = True  # nothing is left that its end could concern
        if lane.death is None:  # it was closed before
            return Told((), (await self._was_last(lane))[0])
        _, sent, left = lane.death
        try:
            there, is_certain = await self._count_there(lane, sent)
        except NotFound:
            there, is_certain = len(sent), False
        # Behind the count: only of a log that is still there is what was truncated counted right.
        was_last, end = await self._was_last(lane)
        if end is not None:  # a log that is gone tells nothing of a message
            there, is_certain = sum(each.first_seq < end.next_seq for each in sent), False
        if is_certain or was_last:
            for batch in sent[:there]:
                batch.resolve()
        else:  # truncated by now: whose messages those were, nobody can tell any more
            fail_batches(lane.death.error, sent[:there], [])
            self.failed += sent[:there]
            self.gaps.failed(sent[:there])
        rest = (*sent[there:], *left)
        return Told([each for batch in rest for each in left_of(batch)], was_last)

    async def _was_last(self, lane: Lane) -> tuple[bool, TrimmedShard | None]:
        """And how the shard ended, if its log is removed by now, and that is known."""
        last, _ = await self.driver.last_writer(lane.log)
        if last != 0:
            return last == lane.writer.epoch, None
        end = await self.driver.trimmed(lane.log, lane.shard.number)
        born = lane.writer._engine.core.seen.meta.born_epoch
        return end is not None and end.last_writer == lane.writer.epoch - born, end

    async def _count_there(self, lane: Lane, sent: Sequence[Batch]) -> tuple[int, bool]:
        """How many of the batches are in the log: those that are stand before those that are not.
        And whether that is certain of all of them: who was truncated may be somebody else's."""
        looks = Looks(self._stores, lane.shard.log)
        low, high, is_certain = 0, len(sent), True
        while low < high:
            middle = (low + high) // 2
            became = await looks.resolve(Ticket(sent[middle], 0).token, only_here=True)
            if isinstance(became, (Present, TooLate)):
                low = middle + 1
                is_certain &= isinstance(became, Present)
            else:
                high = middle
        return low, is_certain

    async def resend(self, messages: Sequence[Left]) -> list[Left]:
        """What its lane did not take."""
        meta = self.core.meta
        assert meta is not None
        table = self._new_table()
        numbered = {left.producer is not None for left in messages}
        rest: list[Left] = []
        blocked: set[int] = set()
        if True in numbered:
            for lane in table.all:
                if not lane.writer.closed:
                    await lane.writer.allow_numbers(None)
        sent: dict[int, tuple[Batch, list[Ticket]]] = {}
        for left in messages:
            route = left.key
            if route is None and left.producer is not None:
                route = producer_key(*left.producer)
            lane = self.next_lane(table) if route is None else table.lane_of(route)
            if lane.shard.number in blocked:
                rest.append(left)
                continue
            try:
                gap = None if left.producer is None else self.gaps.error(left.producer)
                if gap is not None:
                    raise gap
                if left.producer is not None and route is not None:
                    # Somebody may have sent it while we were on our way here.
                    lane.inherited.refuse_known(route, *left.producer)
                ticket = await self._offer(lane, left)
            except DlogError as error:
                if lane.death is not None and not self._closed:
                    blocked.add(lane.shard.number)
                    rest.append(left)
                    continue
                ticket = self._failed_ticket(error)
            batch, idx = left.ticket
            note_moved(batch, idx, ticket)
            sent.setdefault(id(batch), (batch, []))[1].append(ticket)
        for lane in table.all:  # they have waited: not for company as well (`linger_ms`)
            lane.writer._engine.batcher.seal()
        for batch, tickets in sent.values():
            resolve_when_done(batch, tickets)
        trace.after("stream.resent")
        return rest

    async def _offer(self, lane: Lane, left: Left) -> Ticket:
        while True:
            ticket = lane.offer_marked(
                left.value, left.key, left.headers, left.event_time_us, producer=left.producer
            )
            if ticket is not None:
                return ticket
            await _room(lane)

    def refuse(self, messages: Sequence[Left], error: DlogError | None = None) -> None:
        told = error or Conflict(
            f"its shard of stream {self._site.name!r} ended, and those that follow are not this "
            "writer's; it is in no shard",
            retry=Retry.NEVER,
        )
        told = told.again(outcome=Outcome.NOT_HAPPENED)
        batches: dict[int, tuple[Batch, list[Ticket]]] = {}
        for left in messages:
            if left.producer is not None:
                self.gaps.add(left.producer)
            batch, idx = left.ticket
            ticket = self._failed_ticket(told)
            note_moved(batch, idx, ticket)
            batches.setdefault(id(batch), (batch, []))[1].append(ticket)
        for batch, tickets in batches.values():
            resolve_when_done(batch, tickets)

    def raise_untold(self) -> None:
        """The first error of a message that is in no shard, or that was on its way to one that was
        lost, if nobody was told yet. All of them count as told then."""
        of_lost = (lane.writer._engine.failed_batches for lane in self.lost.values())
        all_failed = itertools.chain(self.failed, *of_lost)
        untold = [b for b in all_failed if b.error is not None and not b.error_seen]
        for batch in untold:
            batch.error_seen = True
        if untold:
            assert untold[0].error is not None
            raise untold[0].error.again()

    def refuse_taken(self, lane: Lane, route: bytes, producer: tuple[int, int]) -> None:
        """A number that a shard before this one took, or behind one that failed."""
        if (gap := self.gaps.error(producer)) is not None:
            raise gap
        if lane.inherited:
            lane.inherited.refuse_known(route, *producer)
        self.gaps.close(producer)

    def _failed_ticket(self, error: DlogError) -> Ticket:
        batch = Batch([None], 0)
        batch.resolve(error)
        if len(self.failed) >= FAILED_KEPT:
            self.failed = [each for each in self.failed if not each.error_seen][-FAILED_KEPT:]
        self.failed.append(batch)
        return Ticket(batch, 0)

    def lose(self, number: int, error: DlogError | None = None) -> None:
        lane = self.lanes.pop(number)
        lane.is_lost = True
        self.lost[number] = lane
        if lane.death is not None:
            _, sent, left = lane.death
            fail_batches(error or lane.death.error, sent, left)
            self.gaps.failed((*sent, *left))
            lane.writer._engine.failed_batches = sent + left  # its close tells, if nobody was told
            lane.death = _Death(lane.death.error, [], [])

    def publish(self) -> None:
        gone = [number for number in self.lanes if number not in self.core.opened]
        for number in gone:
            del self.lanes[number]
        self.moves += bool(gone)
        if self._refusal is None:
            self.table = self._new_table()

    def _new_table(self) -> Table:
        meta = self.core.meta
        assert meta is not None
        opened = self.core.opened
        lanes = {n: lane for n, lane in self.lanes.items() if n in opened}
        routes = routes_of(meta) if meta.open_shards else None
        of_others = {n: lane for n, lane in self.lost.items() if n not in lanes}
        return Table(routes, {**of_others, **lanes}, tuple(lanes.values()), {})


async def _close_all(lanes: Iterable[Lane]) -> DlogError | None:
    answers = await asyncio.gather(*(lane.writer.close() for lane in lanes), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, DlogError):
            raise answer
    return next((answer for answer in answers if isinstance(answer, DlogError)), None)


def note_moved(batch: Batch, idx: int, ticket: Ticket) -> None:
    if batch.moved is None:
        batch.moved = [None] * len(batch.values)
    batch.moved[idx] = ticket


def resolve_when_done(batch: Batch, tickets: Sequence[Ticket]) -> None:
    """The old batch answers once every message of it has been told where it is now."""
    waits = {id(ticket._batch): ticket for ticket in tickets if not ticket.done}
    left = len(waits)

    def settle(_: Ticket | None = None) -> None:
        moved = batch.moved
        if moved is not None and not batch.done:
            if all(ticket is not None and ticket.done for ticket in moved):
                batch.resolve()

    if not left:
        settle()
    for ticket in waits.values():
        ticket.add_done_callback(settle)


async def _room(lane: Lane) -> None:
    await lane.writer.wait_room(None)  # also with on_full='raise': these were taken before


class _LaneDriver(StreamDriver):
    def __init__(self, following: Following, stores: Stores) -> None:
        super().__init__(stores)
        self._following = following

    async def perform(self, effect: Effect) -> Any:
        following = self._following
        match effect:
            case OpenLane(shard=shard, log=log, inherited=inherited):
                await following.open_lane(shard, log, inherited)
            case TellApart(number=number):
                return await following.tell_apart(number)
            case Resend(messages=messages):
                return await following.resend(messages)
            case Refuse(messages=messages):
                following.refuse(messages)
            case LoseLane(number=number):
                following.lose(number)
            case Publish():
                following.publish()
            case _:
                return await super().perform(effect)
