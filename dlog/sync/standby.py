"""The sync standby. What the loop thread has read ahead is handed out here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any

from dlog.errors import ConfigError, ReaderClosed
from dlog.ids import Position
from dlog.options import Takeover
from dlog.reader.message import Message
from dlog.reason import Reason
from dlog.standby import standby as aio
from dlog.sync.portal import Answer, Portal
from dlog.sync.reader import Reader
from dlog.sync.writer import Closeable, Writer


class Standby:
    """Ready to become the one writer of a log. One thread reads from it at a time; another may wait
    or take over meanwhile."""

    def __init__(self, inner: aio.Standby, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal
        self._owned: Closeable | None = None
        self._closed = False
        self.reader = Reader(inner.reader, portal)

    def own(self, client: Closeable) -> None:
        """Close this client with us."""
        self._owned = client

    # --- what it is

    @property
    def log(self) -> str:
        return self._inner.log

    @property
    def ready(self) -> bool:
        """A ledger stands by that the log, as it was last seen, may list. Without one a takeover
        works as well, and takes the time to make one."""
        return self._inner.ready

    @property
    def holder(self) -> str | None:
        """The owner of the writer that holds the log, as last seen; None when it was left."""
        return self._inner.holder

    @property
    def position(self) -> Position:
        """After the last message handed out."""
        return self._inner.position

    @property
    def closed(self) -> bool:
        return self._closed or self._inner.closed

    def lag(self) -> int:
        """How many messages anybody could read now that were not handed out here yet."""
        return self._run(self._inner.lag)

    def why(self) -> Reason | None:
        """Why a takeover under way takes its time, why no ledger is ready, or for whose end it
        waits. None when it is ready and nothing is asked of it, and once it took over."""
        return self._portal.ask(self._inner.why)

    # --- messages of whoever writes

    def messages(self) -> Iterator[Message]:
        """What others write, as it comes. Ends when nobody is there who writes and all that can be
        read was handed out: time to take over. Called again after that, it gives the rest, up to
        where our own writer begins."""
        while self._run(self._inner.fill):
            yield from self._inner.reader._shelf.messages()

    # --- taking over

    def wait(self, timeout: float | None = None) -> bool:
        """Until nobody else is there who writes; False when the time is over before (0: looks
        once). A process that died counts as gone once its session ended. Advice only: it may be
        back, or another one."""
        return self._run(self._inner.wait, timeout)

    def take_over(self, takeover: Takeover | None = None) -> Writer:
        """Become the writer. `takeover` says what to do about a present one, as of `open_writer`;
        "wait" waits for as long as it takes, also for stores that are away. When it fails it goes
        on standing by, as after `Fenced`, when another process was faster, and may be asked again.
        Of the reader, the end is now where the writer begins."""
        return Writer(self._run(self._inner.take_over, takeover), self._portal)

    def _run(
        self, verb: Callable[..., Coroutine[Any, Any, Answer]], *args: Any, **kw: Any
    ) -> Answer:
        if self.closed:
            raise ReaderClosed(f"this standby of log {self.log!r} is closed", log=self.log)
        return self._portal.run(verb(*args, **kw))

    # --- life

    def close(self) -> None:
        """Delete the ledger that was kept ready. A writer that took over stays open, unless the
        client is ours alone. Idempotent."""
        if self._closed:
            return
        self._closed = self.reader._closed = True
        if not self._portal.usable:
            return
        try:
            self._portal.run(self._inner.close())
        finally:
            owned, self._owned = self._owned, None
            if owned is not None:
                owned.close()

    def __enter__(self) -> Standby:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or not self._portal.usable:
            return
        self._closed = self.reader._closed = self._inner._closed = True
        self._portal.loop.call_soon_threadsafe(self._inner.abandon)
        if self._owned is not None:
            self._owned.abandon()
        warnings.warn(
            f"a standby of log {self.log!r} was dropped without close()",
            ResourceWarning,
            stacklevel=2,
        )

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> str:
        raise ConfigError("a standby cannot be pickled: open one where it is needed")
