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
from dlog.effects import Procedure
from dlog.errors import ConfigError, ForkedHandle, ReaderClosed, Timeout
from dlog.ids import MessageId, Position
from dlog.options import OnTruncated, ReaderOptions, TailMode
from dlog.reader.core import Bounds, ReaderCore
from dlog.reader.feed import Feed, look
from dlog.reader.lag import Lag, lag_of
from dlog.reader.message import Message, MessageBatch
from dlog.reader.places import Place, Start, check_start, find_last_id
from dlog.reader.ranges import LedgerRange
from dlog.reader.segments import SegmentView, by_the_newest_list
from dlog.reader.shelf import Shelf
from dlog.reader.watch import ReaderWatch
from dlog.reason import Reason


class Reader:
    """Messages of one log, in order, from a place on. One task reads it at a time."""

    def __init__(
        self,
        stores: Stores,
        name: str,
        options: ReaderOptions,
        log_uid: str | None = None,
    ) -> None:
        self._stores = stores
        self._name = name
        self._options = options
        self._client: Closeable | None = None  # when it is ours alone
        view = SegmentView(name, stores.layout, log_uid, tail=options.tail)
        self._watch = ReaderWatch(name, stores, options)
        self._feed = Feed(
            stores, ReaderCore(view, options), options
        )  # `seek` begins the first walk
        self._shelf = Shelf(Position("", 0, None))
        self._stop_seq: int | None = None
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._closed = False
        self._ending: asyncio.Task[None] | None = None
        _readers.add(self)

    @property
    def log(self) -> str:
        return self._name

    @property
    def options(self) -> ReaderOptions:
        """Those in force: as it was opened with, and as a document that its client follows says."""
        return self._options

    def reconfigure(self, options: ReaderOptions) -> None:
        """From the next read on: how much is asked for and read ahead, and when a wait is told
        of."""
        self._options = options
        self._feed.reconfigure(options)
        self._watch.reconfigure(options)

    @property
    def tail_mode(self) -> TailMode:
        """How the tail of an open ledger is believed."""
        return self._options.tail

    @property
    def on_truncated(self) -> OnTruncated:
        """What it does where the wanted place was truncated."""
        return self._options.on_truncated

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

    async def seek_range(self, wanted: LedgerRange) -> None:
        """Go on with a range that was planned, up to its end, for a reader that was made to
        follow: what was planned can be read, or will be in a moment."""
        self._check()
        await self._walk(
            Bounds(
                wanted.place,
                wanted.next_seq,
                wanted.first_seq,
                last_entry=wanted.last_entry,
                copy=wanted.copy,
            )
        )

    async def _walk(self, bounds: Bounds) -> None:
        """Everything changes in one turn, once the place is found; until then nothing does."""
        feed = self._new_feed()
        core = feed.core
        self._watch.begin(feed)
        try:
            await feed.driver.run(core.find(bounds))
            self._check()
        except BaseException:
            self._watch.begin(self._feed)
            await feed.close()
            raise
        seq = core.place.seq
        if seq is None:
            here = self.position
        else:
            here = Position(core.view.meta.uid, max(seq, core.first_seq), None)
        self._shelf.clear()
        self._shelf = Shelf(here)
        feed.reconfigure(self._options)  # they may have changed since it was made
        old, self._feed = self._feed, feed
        self._watch.begin(feed)
        feed.start()
        self._watch.measure_lag(weakref.WeakMethod(self.lag))
        if self._stop_seq is not None:
            feed.stop_at(self._stop_seq)
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
        core = self._feed.core
        await self._walk(Bounds(behind, core.end_seq, core.first_seq))

    def stop_at(self, seq: int) -> None:
        """Hand out nothing from `seq` on, also when following: there the end is now."""
        self._stop_seq = seq
        self._feed.stop_at(seq)

    @property
    def position(self) -> Position:
        """After the last message handed out: `start=reader.position` resumes behind it."""
        return self._shelf.position

    @property
    def at_tail(self) -> bool:
        """All that could be read has been handed out."""
        return self._shelf.is_empty and self._feed.at_tail

    async def lag(self) -> Lag:
        """How far behind the tail this reader is: what can be read by now and was not handed out.
        Asks the stores."""
        return await self.lag_behind(self.position.next_seq)

    async def lag_behind(self, next_seq: int) -> Lag:
        """The same, for who has not handed on all that this reader handed out."""
        self._check()
        view = SegmentView(self._name, self._stores.layout, tail=self._options.tail)
        now_us = self._stores.clock.wall_us()
        message_bytes = self._watch.message_bytes
        lag = lag_of(view, next_seq, now_us, message_bytes)
        return await look(self._stores, view, lag)

    def why(self) -> Reason | None:
        """What the reader waits for now, and since when; None when it has messages to hand out. At
        the tail there is nothing to wait for but messages, and the reason says that; whatever
        else lasts longer than `stall_after_ms` is logged as well."""
        return self._watch.why(has_messages=not self._shelf.is_empty, is_closed=self._closed)

    async def tail(self) -> MessageId | None:
        """The last message acknowledged by anyone before this call; None in an empty log.
        Linearizable."""
        self._check()
        return await find_tail_id(self._stores, self._name, tail=self._options.tail)

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
        """Something is on the shelf; False at the end, or when a reader without an end is closed
        by somebody else. With one, that would look like having come to it."""
        self._check()
        if self._shelf.is_empty:
            self._shelf.put(await self._feed.take())
            end_seq = self._feed.core.end_seq
            if self._shelf.is_empty and end_seq is not None and self.position.next_seq < end_seq:
                self._check()
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
            await self._watch.close()
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

    def let_go(self) -> None:
        """Stop without waiting: nobody holds it any more."""
        if not self._closed and os.getpid() == self._pid and not self._loop.is_closed():
            self._feed.abandon()
        self._closed = True

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or os.getpid() != self._pid or self._loop.is_closed():
            return
        self.let_go()
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


async def find_tail_id(stores: Stores, name: str, *, tail: TailMode = "normal") -> MessageId | None:
    view = SegmentView(name, stores.layout, tail=tail)
    return await look(stores, view, _last_id(view))


def _last_id(view: SegmentView) -> Procedure[MessageId | None]:
    yield from view.refresh()
    return (yield from by_the_newest_list(view, lambda: find_last_id(view)))
