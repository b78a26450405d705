"""The sync client and its admin: one loop thread, and the async client on it."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import TracebackType
from typing import Any

from dlog import client as aio
from dlog import uri
from dlog.admin.admin import Admin as AsyncAdmin
from dlog.admin.summary import LogDescription, LogSummary, SegmentSummary
from dlog.errors import ConfigError, DlogError
from dlog.ids import MessageId
from dlog.options import LogOptions
from dlog.reader.places import Start
from dlog.sync.portal import Portal
from dlog.sync.reader import Reader
from dlog.sync.writer import Writer


class Client:
    """One connection to where logs are kept, for programs without an event loop. Thread-safe."""

    def __init__(self, url: uri.Url) -> None:
        self._portal = Portal()
        self._inner = aio.Client(url)
        self.url = self._inner.url
        self.admin = Admin(self._inner.admin, self._portal)
        self._closed = False

    def open_writer(self, name: str, *, create: bool | LogOptions = True, **options: Any) -> Writer:
        """Become the one writer of a log; an older one is fenced (see `takeover`). A log that is
        not there is made, with `create` as its options, unless that is False."""
        opening = _opened(self._inner.open_writer, name, create=create, **options)
        return Writer(self._portal.run(opening), self._portal)

    def open_reader(
        self, name: str, *, start: Start = "earliest", end: Start | None = None, **options: Any
    ) -> Reader:
        """Read a log from `start`: "earliest", "latest", a MessageId, a Position, a seq or an aware
        datetime; to `end` (exclusive), by default to the tail seen now, or on and on with
        `follow`."""
        opening = _opened(self._inner.open_reader, name, start=start, end=end, **options)
        return Reader(self._portal.run(opening), self._portal)

    def close(self) -> None:
        """Closes what this client opened and is still open. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if not self._portal.usable:
            return
        patient = True
        try:
            self._portal.run(self._inner.close())
        except BaseException as error:
            patient = isinstance(error, DlogError)  # else Ctrl-C: it goes on without us
            raise
        finally:
            if patient:
                self._portal.stop()
            else:
                self._portal.abandon(self._inner.close())

    def abandon(self) -> None:
        """Let the loop thread end by itself, without waiting: for a client that nobody holds."""
        if not self._closed and self._portal.usable:
            self._closed = True
            self._portal.abandon(self._inner.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.abandon()

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> str:
        raise ConfigError("a client cannot be pickled: pass its url and connect there")


class Admin:
    """Looks at logs, makes and removes them."""

    def __init__(self, inner: AsyncAdmin, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal

    def create(self, name: str, **log_options: Any) -> LogDescription:
        """A new, empty log. `AlreadyExists` if there is one."""
        return self._portal.run(self._inner.create(name, **log_options))

    def list(self, prefix: str = "") -> builtins.list[LogSummary]:
        """The logs whose names begin with `prefix`, by name."""
        return self._portal.run(self._inner.list(prefix))

    def describe(self, name: str) -> LogDescription:
        return self._portal.run(self._inner.describe(name))

    def segments(self, name: str) -> tuple[SegmentSummary, ...]:
        return self._portal.run(self._inner.segments(name))

    def tail(self, name: str) -> MessageId | None:
        """The last message acknowledged by anyone before this call. Linearizable."""
        return self._portal.run(self._inner.tail(name))

    def remove(self, name: str) -> None:
        """Delete the log with everything in it, under its readers and its writer."""
        self._portal.run(self._inner.remove(name))


async def _opened(verb: Callable[..., Any], name: str, **options: Any) -> Any:
    return await verb(name, **options)


def connect(url: str | None = None, **client_options: Any) -> Client:
    """A client for `url`, else for what DLOG_URL says, else for the user's own data directory."""
    return Client(uri.resolve(url, client_options))


def open_writer(
    name: str, url: str | None = None, *, create: bool | LogOptions = True, **options: Any
) -> Writer:
    """One log's writer, with a client of its own. Options as of `Client.open_writer`."""
    client = connect(url)
    try:
        writer = client.open_writer(name, create=create, **options)
    except BaseException:
        client.close()
        raise
    writer.own(client)
    return writer


def open_reader(
    name: str,
    url: str | None = None,
    *,
    start: Start = "earliest",
    end: Start | None = None,
    **options: Any,
) -> Reader:
    """One log's reader, with a client of its own. Options as of `Client.open_reader`."""
    client = connect(url)
    try:
        reader = client.open_reader(name, start=start, end=end, **options)
    except BaseException:
        client.close()
        raise
    reader.own(client)
    return reader
