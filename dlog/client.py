"""The client: opens a URL, and hands out writers, readers, streams and the admin."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import weakref
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dlog import uri
from dlog.admin.admin import Admin
from dlog.admin.hidden import refuse_first_shard, refuse_stream, withdraw_if_hidden
from dlog.backends import WarmsUp, check_format, close_stores, open_stores
from dlog.calls import Calls
from dlog.drive import Closeable, Stores
from dlog.errors import (
    ConfigError,
    DlogError,
    ForkedHandle,
    Outcome,
    WriterClosed,
)
from dlog.ids import Token, check_log_name
from dlog.limits import CONFIG_POLL_MS_DEFAULT
from dlog.metrics import NO_METRICS, Metrics, guarded
from dlog.opening import Opening
from dlog.options import LogOptions, ReaderOptions, TailMode, WriterOptions, options_from
from dlog.reader.looks import Looks
from dlog.reader.message import MessageBatch
from dlog.reader.places import Start, check_start
from dlog.reader.range_batches import RangeBatches
from dlog.reader.ranges import LedgerRange, options_of_range
from dlog.reader.reader import Reader
from dlog.reader.resolve import Resolved
from dlog.standby.standby import Standby
from dlog.streams.config.config import Config
from dlog.streams.config.hot import HotConfig
from dlog.streams.config.of_client import Configs
from dlog.writer.engine import Engine
from dlog.writer.owner import new_mark
from dlog.writer.writer import Writer

if TYPE_CHECKING:
    from dlog.groups.group import Group
    from dlog.groups.heart import Aside
    from dlog.groups.worker import Worker
    from dlog.streams.document import Routing
    from dlog.streams.stream import Stream


class _Handle(Protocol):
    """What a client opens, and closes with itself."""

    def own(self, client: Closeable) -> None: ...

    async def close(self) -> None: ...


_H = TypeVar("_H", bound=_Handle)


class Client:
    """One connection to where logs are kept. Belongs to the event loop it was made on."""

    def __init__(
        self, url: uri.Url, metrics: Metrics = NO_METRICS, config: str | None = None
    ) -> None:
        self.url = str(url)
        self._metrics = guarded(metrics)
        self._url = url
        self._opened: Stores | None = None
        self._opening = asyncio.Lock()
        self._openings = Calls(
            lambda: ConfigError("this client is closed", outcome=Outcome.UNKNOWN)
        )
        self.admin = Admin(
            self._stores, self._apart, self._new_log_options, url.where, self._openings.run
        )
        self._configs = Configs(self._stores, config)
        # In the order of their opening.
        self._handles: weakref.WeakValueDictionary[int, _Handle] = weakref.WeakValueDictionary()
        self._pid = os.getpid()
        self._closed = False
        self._ending: asyncio.Task[DlogError | None] | None = None

    def open_writer(
        self,
        name: str,
        *,
        create: bool | LogOptions = True,
        metrics: Metrics | None = None,
        **options: Any,
    ) -> Opening[Writer]:
        """Become the one writer of a log; an older one is fenced (see `takeover`). A log that is
        not there is made, with `create` as its options, unless that is False. `metrics` of its own
        replace the client's."""
        check_log_name(name)
        checked = options_from(WriterOptions, options)
        given = frozenset(options)
        return Opening(self._open_writer(name, checked, self._log_options(create), metrics, given))

    async def _open_writer(
        self,
        name: str,
        options: WriterOptions,
        create: LogOptions | None,
        metrics: Metrics | None = None,
        given: frozenset[str] = frozenset(),
    ) -> Writer:
        making = self._make_writer(name, options, create, metrics, given)
        return await self._unless_closed(making)

    async def _make_writer(
        self,
        name: str,
        options: WriterOptions,
        create: LogOptions | None,
        metrics: Metrics | None,
        given: frozenset[str],
    ) -> Writer:
        stores = _measured(await self._stores(create is not None), metrics)
        now = await self._configs.writer_options(name, options, given)
        engine = Engine(stores, name, now, new_mark(stores, options.owner))
        await engine.open(create)
        if engine.batcher.is_empty:
            try:
                await withdraw_if_hidden(stores, name, engine.batcher.log_uid)
            except BaseException:  # also cancelled: nobody would close what was opened
                engine.abandon(WriterClosed("given up", log=name))
                raise
        writer = Writer(engine, Looks(stores, name))
        self._handles[id(writer)] = writer
        self._configs.add_writer(writer, options, given)
        return writer

    def open_reader(
        self,
        name: str,
        *,
        start: Start = "earliest",
        end: Start | None = None,
        metrics: Metrics | None = None,
        **options: Any,
    ) -> Opening[Reader]:
        """Read a log from `start`: "earliest", "latest", a MessageId, a Position, a seq or an aware
        datetime; to `end` (exclusive), by default to the tail seen now, or on and on with
        `follow`. `metrics` of its own replace the client's."""
        check_log_name(name)
        check_start(start)
        if end is not None:
            check_start(end, "end")
        checked = options_from(ReaderOptions, options)
        given = frozenset(options)
        return Opening(self._open_reader(name, start, end, checked, metrics, given))

    async def _open_reader(
        self,
        name: str,
        start: Start,
        end: Start | None,
        options: ReaderOptions,
        metrics: Metrics | None = None,
        given: frozenset[str] = frozenset(),
    ) -> Reader:
        making = self._make_reader(name, start, end, options, metrics, given)
        return await self._unless_closed(making)

    async def _make_reader(
        self,
        name: str,
        start: Start,
        end: Start | None,
        options: ReaderOptions,
        metrics: Metrics | None,
        given: frozenset[str],
    ) -> Reader:
        stores = _measured(await self._stores(False), metrics)
        reader = Reader(stores, name, await self._configs.reader_options(name, options, given))
        self._handles[id(reader)] = reader
        self._configs.add_reader(reader, options, given)
        try:
            await reader.seek(start, end=end)
        except BaseException:
            await reader.close()
            raise
        return reader

    def open_standby(
        self,
        name: str,
        *,
        start: Start = "earliest",
        tail: TailMode = "normal",
        create: bool | LogOptions = True,
        **options: Any,
    ) -> Opening[Standby]:
        """Stand by to become the writer, with a ledger ready; read what is written meanwhile, from
        `start` on, and believe the tail as `tail` says. `options` are those of the writer to be."""
        check_log_name(name)
        check_start(start)
        reading = ReaderOptions(follow=True, tail=tail)
        checked = options_from(WriterOptions, options)
        making = self._log_options(create)
        opening = self._make_standby(name, start, reading, checked, making, frozenset(options))
        return Opening(self._open_standby(opening))

    async def _open_standby(self, opening: Coroutine[Any, Any, Standby]) -> Standby:
        return await self._unless_closed(opening)

    async def _make_standby(
        self,
        name: str,
        start: Start,
        reading: ReaderOptions,
        options: WriterOptions,
        create: LogOptions | None,
        given: frozenset[str],
    ) -> Standby:
        stores = await self._stores(create is not None)
        if create is not None:
            await refuse_stream(stores, name)
        await refuse_first_shard(stores, name)
        reader = Reader(stores, name, await self._configs.reader_options(name, reading, ()))
        self._configs.add_reader(reader, reading, ())

        def keep(writer: Writer) -> None:
            self._handles[id(writer)] = writer
            self._configs.add_writer(writer, options, given)

        standby = Standby(stores, name, options, reader, keep)
        self._handles[id(standby)] = standby
        try:
            await standby.begin(create)
            await reader.seek(start)
        except BaseException:
            await standby.close()
            raise
        return standby

    def read_range(self, wanted: LedgerRange, **options: Any) -> AsyncIterator[MessageBatch]:
        """The messages of a range that `admin.plan_ranges` gave, here or in another process, as
        they lie in entries: so many, from that seq on, or `Truncated` (unless `on_truncated` is
        "jump": then what is left of them) or `Corrupt`. `options` are a reader's. After an error
        that may pass, the next step of the same iterator goes on."""
        return RangeBatches(wanted, partial(self._open_range, wanted, options))

    async def _open_range(self, wanted: LedgerRange, given: Mapping[str, Any]) -> Reader:
        options = options_of_range(wanted, given)
        return await self._unless_closed(self._make_range_reader(wanted, options))

    async def _make_range_reader(self, wanted: LedgerRange, options: ReaderOptions) -> Reader:
        reader = Reader(await self._stores(False), wanted.log, options, wanted.log_uid)
        self._handles[id(reader)] = reader
        try:
            await reader.seek_range(wanted)
        except BaseException:
            await reader.close()
            raise
        return reader

    # --- streams

    def stream(self, name: str) -> Stream:
        """Shards that act as one log. A plain log is a stream of one shard."""
        from dlog.streams.stream import Stream

        return Stream(name, self._stores, self._keeping, self.admin, self._configs)

    async def create_stream(
        self,
        name: str,
        *,
        shards: int = 1,
        routing: Routing = "ranges",
        pins: Mapping[bytes, int] | None = None,
        weights: Sequence[int] | None = None,
        **log_options: Any,
    ) -> Stream:
        """A new stream of so many shards. A key goes to the shard that has its hash in its range
        (`routing="ranges"`, which can be split and merged), or by consistent hashing of all shards,
        with `weights` if wanted (`"ketama"`); one in `pins` to the shard named there.
        `log_options` are those of the logs that the shards are. `AlreadyExists` if there is one."""
        from dlog.streams.stream import create_stream

        options = self._new_log_options(log_options)
        await create_stream(
            await self._stores(True),
            name,
            options,
            shards=shards,
            routing=routing,
            pins=pins,
            weights=weights,
        )
        return self.stream(name)

    async def streams(self, prefix: str = "") -> list[str]:
        """The names of streams that begin with `prefix`. A plain log is not among them."""
        from dlog.streams.stream import list_streams

        return await list_streams(await self._stores(False), prefix)

    async def _keeping(self, opening: Coroutine[Any, Any, _H]) -> _H:
        handle = await self._unless_closed(opening)
        self._handles[id(handle)] = handle
        return handle

    # --- groups of workers

    def open_worker(
        self,
        group: str,
        stream: str,
        processor: Any,
        *,
        metrics: Metrics | None = None,
        **options: Any,
    ) -> Opening[Worker]:
        """Consume a share of a stream's shards together with the other workers of a group, each
        shard by one of them at a time. `processor` is a function of a batch (and a tracker), an
        object with `process`, and `initialize` and `shutdown` if wanted, or a class of such: one
        for each shard. Options are those of `dlog.groups.options.WorkerOptions`."""
        from dlog.groups.options import WorkerOptions

        check_log_name(group)
        check_log_name(stream)
        checked = options_from(WorkerOptions, options)
        given = frozenset(options)
        opening = self._open_worker(group, stream, processor, checked, metrics, given)
        return Opening(self._keeping(opening))

    async def _open_worker(
        self,
        group: str,
        stream: str,
        processor: Any,
        options: Any,
        metrics: Metrics | None,
        given: frozenset[str],
    ) -> Worker:
        from dlog.groups.worker import Worker

        stores = _measured(await self._stores(False), metrics)
        url, heard = self._url, self._metrics if metrics is None else metrics
        meta_timeout_ms = min(url.options.meta_timeout_ms, max(50, options.timeout_ms // 3))
        aside_url = dataclasses.replace(
            url, options=dataclasses.replace(url.options, meta_timeout_ms=meta_timeout_ms)
        )

        async def open_aside() -> Aside:
            return await _aside(Client(aside_url, heard))

        add_reader = await self._configs.worker_readers(given)
        worker = Worker(stores, self, group, stream, processor, options, open_aside, add_reader)
        await worker.begin()
        return worker

    def group(self, group: str, stream: str) -> Group:
        """A group of workers, to look at and to put elsewhere."""
        from dlog.groups.group import Group

        return Group(check_log_name(group), check_log_name(stream), self._stores, self)

    async def groups(self, stream: str | None = None) -> list[tuple[str, str]]:
        """Names of groups and of their streams; of one stream, if named."""
        from dlog.groups.group import list_groups

        return await list_groups(await self._stores(False), stream)

    async def resolve(self, name: str, token: Token) -> Resolved:
        """What became of the message of a `ticket.token` (or of an `error.token`): `Present(id)`,
        `Never`, `TooLate(why)` when the evidence is truncated or removed, or `Undecided(why)` while
        its writer may still hold the log: open a writer, and ask again."""
        return await self.admin.resolve(name, token)

    # --- documents that change while programs run

    def config(self, name: str) -> Config:
        """A document to read, change and follow. It need not be there yet."""
        return self._configs.config(name)

    async def follow_config(self, name: str, *, poll_ms: int = CONFIG_POLL_MS_DEFAULT) -> HotConfig:
        """From now on this client's writers, readers and logs go by that document, whatever is
        open already included: see docs/how-to/configure.md. `connect(config=name)` does so from
        the first handle on."""
        return await self._configs.follow(name, poll_ms)

    @property
    def followed_config(self) -> HotConfig | None:
        """What the handles of this client go by; None while nothing is followed."""
        return self._configs.followed

    async def _unless_closed(self, opening: Coroutine[Any, Any, _H]) -> _H:
        """Cut short when the client is closed meanwhile: what it opens would have no stores."""
        return await self._openings.run(opening)

    def _log_options(self, create: bool | LogOptions) -> LogOptions | None:
        log_options = self._new_log_options({}) if create is True else (create or None)
        if log_options is not None and not isinstance(log_options, LogOptions):
            raise ConfigError(f"create is True, False or LogOptions, not {create!r}")
        return None if log_options is None else self._checked(log_options)

    def _options_of_copy(self, given: LogOptions | None, copied: LogOptions) -> LogOptions:
        """Without any of its own, those of the other log, with the digest that logs have here."""
        pinned = self._url.options.digest
        if given is None and pinned is not None:
            return dataclasses.replace(copied, digest=pinned)
        return self._checked(given or copied)

    def _new_log_options(self, given: Mapping[str, Any]) -> LogOptions:
        pinned = self._url.options.digest
        ours = {} if pinned is None else {"digest": pinned}
        return self._checked(options_from(LogOptions, {**ours, **given}))

    def _checked(self, options: LogOptions) -> LogOptions:
        pinned = self._url.options.digest
        if pinned not in (None, options.digest):
            raise ConfigError(f"this client makes no logs but with digest={pinned!r}")
        return options

    # --- stores

    async def _stores(self, create: bool) -> Stores:
        """The backend, opened at the first need: a reader makes no directory, a writer may."""
        if os.getpid() != self._pid:
            raise ForkedHandle("this client was made before a fork; connect in this process")
        async with self._opening:
            if self._closed:
                raise ConfigError("this client is closed")
            if self._opened is None:
                opened = self._open_stores(create=create)
                try:
                    await check_format(opened, self._url, create=create)
                except BaseException:
                    await close_stores(opened)
                    raise
                self._opened = opened
                if isinstance(opened.ledgers, WarmsUp):  # only now: its format is one we know
                    opened.ledgers.warm_up()
        return self._opened

    @asynccontextmanager
    async def _apart(self) -> AsyncIterator[Stores]:
        """Stores that nobody has looked at yet, for who wants to know whether they are any good."""
        if self._closed:
            raise ConfigError("this client is closed")
        opened = self._open_stores(create=False)
        try:
            yield opened
        finally:
            await close_stores(opened)

    def _open_stores(self, *, create: bool) -> Stores:
        return open_stores(self._url, self._metrics, create=create)

    def belong_to(self, handle: _Handle) -> None:
        """That handle closes us, and not the other way round."""
        self._handles.pop(id(handle), None)
        handle.own(self)

    async def close(self) -> None:
        """Closes what this client opened and is still open. Idempotent; cancelling abandons the
        wait only."""
        self._closed = True
        if os.getpid() != self._pid or (self._ending is not None and self._ending.done()):
            return
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(self._shut_down())
        failure = await asyncio.shield(self._ending)
        if failure is not None:
            raise failure

    async def _shut_down(self) -> DlogError | None:
        """Every handle, then the stores; the first failure, when all is closed."""
        failure: DlogError | None = None
        await self._openings.cut_short()
        try:
            await self._configs.close()
            failure = await self.admin.give_up_segments()
            closed: dict[int, _Handle] = {}
            # A standby that is closed while it takes over may leave one more: its writer.
            while left := [each for each in self._handles.values() if id(each) not in closed]:
                closed |= {id(each): each for each in left}
                for _, some in itertools.groupby(left, _uses_others):
                    failure = await _close_all(list(some), failure)
        finally:
            async with self._opening:  # what is being opened now is closed as well
                if self._opened is not None:
                    await close_stores(self._opened)
        return failure

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.url}{' closed' if self._closed else ''}>"

    def __reduce__(self) -> str:
        raise ConfigError("a client cannot be pickled: pass its url and connect there")


def connect(
    url: str | None = None,
    *,
    metrics: Metrics = NO_METRICS,
    config: str | None = None,
    **client_options: Any,
) -> Client:
    """A client for `url`, else for what DLOG_URL says, else for the user's own data directory.
    `metrics` hears what it and its handles measure (see `dlog.metrics`); `config` names a document
    there that they go by, also when it changes."""
    return Client(uri.resolve(url, client_options), metrics, config)


def _uses_others(handle: _Handle) -> bool:
    """It is closed before the handles that it opened for itself; all others need not wait for each
    other."""
    return getattr(handle, "uses_others", False)


async def _close_all(handles: list[_Handle], failure: DlogError | None) -> DlogError | None:
    if len(handles) > 1:
        closing = await asyncio.gather(*map(_closed, handles))
    else:
        closing = [await _closed(handle) for handle in handles]
    return next((each for each in (failure, *closing) if each is not None), None)


async def _closed(handle: _Handle) -> DlogError | None:
    try:
        await handle.close()
    except DlogError as error:
        return error
    return None


async def _aside(client: Client) -> Aside:
    from dlog.groups.heart import Aside

    try:
        return Aside(await client._stores(False), client, client.close)
    except BaseException:
        await client.close()
        raise


def _measured(stores: Stores, metrics: Metrics | None) -> Stores:
    return stores if metrics is None else dataclasses.replace(stores, metrics=guarded(metrics))
