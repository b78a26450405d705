"""The sync reader: whatever the loop thread has read ahead comes over in one hop, and is handed out
here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any

from dlog.errors import ConfigError, DlogError, ReaderClosed
from dlog.ids import MessageId, Position
from dlog.options import ReaderOptions
from dlog.reader import reader as aio
from dlog.reader.lag import Lag
from dlog.reader.message import Message, MessageBatch
from dlog.reader.places import Start
from dlog.reader.range_batches import RangeSteps
from dlog.reader.ranges import LedgerRange
from dlog.reason import Reason
from dlog.sync.portal import Answer, Portal
from dlog.sync.writer import Closeable


class Reader:
    """Messages of one log, in order, from a place on. One thread reads it at a time."""

    def __init__(self, inner: aio.Reader, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal
        self._owned: Closeable | None = None
        self._closed = False

    def own(self, client: Closeable) -> None:
        """Close this client with us."""
        self._owned = client

    @property
    def log(self) -> str:
        return self._inner.log

    @property
    def options(self) -> ReaderOptions:
        """Those in force: as it was opened with, and as a document that its client follows says."""
        return self._inner.options

    @property
    def closed(self) -> bool:
        return self._closed or self._inner.closed

    # --- places

    def seek(self, start: Start, *, end: Start | None = None) -> None:
        """Go on at another place; what was read ahead is forgotten. Without `end` and `follow`, the
        end is the tail seen now. A wrong place is refused here."""
        self._run(self._inner.seek, start, end=end)

    def skip(self) -> None:
        """Go on behind the entry that just raised because it could not be decoded. The only way
        past it: nothing is ever skipped by itself."""
        self._run(self._inner.skip)

    @property
    def position(self) -> Position:
        """After the last message handed out: `start=reader.position` resumes behind it."""
        return self._inner.position

    @property
    def at_tail(self) -> bool:
        """All that could be read has been handed out."""
        return self._inner.at_tail

    def lag(self) -> Lag:
        """How far behind the tail this reader is: what can be read by now and was not handed out.
        Asks the stores."""
        return self._run(self._inner.lag)

    def why(self) -> Reason | None:
        """What the reader waits for now, and since when; None when it has messages to hand out. At
        the tail there is nothing to wait for but messages, and the reason says that; whatever
        else lasts longer than `stall_after_ms` is logged as well."""
        return self._portal.ask(self._inner.why)

    def tail(self) -> MessageId | None:
        """The last message acknowledged by anyone before this call; None in an empty log.
        Linearizable."""
        return self._run(self._inner.tail)

    # --- messages

    def __iter__(self) -> Iterator[Message]:
        while self._fill():
            yield from self._inner._shelf.messages()

    def batches(self) -> Iterator[MessageBatch]:
        """Messages as they lie in entries, fast. A batch counts as handed out when it is
        yielded."""
        while self._fill():
            yield self._inner._shelf.batch()

    def read(self, max_messages: int = 1000, timeout: float | None = None) -> list[Message]:
        """At least one message and up to `max_messages`, as soon as there are any. [] when none
        came within `timeout` seconds (None: waits), or at the end."""
        return self._run(self._inner.read, max_messages, timeout)

    def _fill(self) -> bool:
        """Something is on the shelf; False at the end. Hops only when there is nothing."""
        if not self._inner._shelf.is_empty and not self.closed and self._portal.usable:
            return True
        return self._run(self._inner._fill)

    def _run(
        self, verb: Callable[..., Coroutine[Any, Any, Answer]], *args: Any, **kw: Any
    ) -> Answer:
        if self.closed:
            raise ReaderClosed(f"this reader of log {self.log!r} is closed", log=self.log)
        return self._portal.run(verb(*args, **kw))

    # --- life

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._portal.usable:
            return
        try:
            self._portal.run(self._inner.close())
        finally:
            owned, self._owned = self._owned, None
            if owned is not None:
                owned.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def let_go(self) -> None:
        """Stop without waiting: nobody holds it any more."""
        if self.closed or not self._portal.usable:
            return
        self._closed = self._inner._closed = True
        self._portal.loop.call_soon_threadsafe(self._inner._feed.abandon)
        if self._owned is not None:
            self._owned.abandon()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or not self._portal.usable:
            return
        self.let_go()
        warnings.warn(
            f"a reader of log {self.log!r} was dropped without close()",
            ResourceWarning,
            stacklevel=2,
        )

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> str:
        raise ConfigError("a reader cannot be pickled: pass its position and open one there")


class RangeBatches:
    """Asks the loop only when nothing was read ahead."""

    def __init__(self, wanted: LedgerRange, open_reader: Callable[[], Reader]) -> None:
        self._steps = RangeSteps(wanted)
        self._open_reader = open_reader
        self._reader: Reader | None = None

    def __iter__(self) -> RangeBatches:
        return self

    def __next__(self) -> MessageBatch:
        steps = self._steps
        if not steps.begin():
            raise StopIteration
        try:
            reader = self._reader = self._reader or self._open_reader()
            batch = steps.take(reader._inner, is_there=reader._fill())
        except DlogError as error:
            if steps.ends(error):
                self.close()
            raise
        if batch is None:
            self.close()
            raise StopIteration
        return batch

    def close(self) -> None:
        """Idempotent."""
        self._steps.is_over = True
        if self._reader is not None:
            self._reader.close()

    def __del__(self) -> None:
        reader = getattr(self, "_reader", None)
        if reader is not None:
            reader.let_go()
