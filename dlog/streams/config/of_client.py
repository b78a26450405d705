"""The documents of one client: those it gives out to be read and changed, those that are followed
through it, and the one that its own handles go by."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dlog.errors import ConfigError
from dlog.ids import check_log_name
from dlog.limits import CONFIG_POLL_MS_DEFAULT
from dlog.options import ReaderOptions, WriterOptions
from dlog.reader.reader import Reader
from dlog.streams.config.config import Config, GetStores
from dlog.streams.config.handles import Handles
from dlog.streams.config.hot import HotConfig
from dlog.writer.writer import Writer

if TYPE_CHECKING:
    from dlog.streams.reader import StreamReader
    from dlog.streams.writer import StreamWriter


class Configs:
    def __init__(self, get_stores: GetStores, followed: str | None) -> None:
        self._get_stores = get_stores
        self._name = None if followed is None else check_log_name(followed)
        self._poll_ms = CONFIG_POLL_MS_DEFAULT
        self._handles = Handles()
        self._own: HotConfig | None = None
        self._others: weakref.WeakSet[HotConfig] = weakref.WeakSet()

    def config(self, name: str) -> Config:
        return Config(name, self._get_stores, self._others.add)

    # --- the one that the client's handles go by

    @property
    def followed(self) -> HotConfig | None:
        return self._own

    async def follow(self, name: str, poll_ms: int) -> HotConfig:
        """Handles that are open already go by it, too."""
        if self._name is not None and self._name != check_log_name(name):
            raise ConfigError(f"this client follows {self._name!r} already")
        if self._own is None:
            self._poll_ms = poll_ms
        before, self._name = self._name, name
        try:
            hot = await self._ready()
        except BaseException:
            self._name = before
            raise
        assert hot is not None
        return hot

    async def _ready(self) -> HotConfig | None:
        if self._name is None:
            return None
        if self._own is None:
            stores = await self._get_stores(False)
            if self._own is None:  # nobody else began it meanwhile
                parts = self._handles.parts()
                self._own = HotConfig(stores, self._name, parts, poll_ms=self._poll_ms)
        await self._own.ready()
        return self._own

    async def writer_options(
        self, log: str, options: WriterOptions, given: Iterable[str]
    ) -> WriterOptions:
        """For a writer that a program opens with `options`, of which it gave those in `given`
        itself."""
        await self._ready()
        return self._handles.writer_options(log, options, given)

    async def reader_options(
        self, log: str, options: ReaderOptions, given: Iterable[str]
    ) -> ReaderOptions:
        await self._ready()
        return self._handles.reader_options(log, options, given)

    def add_writer(self, writer: Writer, options: WriterOptions, given: Iterable[str]) -> None:
        self._handles.add_writer(writer, options, given)

    def add_reader(self, reader: Reader, options: ReaderOptions, given: Iterable[str]) -> None:
        self._handles.add_reader(reader, options, given)

    async def add_stream_writer(
        self, writer: StreamWriter, options: WriterOptions, given: Iterable[str]
    ) -> None:
        """Before it opens its shards."""
        await self._ready()
        self._handles.add_stream_writer(writer, options, given)

    async def add_stream_reader(
        self, reader: StreamReader, options: ReaderOptions, given: Iterable[str]
    ) -> None:
        """Before it opens its shards."""
        await self._ready()
        self._handles.add_stream_reader(reader, options, given)

    async def worker_readers(self, given: Iterable[str]) -> Callable[[Reader, ReaderOptions], None]:
        """What a worker that a program opened with the options in `given` calls for each of its
        readers. It looks by itself for what stalls."""
        await self._ready()
        explicit = frozenset(given) | {"stall_after_ms"}
        return lambda reader, options: self.add_reader(reader, options, explicit)

    async def close(self) -> None:
        """Idempotent."""
        for each in list(self._others):
            await each.close()
        self._handles.stop()
        if self._own is not None:
            await self._own.close()
            self._handles.let_go()
