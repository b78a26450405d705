"""The handles of one client, as parts of the document that it follows: what its writers and readers
go by, what their logs are to keep, and how much the library logs.

Safe at any moment: an option that is taken here counts from the next entry, the next read or the
next look on, and nothing that was promised rests on its old value.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

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
from dlog.writer.engine import Engine
from dlog.writer.writer import Writer

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

        return Ready(sections, put)

    def _prepare_readers(self, content: Mapping[str, Any] | None) -> Prepared:
        sections = reader_sections(content)

        def put() -> None:
            self.reader = sections
            for reader, (options, given) in list(self._readers.items()):
                self._set_reader(reader, options, given)

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


def _reconfigure(engine: Engine, options: WriterOptions, log_options: LogOptions) -> None:
    if (options, log_options) != (engine.options, engine.core.log_options):
        engine.reconfigure(options, log_options)


class _HandlePart:
    def __init__(self, name: str, prepare: Callable[[Mapping[str, Any] | None], Prepared]) -> None:
        self.name = name
        self.prepare = prepare
