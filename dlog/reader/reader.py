"""The async reader: what `await client.open_reader(...)` gives. A thin face of the feed and the
shelf."""

from __future__ import annotations

import asyncio
import os
import warnings
import weakref
from collections.abc import AsyncIterator
from types import TracebackType

from dlog.drive import Closeable, Stores
from dlog.errors import ConfigError, ForkedHandle, ReaderClosed, Timeout
from dlog.ids import MessageId, Position
from dlog.options import ReaderOptions
from dlog.reader.core import Bounds, ReaderCore
from dlog.reader.feed import Feed, ReaderDriver
from dlog.reader.message import Message, MessageBatch
from dlog.reader.places import Place, Start, check_start, find_last_id
from dlog.reader.segments import SegmentView
from dlog.reader.shelf import Shelf


class Reader:
    """Messages of one log, in order, from a place on. One task reads it at a time."""

    def __init__(
        self,
        stores: Stores,
        name: str,
        options: ReaderOptions,
    ) -> None:
        self._stores = stores
        self._name = name
        self._options = options
        self._client: Closeable | None = None  # when it is ours alone
        view = SegmentView(name, stores.layout)
        self._feed = Feed(
            stores, ReaderCore(view, options), options
        )  # `seek` begins the first walk
        self._shelf = Shelf(Position("", 0, None))
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        _readers.add(self)

    @property
    def log(self) -> str:
        return self._name

    def own(self, client: Closeable) -> None:
        """Close this client with us."""
        self._client = client

    # --- places

    async def seek(self, start: Start, *, end: Start | None = None) -> None:
        """Go on at another place; what was read ahead is forgotten. Without `end` and `follow`, the
        end is the tail seen now. A wrong place is refused here, and the reader stays where it
        was."""
        self._check()
        await self._walk(
            Bounds(check_start(start), None if end is None else check_start(end, "end"))
        )

    async def _walk(self, bounds: Bounds) -> None:
        """Everything changes in one turn, once the place is found; until then nothing does."""
        feed = self._new_feed()
        core = feed.core
        try:
            await feed.driver.run(core.find(bounds))
            self._check()
        except BaseException:
            await feed.close()
            raise
        seq = core.place.seq
        here = self.position if seq is None else Position(core.view.meta.uid, seq, None)
        self._shelf.clear()
        self._shelf = Shelf(here)
        old, self._feed = self._feed, feed
        feed.start()
        await old.close()

    def _new_feed(self) -> Feed:
        view = self._feed.core.view.again()
        return Feed(self._stores, ReaderCore(view, self._options), self._options)

    async def skip(self) -> None:
        """Go on behind the entry that just raised because it could not be decoded. The only way
        past it: nothing is ever skipped by itself."""
        self._check()
        if not self._feed.failed or not self._shelf.is_empty:
            raise ConfigError("skip() goes past an entry that just raised; none did")
        place = self._feed.core.place
        behind = Place(place.number, place.entry_id + 1, 0, None)
        await self._walk(Bounds(behind, self._feed.core.end_seq))

    @property
    def position(self) -> Position:
        """After the last message handed out: `start=reader.position` resumes behind it."""
        return self._shelf.position

    @property
    def at_tail(self) -> bool:
        """All that could be read has been handed out."""
        return self._shelf.is_empty and self._feed.at_tail

    async def tail(self) -> MessageId | None:
        """The last message acknowledged by anyone before this call; None in an empty log.
        Linearizable."""
        self._check()
        return await find_tail_id(self._stores, self._name)

    # --- messages

    async def __aiter__(self) -> AsyncIterator[Message]:
        while await self._fill():
            for message in self._shelf.messages():
                yield message

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Messages as they lie in entries, fast. A batch counts as handed out when it is
        yielded."""
        while await self._fill():
            yield self._shelf.batch()

    async def read(self, max_messages: int = 1000, timeout: float | None = None) -> list[Message]:
        """At least one message and up to `max_messages`, as soon as there are any. [] when none
        came within `timeout` seconds (None: waits), or at the end: see `at_tail`."""
        if type(max_messages) is not int or max_messages < 1:
            raise ConfigError(f"max_messages is a number from 1, not {max_messages!r}")
        try:
            async with asyncio.timeout(timeout):
                await self._fill()
        except TimeoutError as error:
            if isinstance(error, Timeout):
                raise  # not ours: a store gave no answer
            return []
        return self._shelf.take(max_messages)

    async def _fill(self) -> bool:
        """Something is on the shelf; False at the end."""
        self._check()
        if self._shelf.is_empty:
            self._shelf.put(await self._feed.take())
        return not self._shelf.is_empty

    # --- life

    async def close(self) -> None:
        """Idempotent. Cancelling abandons the wait only."""
        self._closed = True
        if os.getpid() != self._pid or (self._ending is not None and self._ending.done()):
            return
        if self._ending is None:
            self._ending = self._loop.create_task(self._shut_down())
        await asyncio.shield(self._ending)

    async def _shut_down(self) -> None:
        try:
            await self._feed.close()
        finally:
            if self._client is not None:
                await self._client.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle(
                f"this reader of log {self._name!r} was made before a fork; open one here",
                log=self._name,
            )
        if self._closed:
            raise ReaderClosed(f"this reader of log {self._name!r} is closed", log=self._name)

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or os.getpid() != self._pid or self._loop.is_closed():
            return
        self._feed.abandon()
        warnings.warn(
            f"a reader of log {self._name!r} was dropped without close()",
            ResourceWarning,
            stacklevel=2,
        )

    def __repr__(self) -> str:
        return f"<Reader of {self._name!r} {'closed' if self._closed else self.position}>"

    def __reduce__(self) -> str:
        raise ConfigError("a reader cannot be pickled: pass its position and open one there")

    def on_fork(self) -> None:
        """In the child: what was read ahead is the parent's to hand out."""
        self._shelf.clear()


_readers: weakref.WeakSet[Reader] = weakref.WeakSet()


def _on_fork() -> None:
    for reader in list(_readers):
        reader.on_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_on_fork)


async def find_tail_id(stores: Stores, name: str) -> MessageId | None:
    view = SegmentView(name, stores.layout)
    driver = ReaderDriver(stores)
    try:
        await driver.run(view.refresh())
        return await driver.run(find_last_id(view))
    finally:
        await driver.close()
