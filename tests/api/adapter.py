"""One way to speak to both APIs: tests are written once, as async functions against an `Api`.

`AioApi` is `dlog.aio` as it is. `SyncApi` wraps the sync objects: each method runs on a thread of
its own, so that a call that blocks blocks nobody else, and answers are wrapped again. Nothing else
differs, and nothing is retried or translated.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any

import dlog
from dlog.sync.client import Admin, Client

_WRAPPED = (
    *(dlog.Writer, dlog.Reader, dlog.Standby, dlog.JobSegment, Client, Admin),
    *(dlog.Stream, dlog.StreamWriter, dlog.StreamReader, dlog.Worker, dlog.Group),
)
_END = object()


async def on_thread(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A thread per call: a pool would let one blocked call hold up another."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if answer.cancelled():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def work() -> None:
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            loop.call_soon_threadsafe(settle, None, error)
        else:
            loop.call_soon_threadsafe(settle, result, None)

    threading.Thread(target=work, name="caller", daemon=True).start()
    return await answer


class TicketOnThread:
    """A ticket of the sync API: awaiting it is calling `result()` on a thread."""

    def __init__(self, ticket: dlog.Ticket) -> None:
        self.inner = ticket

    def __await__(self) -> Generator[Any, None, dlog.MessageId]:
        return on_thread(self.inner.result, 20).__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return repr(self.inner)


def _wrap(value: Any) -> Any:
    if isinstance(value, _WRAPPED):
        return OnThread(value)
    if isinstance(value, dlog.Ticket):
        return TicketOnThread(value)
    return value


class OnThread:
    """An object of the sync API with the async API's face."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not inspect.ismethod(found):
            return _wrap(found)

        def call(*args: Any, **kwargs: Any) -> Any:
            if name in ("batches", "read_range"):
                return _each(found(*args, **kwargs))
            if name in ("stream", "shard_of", "group"):  # they wait for nothing in either API
                return _wrap(found(*args, **kwargs))
            return _Call(on_thread(found, *args, **kwargs))

        return call

    def __aiter__(self) -> AsyncIterator[Any]:
        return _each(iter(self.inner))

    async def __aenter__(self) -> OnThread:
        await on_thread(self.inner.__enter__)
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await on_thread(self.inner.__exit__, *failure)

    def __repr__(self) -> str:
        return repr(self.inner)


async def _each(items: Iterator[Any]) -> AsyncIterator[Any]:
    while True:
        item = await on_thread(next, items, _END)
        if item is _END:
            return
        yield item


class _Call:
    """What a method of a sync object gives: awaitable, and `async with` like an opening."""

    def __init__(self, work: Awaitable[Any]) -> None:
        self._work = work
        self._handle: Any = None

    def __await__(self) -> Generator[Any, None, Any]:
        return self._answer().__await__()

    async def _answer(self) -> Any:
        return _wrap(await self._work)

    async def __aenter__(self) -> Any:
        self._handle = await self
        await self._handle.__aenter__()
        return self._handle

    async def __aexit__(self, *failure: Any) -> None:
        await self._handle.__aexit__(*failure)


async def rest_of(reader: Any) -> list[dlog.Message]:
    """All messages up to the end, read as a program of that API would."""
    if isinstance(reader, OnThread):
        return await on_thread(list, reader.inner)
    return [message async for message in reader]


class AioApi:
    name = "aio"

    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self, url: str | None = None, **options: Any) -> Any:
        return dlog.aio.connect(url or self.url, **options)

    def open_writer(self, log: str = "log", **options: Any) -> Any:
        return dlog.aio.open_writer(log, **{"url": self.url, **options})

    def open_reader(self, log: str = "log", **options: Any) -> Any:
        return dlog.aio.open_reader(log, **{"url": self.url, **options})

    def open_standby(self, log: str = "log", **options: Any) -> Any:
        return dlog.aio.open_standby(log, **{"url": self.url, **options})

    def copy_log(self, source: Any, log: str, target: Any, *name: str, **options: Any) -> Any:
        return dlog.aio.copy_log(source, log, target, *name, **options)

    async def read_all(self, log: str = "log", **options: Any) -> list[dlog.Message]:
        async with self.open_reader(log, **options) as reader:
            return await rest_of(reader)

    async def values(self, log: str = "log", **options: Any) -> list[bytes | None]:
        return [message.value for message in await self.read_all(log, **options)]


class SyncApi(AioApi):
    name = "sync"

    def connect(self, url: str | None = None, **options: Any) -> Any:
        return OnThread(dlog.connect(url or self.url, **options))

    def open_writer(self, log: str = "log", **options: Any) -> Any:
        return _Call(on_thread(dlog.open_writer, log, **{"url": self.url, **options}))

    def open_reader(self, log: str = "log", **options: Any) -> Any:
        return _Call(on_thread(dlog.open_reader, log, **{"url": self.url, **options}))

    def open_standby(self, log: str = "log", **options: Any) -> Any:
        return _Call(on_thread(dlog.open_standby, log, **{"url": self.url, **options}))

    def copy_log(self, source: Any, log: str, target: Any, *name: str, **options: Any) -> Any:
        places = (each.inner if isinstance(each, OnThread) else each for each in (source, target))
        there, here = places
        return on_thread(dlog.copy_log, there, log, here, *name, **options)


Api = AioApi
