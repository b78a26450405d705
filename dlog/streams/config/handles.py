"""The handles of one client, as parts of the document that it follows: what its writers and readers
go by, what their logs are to keep, and how much the library logs.

Safe at any moment: an option that is taken here counts from the next entry, the next read or the
next look on, and nothing that was promised rests on its old value.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dlog import limits
from dlog.chance import backoff_s
from dlog.errors import DlogError, NotFound, Retry
from dlog.options import LogOptions, ReaderOptions, WriterOptions
from dlog.reader.reader import Reader
from dlog.streams.config.following import Part, Prepared, Ready
from dlog.streams.config.sections import (
    ClientSection,
    Sections,
    check_codecs,
    client_section,
    log_sections,
    reader_sections,
    writer_sections,
)
from dlog.streams.config.stream_logs import tell_stream
from dlog.streams.driver import StreamDriver
from dlog.writer.engine import Engine
from dlog.writer.writer import Writer

if TYPE_CHECKING:
    from dlog.streams.following import Lane
    from dlog.streams.reader import StreamReader
    from dlog.streams.writer import StreamWriter

_log = logging.getLogger("dlog.config")

TELL_TRIES, TELL_PAUSE_S_MAX = 10, 5.0

_Options = TypeVar("_Options", WriterOptions, ReaderOptions)


class Handles:
    """Which are open, and what each was opened with."""

    def __init__(self) -> None:
        self.writer = Sections()
        self.reader = Sections()
        self.log = Sections()
        self._writers: weakref.WeakKeyDictionary[Writer, tuple[WriterOptions, frozenset[str]]]
        self._writers = weakref.WeakKeyDictionary()
        self._readers: weakref.WeakKeyDictionary[Reader, tuple[ReaderOptions, frozenset[str]]]
        self._readers = weakref.WeakKeyDictionary()
        self._stream_writers: weakref.WeakKeyDictionary[StreamWriter, _StreamFollower]
        self._stream_writers = weakref.WeakKeyDictionary()
        self._stream_readers: weakref.WeakKeyDictionary[
            StreamReader, tuple[ReaderOptions, frozenset[str]]
        ]
        self._stream_readers = weakref.WeakKeyDictionary()
        self.tasks: set[asyncio.Task[None]] = set()
        self._levels: dict[str, int] = {}  # of loggers that we changed, as they were

    def parts(self) -> tuple[Part, ...]:
        return (
            _HandlePart("writer", self._prepare_writers),
            _HandlePart("reader", self._prepare_readers),
            _HandlePart("log", self._prepare_logs),
            _HandlePart("client", self._prepare_client),
        )

    # --- handles

    def writer_options(
        self, log: str, options: WriterOptions, given: Iterable[str]
    ) -> WriterOptions:
        return self.writer.applied(options, log, frozenset(given))

    def reader_options(
        self, log: str, options: ReaderOptions, given: Iterable[str]
    ) -> ReaderOptions:
        return self.reader.applied(options, log, frozenset(given))

    def add_writer(self, writer: Writer, options: WriterOptions, given: Iterable[str]) -> None:
        """Opened by a program with `options`, of which it gave those in `given` itself."""
        self._writers[writer] = options, frozenset(given)
        self._set_writer(writer, *self._writers[writer])

    def add_reader(self, reader: Reader, options: ReaderOptions, given: Iterable[str]) -> None:
        self._readers[reader] = options, frozenset(given)
        self._set_reader(reader, *self._readers[reader])

    # --- handles of streams

    def add_stream_writer(
        self, writer: StreamWriter, options: WriterOptions, given: Iterable[str]
    ) -> None:
        """Before it opens its lanes."""
        follower = _StreamFollower(self, writer, options, frozenset(given))
        self._stream_writers[writer] = follower
        follower.tell_logs()

    def add_stream_reader(
        self, reader: StreamReader, options: ReaderOptions, given: Iterable[str]
    ) -> None:
        """Before it opens its shards."""
        self._stream_readers[reader] = options, frozenset(given)
        self._set_stream_reader(reader, *self._stream_readers[reader])

    def _set_stream_reader(
        self, reader: StreamReader, options: ReaderOptions, given: frozenset[str]
    ) -> None:
        wanted = self.reader.applied(options, reader.stream, given)
        if wanted == reader._options:
            return
        reader._options = wanted  # for the shards to come
        for source in reader._sources.values():
            source._reading = source._reading._replace(options=wanted)
            if source.reader is not None:
                source.reader.reconfigure(wanted)

    # --- put in force

    def _set_writer(self, writer: Writer, options: WriterOptions, given: frozenset[str]) -> None:
        log = writer.log
        _reconfigure(
            writer._engine,
            self.writer.applied(options, log, given),
            self.log.applied(writer.log_options, log, frozenset()),
        )

    def _set_reader(self, reader: Reader, options: ReaderOptions, given: frozenset[str]) -> None:
        wanted = self.reader.applied(options, reader.log, given)
        if wanted != reader.options:
            reader.reconfigure(wanted)

    def _set_writers(self) -> None:
        for writer, (options, given) in list(self._writers.items()):
            self._set_writer(writer, options, given)
        for follower in list(self._stream_writers.values()):
            follower.set_lanes()

    # --- parts

    def _prepare_writers(self, content: Mapping[str, Any] | None) -> Prepared:
        sections = writer_sections(content)
        check_codecs(sections)

        def put() -> None:
            self.writer = sections
            self._set_writers()

        return Ready(sections, put)

    def _prepare_logs(self, content: Mapping[str, Any] | None) -> Prepared:
        sections = log_sections(content)

        def put() -> None:
            self.log = sections
            self._set_writers()
            for follower in list(self._stream_writers.values()):
                follower.tell_logs()

        return Ready(sections, put)

    def _prepare_readers(self, content: Mapping[str, Any] | None) -> Prepared:
        sections = reader_sections(content)

        def put() -> None:
            self.reader = sections
            for reader, (options, given) in list(self._readers.items()):
                self._set_reader(reader, options, given)
            for stream_reader, (options, given) in list(self._stream_readers.items()):
                self._set_stream_reader(stream_reader, options, given)

        return Ready(sections, put)

    def _prepare_client(self, content: Mapping[str, Any] | None) -> Prepared:
        section = client_section(content)
        return Ready(section, lambda: self._set_levels(section))

    def _set_levels(self, section: ClientSection) -> None:
        for name in self._levels.keys() - section.log_levels.keys():
            logging.getLogger(name).setLevel(self._levels.pop(name))
        for name, level in section.log_levels.items():
            logger = logging.getLogger(name)
            self._levels.setdefault(name, logger.level)
            logger.setLevel(level)

    def let_go(self) -> None:
        """Nothing is followed any more: what the process goes by is as it was."""
        self._set_levels(ClientSection({}))

    def stop(self) -> None:
        """The stores are about to be closed."""
        for task in list(self.tasks):
            task.cancel()


class _StreamFollower:
    """Of one writer of a stream: its lanes, those to come, and what no lane writes any more. Holds
    the lanes, and not their handle, which may be dropped."""

    def __init__(
        self, handles: Handles, writer: StreamWriter, options: WriterOptions, given: frozenset[str]
    ) -> None:
        self._handles = handles
        self._options, self._given = options, given
        self._following, self._stores, self._site = writer._following, writer._stores, writer._site
        self._telling: asyncio.Task[None] | None = None
        self._is_news = False
        self._changed: set[int] = set()  # shards whose lanes go by the document, or did
        self._following.lane_options = self._lane_options
        self._following.on_lane = self._set_lane

    def _lane_options(self, log: str, given: WriterOptions) -> WriterOptions:
        """Of a lane that is about to be opened with those that are `given`."""
        return self._shared(log) if self._handles.writer.sections else given

    def _shared(self, log: str) -> WriterOptions:
        """The window is shared by the lanes, by as many as there are when it is said."""
        wanted = self._handles.writer.applied(self._options, log, self._given, self._site.name)
        core = self._following.core
        count = max(1, len(core.opened) + (0 if core.meta is None else len(core.to_open())))
        share = max(wanted.window_bytes // count, limits.STREAM_WINDOW_BYTES_MIN)
        return dataclasses.replace(wanted, window_bytes=min(wanted.window_bytes, share))

    def _set_lane(self, lane: Lane) -> None:
        writer, log, number = lane.writer, lane.shard.log, lane.shard.number
        options = writer.options
        if self._handles.writer.sections or number in self._changed:
            self._changed.add(number)
            options = self._shared(log)
        stored = self._handles.log.applied(writer.log_options, log, frozenset(), self._site.name)
        _reconfigure(writer._engine, options, stored)

    def set_lanes(self) -> None:
        for lane in list(self._following.lanes.values()):
            self._set_lane(lane)

    def tell_logs(self) -> None:
        """Beside the lanes, which tell their own logs: nobody waits for it."""
        self._is_news = True
        is_idle = self._telling is None and not self._following._closed
        if is_idle and self._handles.log.sections:
            self._telling = asyncio.get_running_loop().create_task(self._tell())
            self._handles.tasks.add(self._telling)
            self._telling.add_done_callback(self._told)

    def _told(self, task: asyncio.Task[None]) -> None:
        self._telling = None
        self._handles.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("stream %s: %r", self._site.name, task.exception())
        elif self._is_news and not task.cancelled():
            self.tell_logs()

    async def _tell(self) -> None:
        attempt = 0
        while True:
            self._is_news = False
            try:
                work = tell_stream(self._site, self._stores.layout, lambda: self._handles.log)
                await StreamDriver(self._stores).run(work)
                return
            except NotFound:
                return  # it was removed
            except DlogError as error:
                attempt += 1
                if error.retry is Retry.NEVER or attempt == TELL_TRIES:
                    _log.warning(
                        "stream %s: what the document says of its logs is not stored with the "
                        "stream and with shards that ended: %s",
                        self._site.name,
                        error,
                    )
                    return
            await asyncio.sleep(backoff_s(attempt, self._stores.chance, limit_s=TELL_PAUSE_S_MAX))


def _reconfigure(engine: Engine, options: WriterOptions, log_options: LogOptions) -> None:
    if (options, log_options) != (engine.options, engine.core.log_options):
        engine.reconfigure(options, log_options)


class _HandlePart:
    def __init__(self, name: str, prepare: Callable[[Mapping[str, Any] | None], Prepared]) -> None:
        self.name = name
        self.prepare = prepare
