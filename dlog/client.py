"""The client: opens a URL, and hands out writers, readers and the admin. Backends are known by name
here only."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Generator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from dlog import uri
from dlog.admin.admin import Admin
from dlog.chance import SYSTEM_CHANCE
from dlog.clock import SYSTEM_CLOCK
from dlog.drive import Stores
from dlog.errors import (
    AlreadyExists,
    AuthError,
    ConfigError,
    DlogError,
    ForkedHandle,
    FormatError,
    NotFound,
    Unavailable,
)
from dlog.ids import check_log_name
from dlog.meta.layout import FORMAT_VERSION, Layout
from dlog.meta.log_meta import WriterMark
from dlog.options import LogOptions, ReaderOptions, WriterOptions, options_from
from dlog.reader.places import Start, check_start
from dlog.reader.reader import Reader
from dlog.writer.engine import Engine, default_owner
from dlog.writer.writer import Writer

if TYPE_CHECKING:
    from dlog.ledger.memory import MemoryLedgers
    from dlog.meta.memory import MemoryTree


_H = TypeVar("_H", Writer, Reader)

_memory_worlds: dict[str, tuple[MemoryTree, MemoryLedgers]] = {}


class Opening(Generic[_H]):
    """What opening returns: `await` it for the handle, or use it in `async with`."""

    def __init__(self, opening: Any) -> None:
        self._opening = opening
        self._handle: _H | None = None

    def __await__(self) -> Generator[Any, None, _H]:
        return self._opening.__await__()  # type: ignore[no-any-return]

    async def __aenter__(self) -> _H:
        self._handle = await self._opening
        await self._handle.__aenter__()
        return self._handle

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._handle is not None
        await self._handle.__aexit__(kind, error, trace)


class Client:
    """One connection to where logs are kept. Belongs to the event loop it was made on."""

    def __init__(self, url: uri.Url) -> None:
        self.url = str(url)
        self.admin = Admin(self._stores)
        self._url = url
        self._opened: Stores | None = None
        self._opening = asyncio.Lock()
        self._handles: weakref.WeakSet[Writer | Reader] = weakref.WeakSet()
        self._pid = os.getpid()
        self._closed = False
        self._ending: asyncio.Task[DlogError | None] | None = None

    def open_writer(
        self, name: str, *, create: bool | LogOptions = True, **options: Any
    ) -> Opening[Writer]:
        """Become the one writer of a log; an older one is fenced (see `takeover`). A log that is
        not there is made, with `create` as its options, unless that is False."""
        check_log_name(name)
        checked = options_from(WriterOptions, options)
        log_options = LogOptions() if create is True else (create or None)
        if log_options is not None and not isinstance(log_options, LogOptions):
            raise ConfigError(f"create is True, False or LogOptions, not {create!r}")
        return Opening(self._open_writer(name, checked, log_options))

    async def _open_writer(
        self,
        name: str,
        options: WriterOptions,
        create: LogOptions | None,
    ) -> Writer:
        stores = await self._stores(create is not None)
        owner = options.owner or default_owner()
        mark = WriterMark(stores.chance.token(), owner, stores.clock.wall_us())
        engine = Engine(stores, name, options, mark)
        await engine.open(create)
        writer = Writer(engine)
        self._handles.add(writer)
        return writer

    def open_reader(
        self, name: str, *, start: Start = "earliest", end: Start | None = None, **options: Any
    ) -> Opening[Reader]:
        """Read a log from `start`: "earliest", "latest", a MessageId, a Position, a seq or an aware
        datetime; to `end` (exclusive), by default to the tail seen now, or on and on with
        `follow`."""
        check_log_name(name)
        check_start(start)
        if end is not None:
            check_start(end, "end")
        checked = options_from(ReaderOptions, options)
        return Opening(self._open_reader(name, start, end, checked))

    async def _open_reader(
        self,
        name: str,
        start: Start,
        end: Start | None,
        options: ReaderOptions,
    ) -> Reader:
        stores = await self._stores(False)
        reader = Reader(stores, name, options)
        self._handles.add(reader)
        try:
            await reader.seek(start, end=end)
        except BaseException:
            await reader.close()
            raise
        return reader

    # --- stores

    async def _stores(self, create: bool) -> Stores:
        """The backend, opened at the first need: a reader makes no directory, a writer may."""
        if os.getpid() != self._pid:
            raise ForkedHandle("this client was made before a fork; connect in this process")
        async with self._opening:
            if self._closed:
                raise ConfigError("this client is closed")
            if self._opened is None:
                opened = _open_memory(self._url) if self._url.scheme == "memory" else None
                opened = opened or _open_file(self._url, create=create)
                try:
                    await _check_format(opened, self.url)
                except BaseException:
                    await _close_stores(opened)
                    raise
                self._opened = opened
                if isinstance(opened.ledgers, WarmsUp):  # only now: its format is one we know
                    opened.ledgers.warm_up()
        return self._opened

    def belong_to(self, handle: Writer | Reader) -> None:
        """That handle closes us, and not the other way round."""
        self._handles.discard(handle)
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
        try:
            for handle in list(self._handles):
                try:
                    await handle.close()
                except DlogError as error:
                    failure = failure or error
        finally:
            async with self._opening:  # what is being opened now is closed as well
                if self._opened is not None:
                    await _close_stores(self._opened)
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


def connect(url: str | None = None, **client_options: Any) -> Client:
    """A client for `url`, else for what DLOG_URL says, else for the user's own data directory."""
    return Client(uri.resolve(url, client_options))


@runtime_checkable
class WarmsUp(Protocol):
    def warm_up(self) -> None: ...


# --- backends, by scheme; each is imported when first used


def _open_memory(url: uri.Url) -> Stores:
    from dlog.ledger.memory import MemoryLedgers, MemoryLedgerStore
    from dlog.meta.memory import MemoryMetaStore, MemoryTree

    tree, ledgers = _memory_worlds.setdefault(url.place, (MemoryTree(), MemoryLedgers()))
    return Stores(
        MemoryMetaStore(tree), MemoryLedgerStore(ledgers), Layout(), SYSTEM_CLOCK, SYSTEM_CHANCE
    )


def _open_file(url: uri.Url, *, create: bool) -> Stores:
    from dlog.ledger.embedded import EmbeddedLedgerStore
    from dlog.meta.sqlite import DATABASE_NAME, SqliteMetaStore

    directory = Path(url.place)
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is no directory", path=str(directory))
    if not create and not (directory / DATABASE_NAME).exists():
        raise NotFound(f"no logs are kept at {url}", path=str(directory))
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        raise AuthError(f"no permission to make {directory}", path=str(directory)) from error
    except NotADirectoryError as error:
        raise ConfigError(f"{directory} is below a file", path=str(directory)) from error
    except OSError as error:
        raise Unavailable(f"cannot make {directory}: {error}", path=str(directory)) from error
    meta = SqliteMetaStore(directory, timeout_ms=url.options.meta_timeout_ms)
    return Stores(meta, EmbeddedLedgerStore(directory, meta), Layout(), SYSTEM_CLOCK, SYSTEM_CHANCE)


async def _check_format(stores: Stores, url: str) -> None:
    """The format node guards everything below the root: what a newer version wrote is refused."""
    path = stores.layout.format
    try:
        found = (await stores.meta.get(path)).value
    except NotFound:
        try:
            await stores.meta.create(path, str(FORMAT_VERSION).encode())
            return
        except AlreadyExists:
            found = (await stores.meta.get(path)).value
    if found != str(FORMAT_VERSION).encode():
        raise FormatError(
            f"the logs at {url} are kept in format {found[:20]!r}; this version knows "
            f"{FORMAT_VERSION}",
            path=path,
        )


async def _close_stores(stores: Stores) -> None:
    await stores.ledgers.close()
    await stores.meta.close()
