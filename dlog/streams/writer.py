"""The async writer of a stream: what `await stream.open_writer()` gives.

Each message goes to the lane of its key, which is the writer of one shard's log, with everything
that such a writer promises. What happens when shards are split or merged under it is decided in
`dlog.streams.lanes`; here it is done. Whoever submits meanwhile waits until the new lanes are
there, so a change is a pause for the keys that it concerns, and for no others.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from dlog import limits, trace
from dlog.chance import backoff_s
from dlog.drive import Closeable, Stores
from dlog.effects import Effect
from dlog.errors import (
    Broken,
    ConfigError,
    Conflict,
    DlogError,
    Fenced,
    ForkedHandle,
    Handle,
    NotFound,
    Outcome,
    Retry,
    Timeout,
    Unsupported,
    WriterClosed,
)
from dlog.ids import MessageId, Token
from dlog.options import LogOptions, WriterOptions
from dlog.reader.looks import Looks
from dlog.reader.resolve import Present, Resolved
from dlog.reason import Reason
from dlog.streams.document import Shard
from dlog.streams.driver import StreamDriver
from dlog.streams.lanes import (
    Lanes,
    Left,
    LoseLane,
    OpenLane,
    Publish,
    Refuse,
    Resend,
    TellApart,
    carry_on,
    producer_key,
)
from dlog.streams.numbers import Inherited
from dlog.streams.reshard import Site
from dlog.streams.routes import ShardRoutes, routes_of
from dlog.writer.arguments import EventTime, HeadersArg, Producer, as_producer
from dlog.writer.batch import Batch
from dlog.writer.engine import Engine, fail_batches
from dlog.writer.owner import new_mark
from dlog.writer.tickets import Ticket
from dlog.writer.writer import Writer, within

_log = logging.getLogger("dlog.streams")


class _Death(NamedTuple):
    error: DlogError
    sent: list[Batch]
    left: list[Batch]


class Lane:
    """The writer of one shard."""

    __slots__ = ("death", "inherited", "is_lost", "offer", "offer_marked", "shard", "writer")

    def __init__(self, shard: Shard, inherited: Inherited, writer: Writer) -> None:
        self.shard = shard
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

    def lane_of(self, key: bytes) -> Lane:
        lane = self.known.get(key)
        if lane is not None:
            return lane
        if self.refusal is not None:
            raise self.refusal.again()
        if self.routes is None:
            raise Conflict("the stream is terminated; nothing was sent", retry=Retry.NEVER)
        number = self.routes.owner_of(key)
        found = self.lanes.get(number)
        if found is None:
            raise _not_ours(number)
        if len(self.known) >= limits.STREAM_KEYS_KNOWN:
            self.known.clear()
        self.known[key] = found
        return found


def _not_ours(number: int) -> DlogError:
    return Conflict(
        f"the key belongs to shard {number}, which this writer does not have; nothing was sent",
        retry=Retry.NEVER,
    )


class StreamWriter:
    """The one effective writer of some shards, or all, of a stream."""

    def __init__(
        self,
        stores: Stores,
        site: Site,
        options: WriterOptions,
        log_options: LogOptions,
        shards: frozenset[int] | None,
    ) -> None:
        self._stores = stores
        self._site = site
        self._options = options
        self._log_options = log_options
        self._lanes_core = Lanes(shards)
        self._lanes: dict[int, Lane] = {}
        self._lost: dict[int, Lane] = {}
        self._failed: list[Batch] = []  # of messages that are in no shard
        self._table = Table(None, {}, (), {})
        self._turn = itertools.count()
        self._driver = _WriterDriver(self, stores)
        self._moving: asyncio.Task[None] | None = None
        self._moves = 0
        self._client: Closeable | None = None
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._closed = False
        self._ending: asyncio.Task[DlogError | None] | None = None

    def own(self, client: Closeable) -> None:
        """Close this client with us."""
        self._client = client

    async def open(self) -> None:
        """All lanes, or none."""
        try:
            wanted = self._lanes_core.wanted
            async with asyncio.timeout(self._options.open_timeout_ms / 1000):
                await self._driver.run(carry_on(self._lanes_core, self._site))
            meta = self._lanes_core.meta
            assert meta is not None
            if wanted is not None and not wanted <= {s.number for s in meta.shards}:
                missing = sorted(wanted - {s.number for s in meta.shards})
                raise NotFound(f"stream {self.stream!r} has no shards {missing}")
            if not self._lanes:
                raise Unsupported(f"no shard of stream {self.stream!r} is open for this writer")
        except BaseException as error:
            self._closed = True
            for lane in self._lanes.values():
                lane.writer._engine.abandon(WriterClosed("given up", log=lane.shard.log))
            await _close_all(self._lanes.values())
            if isinstance(error, TimeoutError) and not isinstance(error, Timeout):
                raise Timeout(
                    f"stream {self.stream!r} could not be opened for writing within "
                    f"{self._options.open_timeout_ms} ms",
                    elapsed_ms=self._options.open_timeout_ms,
                ) from self._driver.in_the_way
            raise

    # --- what it is

    @property
    def stream(self) -> str:
        return self._site.name

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards that it writes now."""
        return tuple(sorted(self._table.lanes))

    @property
    def version(self) -> int:
        """Of the stream, as this writer routes by it."""
        meta = self._lanes_core.meta
        return 0 if meta is None else meta.version

    @property
    def epochs(self) -> dict[int, int]:
        """The fencing token of each shard."""
        return {number: lane.writer.epoch for number, lane in self._table.lanes.items()}

    @property
    def moves(self) -> int:
        """How often shards ended under it, and it went on in others."""
        return self._moves

    @property
    def closed(self) -> bool:
        return self._closed

    def shard_of(self, key: bytes) -> int:
        """Where a message with this key would go now."""
        return self._table.lane_of(key).shard.number

    def why(self) -> dict[int, Reason]:
        """What shards wait for now, of those that wait."""
        reasons = ((n, lane.writer.why()) for n, lane in self._table.lanes.items())
        return {number: reason for number, reason in reasons if reason is not None}

    # --- messages

    async def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersArg | None = None,
        event_time: EventTime | None = None,
        producer: Producer | None = None,
        timeout: float | None = None,
    ) -> MessageId:
        """Durable, and readable by anyone, once this returns. A `timeout` abandons the wait, not
        the message."""
        deadline = self._deadline(timeout)
        ticket = await self.submit(
            value,
            key=key,
            headers=headers,
            event_time=event_time,
            producer=producer,
            timeout=timeout,
        )
        return await within(deadline, ticket, timeout)

    async def submit(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: HeadersArg | None = None,
        event_time: EventTime | None = None,
        producer: Producer | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """On its way, in order with all that have the same key; `await` the ticket for the id.
        Waits, at most `timeout` s, while the window of its shard is full or the shard is being
        split or merged. Messages without a key go to the shards in turn.

        `producer` is an id and a number that grows with each message of that producer, whichever
        shard it goes to: a number that was taken before is refused (`AlreadyExists`), also if the
        shard was split or merged since. Who sends again after a crash sends in order, from the
        first message on that was not acknowledged."""
        if producer is None:
            table = self._table
            if key is not None:
                lane = table.known.get(key) or table.lane_of(key)
            else:
                lane = self._next_lane(table)
            try:
                ticket = lane.offer(value, key, headers, event_time)
                if ticket is not None:
                    return ticket
            except DlogError as error:
                if not self._is_moving(lane, error):
                    raise
        return await self._submit(value, key, headers, event_time, producer, timeout)

    async def _submit(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersArg | None,
        event_time: EventTime | None,
        producer: Producer | None,
        timeout: float | None,
    ) -> Ticket:
        deadline = self._deadline(timeout)
        route = key
        numbered = None if producer is None else as_producer(producer)
        if numbered is not None and key is None:
            route = producer_key(*numbered)
        while True:
            table = self._table
            lane = self._next_lane(table) if route is None else table.lane_of(route)
            if numbered is not None and route is not None and lane.inherited:
                lane.inherited.refuse_known(route, *numbered)
            try:
                return await lane.writer.submit(
                    value,
                    key=key,
                    headers=headers,
                    event_time=event_time,
                    producer=numbered,
                    timeout=self._left(deadline),
                )
            except DlogError as error:
                if not self._is_moving(lane, error):
                    raise
            await self._until_moved(table, deadline, timeout)

    async def append_many(
        self,
        values: Iterable[bytes | None],
        *,
        keys: Iterable[bytes | None] | None = None,
        headers: Iterable[HeadersArg | None] | None = None,
        producer: Producer | None = None,
        timeout: float | None = None,
    ) -> list[MessageId]:
        """All of them, each to the shard of its key, acknowledged; their ids in the order given.
        `producer` is an id and the number of the first message; those after it count on. What was
        there before is refused, with all that is behind it: see `submit`."""
        deadline = self._deadline(timeout)
        first = None if producer is None else as_producer(producer)
        tickets: list[Ticket] = []
        for index, (value, key, pairs) in enumerate(_rows(values, keys, headers)):
            numbered = None if first is None else (first[0], first[1] + index)
            tickets.append(
                await self.submit(
                    value, key=key, headers=pairs, producer=numbered, timeout=self._left(deadline)
                )
            )
        return [await within(deadline, ticket, timeout) for ticket in tickets]

    async def flush(self, *, timeout: float | None = None) -> None:
        """Everything submitted by now is acknowledged once this returns."""
        deadline = self._deadline(timeout)
        while True:
            table, moving = self._table, self._moving
            if moving is not None:
                await within(deadline, asyncio.shield(moving), timeout)
                continue
            flushes = [lane.writer.flush(timeout=self._left(deadline)) for lane in table.all]
            answers = await asyncio.gather(*flushes, return_exceptions=True)
            errors = [answer for answer in answers if isinstance(answer, BaseException)]
            if table is self._table and self._moving is None:
                for error in errors:
                    raise error
                return

    async def resolve(self, token: Token) -> Resolved:
        """What became of a message by its token, in the shard that it was sent to first. `Never`
        says nothing where that shard was split or merged since: it may have been sent on. Numbers
        of producers tell in any case."""
        meta = self._lanes_core.meta
        for shard in () if meta is None else meta.shards:
            lane = self._lanes.get(shard.number)
            if lane is not None and lane.writer._engine.batcher._origin.log_uid == token.log_uid:
                return await Looks(self._stores, shard.log).resolve(token)
        raise NotFound(f"no shard that this writer has is the log {token.log_uid} of the token")

    # --- life

    async def close(self, *, timeout: float | None = None) -> None:
        """Flush and close every lane. Raises the first failure, if messages were lost that nobody
        was told about. Cancelling abandons the wait only."""
        if os.getpid() != self._pid or (self._ending is not None and self._ending.done()):
            return
        if self._ending is None:
            self._ending = self._loop.create_task(self._shut_down())
        failure = await within(self._deadline(timeout), asyncio.shield(self._ending), timeout)
        if failure is not None:
            raise failure

    async def _shut_down(self) -> DlogError | None:
        self._table = Table(None, {}, (), {}, WriterClosed(f"{self!r} is closed"))
        failure: DlogError | None = None
        try:
            while True:  # a shard that is split while its lane is closed is gone on with first
                if self._moving is not None:
                    await asyncio.shield(self._moving)
                    continue
                lanes = [lane for lane in self._lanes.values() if not lane.writer._closed]
                if not lanes:
                    break
                failure = await _close_all(lanes) or failure
            failure = await _close_all(self._lost.values()) or failure
        finally:
            self._closed = True
            if self._client is not None:
                await self._client.close()
        unseen = (b.error for b in self._failed if b.error is not None and not b.error_seen)
        lost = next(unseen, None)
        return failure if lost is None else failure or lost.again()

    async def __aenter__(self) -> StreamWriter:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close()
        except DlogError as second:
            error.add_note(f"closing the writer failed, too: {second}")

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or os.getpid() != self._pid or not self._lanes:
            return
        warnings.warn(
            f"a writer of stream {self.stream!r} was dropped without close()",
            ResourceWarning,
            stacklevel=2,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"shards {list(self.shards)}"
        return f"<StreamWriter of {self.stream!r}, {state}>"

    def __reduce__(self) -> str:
        raise ConfigError("a writer cannot be pickled: open one where it is needed")

    # --- inside

    def _next_lane(self, table: Table) -> Lane:
        if table.refusal is not None:
            raise table.refusal.again()
        if not table.all:
            raise Conflict("the stream is terminated; nothing was sent", retry=Retry.NEVER)
        return table.all[next(self._turn) % len(table.all)]

    def _is_moving(self, lane: Lane, error: DlogError) -> bool:
        """Whether this refusal is that of a lane which ended, and may go on in others."""
        if os.getpid() != self._pid:
            raise ForkedHandle("this writer was made before a fork; open one in this process")
        dead = error.handle is Handle.DEAD and error.outcome is Outcome.NOT_HAPPENED
        return dead and not lane.is_lost and not self._closed and lane.death is not None

    async def _until_moved(
        self, table: Table, deadline: float | None, timeout: float | None
    ) -> None:
        if self._table is not table:
            return
        moving = self._moving
        if moving is None:
            raise Broken(f"a lane of stream {self.stream!r} died, and nobody looks after it")
        try:
            await within(deadline, asyncio.shield(moving), timeout)
        except Timeout as late:
            raise late.again(outcome=Outcome.NOT_HAPPENED) from late.__cause__

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._loop.time() + timeout

    def _left(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - self._loop.time())

    # --- lanes

    def _died(self, lane: Lane, error: DlogError, sent: list[Batch], left: list[Batch]) -> None:
        """The heir of a lane's messages, called in the turn in which it dies."""
        lane.death = _Death(error, sent, left)
        if self._closed or isinstance(error, (ForkedHandle, WriterClosed)):
            fail_batches(error, sent, left)
            lane.death = _Death(error, [], [])
            return
        self._lanes_core.dead.add(lane.shard.number)
        if self._moving is None:
            self._moving = self._loop.create_task(self._move())

    async def _move(self) -> None:
        self._moves += 1
        until_s = self._stores.clock.monotonic_s() + self._options.open_timeout_ms / 1000
        attempt = 0
        try:
            while True:
                try:
                    await self._driver.run(carry_on(self._lanes_core, self._site))
                    if not self._lanes_core.dead:
                        return
                except DlogError as error:
                    attempt += 1
                    late = self._stores.clock.monotonic_s() > until_s
                    if error.retry is Retry.NEVER or late:
                        self._give_up(error)
                        return
                    _log.info("stream %s: goes on later (try %d): %s", self.stream, attempt, error)
                    await asyncio.sleep(backoff_s(attempt, self._stores.chance, limit_s=2.0))
        except Exception as defect:  # noqa: BLE001 - a defect must end the handle, not hang it
            _log.exception("stream %s: the writer broke", self.stream)
            self._give_up(Broken(f"the writer of stream {self.stream!r} broke: {defect!r}"))
        finally:
            self._moving = None
            if self._lanes_core.dead and not self._closed:
                self._moving = self._loop.create_task(self._move())

    def _give_up(self, error: DlogError) -> None:
        """Everything that waits for new lanes is told why there are none."""
        _log.warning("stream %s: shards are lost to this writer: %s", self.stream, error)
        for number in list(self._lanes_core.dead):
            self.lose(number, error)
            self._lanes_core.lost.add(number)
            self._lanes_core.forget(number)
        self.refuse(self._lanes_core.left, error)
        self._lanes_core.left = ()
        self.publish()

    async def open_lane(self, shard: Shard, inherited: Inherited) -> None:
        count = len(self._lanes_core.opened) + len(self._lanes_core.to_open())
        window = self._options.window_bytes // count
        window = min(self._options.window_bytes, max(window, limits.STREAM_WINDOW_BYTES_MIN))
        options = dataclasses.replace(self._options, window_bytes=window)
        mark = new_mark(self._stores, options.owner)
        engine = Engine(self._stores, shard.log, options, mark)
        await engine.open(self._log_options)
        writer = Writer(engine, Looks(self._stores, shard.log))
        lane = Lane(shard, inherited, writer)
        engine.heir = lambda error, sent, left: self._died(lane, error, sent, left)
        self._lanes[shard.number] = lane
        if engine.core.error is not None:  # it died in the turn in which it was opened
            self._died(lane, engine.core.error, [], [])

    async def tell_apart(self, number: int) -> list[Left]:
        lane = self._lanes[number]
        if lane.death is None:
            ended = Fenced(f"shard {number} of stream {self.stream!r} ended", log=lane.shard.log)
            lane.writer._engine.abandon(ended)
        lane.writer._closed = True  # nothing is left that its end could concern
        if lane.death is None:  # it was closed before
            return []
        _, sent, left = lane.death
        there = await self._count_there(lane, sent)
        for batch in sent[:there]:
            batch.resolve()
        return [each for batch in (*sent[there:], *left) for each in _messages(batch)]

    async def _count_there(self, lane: Lane, sent: Sequence[Batch]) -> int:
        """How many of the batches are in the log: those that are stand before those that are
        not."""
        looks = Looks(self._stores, lane.shard.log)
        low, high = 0, len(sent)
        while low < high:
            middle = (low + high) // 2
            if isinstance(await looks.resolve(Ticket(sent[middle], 0).token), Present):
                low = middle + 1
            else:
                high = middle
        return low

    async def resend(self, messages: Sequence[Left]) -> list[Left]:
        """What its lane did not take."""
        meta = self._lanes_core.meta
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
            lane = self._next_lane(table) if route is None else table.lane_of(route)
            if lane.shard.number in blocked:
                rest.append(left)
                continue
            try:
                ticket = await self._offer(lane, left)
            except DlogError as error:
                if lane.death is not None:
                    blocked.add(lane.shard.number)
                    rest.append(left)
                    continue
                ticket = self._failed_ticket(error)
            batch, idx = left.ticket
            note_moved(batch, idx, ticket)
            sent.setdefault(id(batch), (batch, []))[1].append(ticket)
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
            f"its shard of stream {self.stream!r} ended, and those that follow are not this "
            "writer's; it is in no shard",
            retry=Retry.NEVER,
        )
        told = told.again(outcome=Outcome.NOT_HAPPENED)
        batches: dict[int, tuple[Batch, list[Ticket]]] = {}
        for left in messages:
            batch, idx = left.ticket
            ticket = self._failed_ticket(told)
            note_moved(batch, idx, ticket)
            batches.setdefault(id(batch), (batch, []))[1].append(ticket)
        for batch, tickets in batches.values():
            resolve_when_done(batch, tickets)

    def _failed_ticket(self, error: DlogError) -> Ticket:
        batch = Batch([None], 0)
        batch.resolve(error)
        self._failed.append(batch)
        return Ticket(batch, 0)

    def lose(self, number: int, error: DlogError | None = None) -> None:
        lane = self._lanes.pop(number)
        lane.is_lost = True
        self._lost[number] = lane
        if lane.death is not None:
            _, sent, left = lane.death
            fail_batches(error or lane.death.error, sent, left)
            lane.writer._engine.failed_batches = sent + left  # its close tells, if nobody was told
            lane.death = _Death(lane.death.error, [], [])

    def publish(self) -> None:
        for number in [n for n in self._lanes if n not in self._lanes_core.opened]:
            del self._lanes[number]
        if self._ending is None:
            self._table = self._new_table()

    def _new_table(self) -> Table:
        meta = self._lanes_core.meta
        assert meta is not None
        opened = self._lanes_core.opened
        lanes = {n: lane for n, lane in self._lanes.items() if n in opened}
        routes = routes_of(meta) if meta.open_shards else None
        of_others = {n: lane for n, lane in self._lost.items() if n not in lanes}
        return Table(routes, {**of_others, **lanes}, tuple(lanes.values()), {})


def _rows(
    values: Iterable[bytes | None],
    keys: Iterable[bytes | None] | None,
    headers: Iterable[HeadersArg | None] | None,
) -> Iterable[tuple[Any, Any, Any]]:
    """In step: columns of different lengths are refused at the first row that one has not."""
    if keys is None and headers is None:
        return ((value, None, None) for value in values)
    if keys is not None and headers is not None:
        return zip(values, keys, headers, strict=True)
    if keys is not None:
        return ((value, key, None) for value, key in zip(values, keys, strict=True))
    assert headers is not None
    return ((value, None, pairs) for value, pairs in zip(values, headers, strict=True))


async def _close_all(lanes: Iterable[Lane]) -> DlogError | None:
    answers = await asyncio.gather(*(lane.writer.close() for lane in lanes), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, DlogError):
            raise answer
    return next((answer for answer in answers if isinstance(answer, DlogError)), None)


def _messages(batch: Batch) -> list[Left]:
    batch.pad_columns()
    count = len(batch.values)
    nothing = itertools.repeat(None, count)
    rows = zip(
        batch.values,
        batch.keys or nothing,
        batch.headers or itertools.repeat(None, count),
        batch.event_times_us or itertools.repeat(None, count),
        strict=False,
    )
    producer = batch.producer
    return [
        Left(
            value,
            key,
            headers,
            event_time_us,
            None if producer is None else (producer[0], producer[1] + idx),
            (batch, idx),
        )
        for idx, (value, key, headers, event_time_us) in enumerate(rows)
    ]


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
    await lane.writer._room(None)


class _WriterDriver(StreamDriver):
    def __init__(self, writer: StreamWriter, stores: Stores) -> None:
        super().__init__(stores)
        self._writer = writer

    async def perform(self, effect: Effect) -> Any:
        writer = self._writer
        match effect:
            case OpenLane(shard=shard, inherited=inherited):
                await writer.open_lane(shard, inherited)
            case TellApart(number=number):
                return await writer.tell_apart(number)
            case Resend(messages=messages):
                return await writer.resend(messages)
            case Refuse(messages=messages):
                writer.refuse(messages)
            case LoseLane(number=number):
                writer.lose(number)
            case Publish():
                writer.publish()
            case _:
                return await super().perform(effect)
