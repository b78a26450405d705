"""A stream by its name: what `client.stream("orders")` gives. Opens writers and readers over its
shards, and changes which shards it has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from dlog import limits
from dlog.admin.admin import Admin
from dlog.admin.status import LogStatus
from dlog.drive import Stores
from dlog.effects import Procedure
from dlog.errors import AlreadyExists, ConfigError, NotFound, WriterClosed
from dlog.ids import check_hold_name, check_log_name
from dlog.meta.cas import read_log
from dlog.meta.layout import unescape
from dlog.opening import Opening
from dlog.options import LogOptions, ReaderOptions, WriterOptions, options_from
from dlog.streams.config.of_client import Configs
from dlog.streams.document import (
    Routing,
    Shard,
    ShardState,
    StreamMeta,
    new_stream,
    shard_log,
)
from dlog.streams.driver import StreamDriver
from dlog.streams.holding import (
    StreamHoldSummary,
    drop_stream_hold,
    hold_stream,
    list_stream_holds,
)
from dlog.streams.reader import ReadingOrder, StreamReader, StreamStart
from dlog.streams.removal import (
    delete_nodes,
    finish_removal,
    forget_shards,
    left_numbers,
    remove_stream,
)
from dlog.streams.reshard import (
    SeenStream,
    Site,
    make_stream,
    merge,
    pin,
    read_stream,
    split,
    terminate_stream,
)
from dlog.streams.routing.ranges import WHOLE_SPACE
from dlog.streams.tails import ShardTail, by_newest_shards, log_status, statuses_of, tails_of
from dlog.streams.trimmed import read_trimmed
from dlog.streams.writer import StreamWriter
from dlog.together import some_at_once
from dlog.writer.owner import default_owner

GetStores = Callable[[bool], Awaitable[Stores]]
_H = TypeVar("_H", StreamWriter, StreamReader)
Keep = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class ShardSummary:
    number: int
    log: str
    state: str
    first_hash: int
    last_hash: int
    share: float  # of the hash space
    parents: tuple[int, ...]
    children: tuple[int, ...]
    weight: int
    next_seq: int | None  # None for a log that is not made yet
    head_seq: int | None
    bytes: int
    writer: str | None
    last_time_us: int | None


@dataclass(frozen=True, slots=True)
class StreamDescription:
    name: str
    uid: str
    state: str
    routing: str
    version: int
    is_one_log: bool  # a log that was never made a stream
    options: LogOptions
    pins: Mapping[bytes, int]
    shards: tuple[ShardSummary, ...]
    next_number: int = 0  # that no shard had yet, be it listed or trimmed
    trimmed: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """From which seq up to which (exclusive) each shard had messages that was trimmed, by its
    number. Of too many the oldest are forgotten."""


class Stream:
    """A named set of shards, each of them one log. A plain log is a stream of one shard."""

    def __init__(
        self,
        name: str,
        stores: GetStores,
        keep: Keep,
        admin: Admin,
        configs: Configs | None = None,
    ) -> None:
        """`configs`: the documents that its writers and readers go by."""
        self.name = check_log_name(name)
        self._get_stores = stores
        self._admin = admin
        self._keep = keep
        self._configs = configs

    # --- reading and writing

    def open_writer(
        self, *, shards: Iterable[int] | None = None, **options: Any
    ) -> Opening[StreamWriter]:
        """Become the one writer of all shards, those to come included, or of these, and what
        follows them; older writers of theirs are fenced. Options are a writer's; the window is
        shared by the shards."""
        checked = options_from(WriterOptions, options)
        wanted = None if shards is None else frozenset(shards)
        if wanted is not None and not wanted:
            raise ConfigError("shards=[] would write nothing")
        return Opening(self._keep(self._open_writer(checked, wanted, frozenset(options))))

    async def _open_writer(
        self, options: WriterOptions, shards: frozenset[int] | None, given: frozenset[str]
    ) -> StreamWriter:
        stores = await self._get_stores(True)
        site = self._site(stores)
        seen = await StreamDriver(stores).run(read_stream(site))
        writer = StreamWriter(stores, site.of(seen.meta), options, seen.meta.options, shards)
        try:
            if self._configs is not None:
                await self._configs.add_stream_writer(writer, options, given)
        except BaseException:  # also cancelled: nobody else has the writer yet
            writer.let_go(WriterClosed(f"this writer of {self.name!r} was not opened"))
            raise
        await writer.open()
        return writer

    def open_reader(
        self,
        *,
        start: StreamStart = "earliest",
        order: ReadingOrder = "arrival",
        patience_ms: int = limits.STREAM_PATIENCE_MS_DEFAULT,
        shards: Iterable[int] | None = None,
        **options: Any,
    ) -> Opening[StreamReader]:
        """Read all shards, or these, each key in order, from `start`: "earliest", "latest", a
        StreamPosition or an aware datetime. `order="time"` hands out the oldest message first, by
        the times that writers stamped; while a shard is idle, what others have waits until it is
        `patience_ms` old. Other options are a reader's."""
        checked = options_from(ReaderOptions, options)
        only = None if shards is None else tuple(shards)
        opening = self._open_reader(checked, start, order, patience_ms, only, frozenset(options))
        return Opening(self._keep(opening))

    async def _open_reader(
        self,
        options: ReaderOptions,
        start: StreamStart,
        order: ReadingOrder,
        patience_ms: int,
        shards: tuple[int, ...] | None,
        given: frozenset[str],
    ) -> StreamReader:
        stores = await self._get_stores(False)
        reader = StreamReader(
            stores,
            self._site(stores),
            options,
            order=order,
            patience_ms=patience_ms,
            shards=shards,
        )
        try:
            if self._configs is not None:
                await self._configs.add_stream_reader(reader, options, given)
            await reader.open(start)
        except BaseException:
            await reader.close()
            raise
        return reader

    # --- what it is

    async def shards(self) -> tuple[Shard, ...]:
        """All that are listed, oldest first, those that ended included."""
        shards: tuple[Shard, ...] = (await self._run(read_stream)).meta.shards
        return shards

    async def tails(self) -> tuple[ShardTail, ...]:
        """Where each shard ends now, oldest first: a cut that is right in every key. Shards whose
        logs are not made yet are left out."""
        stores = await self._get_stores(False)
        driver, site = StreamDriver(stores), self._site(stores)
        _, tails = await by_newest_shards(driver, site, partial(tails_of, stores))
        return tails

    async def describe(self) -> StreamDescription:
        """Asks each shard's log where it stands."""
        stores = await self._get_stores(False)
        driver, site = StreamDriver(stores), self._site(stores)
        seen, statuses = await by_newest_shards(
            driver, site, lambda meta: statuses_of(stores, meta.shards)
        )
        meta = seen.meta
        trimmed = await driver.run(read_trimmed(site, meta.uid))
        return StreamDescription(
            self.name,
            meta.uid,
            meta.state.value,
            meta.routing,
            meta.version,
            seen.version is None,
            meta.options,
            dict(meta.pins),
            tuple(
                _summary(meta, shard, status)
                for shard, status in zip(meta.shards, statuses, strict=True)
            ),
            meta.next_number,
            {number: (each.first_seq, each.next_seq) for number, each in trimmed.items()},
        )

    # --- changes

    async def split(
        self, shard: int, *, at: int | Sequence[int] | None = None, parts: int = 2
    ) -> tuple[Shard, ...]:
        """A shard's keys go on in several: in equal parts of its hash range, or cut before the
        hashes `at`. The new shards. Writers go on by themselves; a key stays in order."""
        if at is None:
            if type(parts) is not int or not 2 <= parts <= 256:
                raise ConfigError(f"a shard is split in 2 to 256 parts, not {parts!r}")
            range = (await self._run(read_stream)).meta.shard(shard).range
            if len(range) < parts:
                raise ConfigError(f"shard {shard} has {len(range)} hashes, fewer than {parts}")
            cuts = [range.first_hash + len(range) * part // parts for part in _from_1(parts)]
        else:
            cuts = [at] if isinstance(at, int) else list(at)
        return await self._reshard(
            lambda site, token: split(site, shard, tuple(cuts), token), len(cuts) + 1
        )

    async def merge(self, *shards: int) -> Shard:
        """The keys of neighbours go on in one new shard."""
        made = await self._reshard(lambda site, token: merge(site, shards, token), 1)
        if not made:
            raise NotFound(f"what shards {list(shards)} became was trimmed meanwhile")
        return made[0]

    async def pin(self, key: bytes, shard: int) -> tuple[Shard, ...]:
        """From now on this key goes to that shard, whatever its hash says: its messages so far stay
        before those to come, which is why the shard that has the key, and the one that gets it,
        both go on in new ones. These; none if nothing had to move."""
        return await self._reshard(lambda site, token: pin(site, key, shard, token), 2)

    async def unpin(self, key: bytes) -> tuple[Shard, ...]:
        """The key goes back to the shard that has its hash."""
        return await self._reshard(lambda site, token: pin(site, key, None, token), 2)

    async def terminate(self) -> None:
        """No more messages, for good: writers are fenced, readers come to an end."""
        await self._run(terminate_stream)

    async def trim(self, *, dry_run: bool = False) -> tuple[int, ...]:
        """Forget the shards that ended and were truncated to their end, and remove their logs:
        their numbers. Nobody can read anything there any more. Run again after a failure, it goes
        on."""
        stores = await self._get_stores(False)
        site = self._site(stores)
        driver = StreamDriver(stores)
        meta = (await driver.run(read_stream(site))).meta
        gone: list[int] = []
        kept: set[int] = set()
        for shard in meta.shards:  # oldest first: what follows something that stays, stays
            if shard.state is ShardState.ENDED and not kept & set(shard.parents):
                status = await log_status(stores, shard)
                if status is None or status.head_seq >= status.next_seq:
                    gone.append(shard.number)
                    continue
            kept.add(shard.number)
        if not dry_run:
            await driver.run(forget_shards(site.of(meta), gone))
        return tuple(gone)

    async def remove(self) -> None:
        """Delete the stream with all its logs, under its readers and its writers. Run again after a
        failure, it goes on."""
        stores = await self._get_stores(False)
        await StreamDriver(stores).run(remove_stream(self._site(stores)))

    # --- holds

    async def hold(self, hold: str, *, who: str | None = None) -> None:
        """Keep the stream from being truncated by any policy, what is there and what comes, also in
        shards to come. `admin.hold` of the same name moves it on in a shard's log; where it is not
        moved, all of the shard is kept. Again, it changes nothing."""
        stores = await self._get_stores(False)
        name = check_hold_name(hold)
        await hold_stream(stores, self._admin, self._site(stores), name, who or default_owner())

    async def holds(self) -> tuple[StreamHoldSummary, ...]:
        """On the whole stream, by name; those of consumer groups included."""
        stores = await self._get_stores(False)
        site = self._site(stores)
        found: tuple[StreamHoldSummary, ...]
        found = await StreamDriver(stores).run(list_stream_holds(stores, site))
        return found

    async def drop_hold(self, hold: str) -> None:
        """On the stream, and of the same name on its shards. `NotFound` when there is none."""
        stores = await self._get_stores(False)
        name = check_hold_name(hold)
        await drop_stream_hold(stores, self._admin, self._site(stores), name)

    # --- inside

    async def _reshard(
        self, change: Callable[[Site, str], Procedure[SeenStream]], new: int
    ) -> tuple[Shard, ...]:
        stores = await self._get_stores(True)
        site = self._site(stores)
        driver = StreamDriver(stores)
        meta = (await driver.run(read_stream(site))).meta
        site = site.of(meta)
        numbers = range(meta.next_number, meta.next_number + new)
        await _refuse_taken(stores, [shard_log(self.name, number) for number in numbers])
        token = stores.chance.token()
        seen = await driver.run(change(site, token))
        return seen.meta.made_in(token)

    async def _run(self, procedure: Callable[[Site], Procedure[Any]]) -> Any:
        stores = await self._get_stores(False)
        return await StreamDriver(stores).run(procedure(self._site(stores)))

    def _site(self, stores: Stores) -> Site:
        return Site.at(stores.layout, self.name, stores.chance)

    def __repr__(self) -> str:
        return f"<Stream {self.name!r}>"


async def create_stream(
    stores: Stores,
    name: str,
    options: LogOptions,
    *,
    shards: int,
    routing: Routing = "ranges",
    pins: Mapping[bytes, int] | None = None,
    weights: Sequence[int] | None = None,
) -> None:
    check_log_name(name)

    def new() -> StreamMeta:
        uid = stores.chance.token()
        return new_stream(
            name, uid, options, shards=shards, routing=routing, pins=pins, weights=weights
        )

    meta = new()
    site = Site.at(stores.layout, name, stores.chance)
    driver = StreamDriver(stores)
    await driver.run(finish_removal(site))
    if await _is_plain_log(stores, name):
        raise AlreadyExists(
            f"there is a log {name!r}, which is a stream of one shard: split it", log=name
        )
    await _refuse_taken(stores, [shard.log for shard in meta.shards])
    left = await driver.run(left_numbers(site))
    seen = await driver.run(make_stream(site, new))
    if await _is_plain_log(stores, name, written=True):
        # It was made meanwhile, and nobody would find its messages here. One without messages is
        # removed by whoever made it.
        if not await _is_written(stores, seen.meta):
            await driver.run(remove_stream(site.of(seen.meta)))
        raise AlreadyExists(
            f"a log {name!r} was made at the same time: remove it, or choose another name",
            log=name,
        )
    await driver.run(delete_nodes(left))


async def list_streams(stores: Stores, prefix: str = "") -> list[str]:
    try:
        nodes = await stores.meta.children(stores.layout.streams)
    except NotFound:
        return []
    return sorted(name for name in map(unescape, nodes) if name.startswith(prefix))


async def _refuse_taken(stores: Stores, logs: Sequence[str]) -> None:
    """A shard is a log of its own, and none that somebody made for something else."""
    there = await some_at_once(
        limits.STREAM_LOOKS_AT_ONCE, lambda log: _is_plain_log(stores, log), logs
    )
    for log, is_there in zip(logs, there, strict=True):
        if is_there:
            raise AlreadyExists(
                f"there is a log {log!r} already, which a new shard would be", log=log
            )


async def _is_plain_log(stores: Stores, log: str, *, written: bool = False) -> bool:
    """Logs that an interrupted removal left behind do not count: they are replaced."""
    try:
        meta = (await StreamDriver(stores).run(read_log(stores.layout.log(log)))).meta
    except NotFound:
        return False
    if meta.stream is not None or meta.is_removed:
        return False
    if not written:
        return True
    status = await log_status(stores, Shard(0, log, WHOLE_SPACE))
    return status is not None and status.next_seq > 0


async def _is_written(stores: Stores, meta: StreamMeta) -> bool:
    statuses = await statuses_of(stores, meta.shards)
    return any(status is not None and status.next_seq > 0 for status in statuses)


def _summary(meta: StreamMeta, shard: Shard, status: LogStatus | None) -> ShardSummary:
    whole = sum(len(each.range) for each in meta.open_shards) or 1
    share = len(shard.range) / whole if shard.is_open else 0.0
    return ShardSummary(
        shard.number,
        shard.log,
        shard.state.value,
        shard.range.first_hash,
        shard.range.last_hash,
        share,
        shard.parents,
        tuple(child.number for child in meta.children(shard.number)),
        shard.weight,
        None if status is None else status.next_seq,
        None if status is None else status.head_seq,
        0 if status is None else status.bytes,
        None if status is None else status.writer,
        None if status is None else status.last_time_us,
    )


def _from_1(parts: int) -> range:
    return range(1, parts)
