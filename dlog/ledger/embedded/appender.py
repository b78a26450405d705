"""The handle that adds to one ledger: numbers entries on the loop, hands them to the committer.

Everything here runs on the event loop; the committer's facts come over by `call_soon_threadsafe`,
one per run of entries. Publishing is a store into the words, which costs nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence

from dlog.errors import (
    ConfigError,
    DlogError,
    Fenced,
    ForkedHandle,
    NotFound,
    TooLarge,
    WriterClosed,
    as_broken,
    check,
)
from dlog.ledger.embedded.committer import Committer, Confirmed, Waiting
from dlog.ledger.embedded.file import FrameWriter
from dlog.ledger.embedded.nodes import EMPTY, End, LedgerNodes
from dlog.ledger.embedded.words import Words
from dlog.ledger.store import AppenderListener, Buffer, ClosedLedger
from dlog.limits import LEDGER_ENTRY_BYTES_MAX


class EmbeddedAppender:
    publish_is_free = True

    def __init__(
        self,
        *,
        ledger_id: int,
        uid: bytes,
        path: str,
        fd: int,
        words: Words,
        nodes: LedgerNodes,
        on_let_go: Callable[[EmbeddedAppender], None],
    ) -> None:
        self.ledger_id = ledger_id
        self.ended = asyncio.Event()  # the thread, if there was one, is gone and the file closed
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._words = words
        self._nodes = nodes
        self._on_let_go = on_let_go
        self._listener: AppenderListener | None = None
        self._birth: asyncio.Future[None] | None = None
        self._next_entry = 0
        self._confirmed = EMPTY
        self._published_entry = -1
        self._unpublished: deque[tuple[int, int]] = deque()  # last entry of a run, its offset
        self._failure: DlogError | None = None
        self._closing = False
        self._abandoned = False
        self._closed: ClosedLedger | None = None
        self._committer = Committer(
            ledger_id=ledger_id,
            path=path,
            fd=fd,
            words=words,
            frames=FrameWriter(ledger_id, uid),
            on_confirmed=lambda fact: self._hand_over(self._confirm, fact),
            on_failed=lambda error: self._hand_over(self._fail, error),
            on_ended=lambda: self._hand_over(self._end),
        )

    def listen(self, listener: AppenderListener) -> None:
        if self._listener is not None or self._next_entry > 1:
            raise ConfigError("an appender has one listener, and it listens before the first entry")
        self._listener = listener

    async def birth(self, buffers: Sequence[Buffer]) -> None:
        self._check_usable()
        if self._next_entry > 0:
            raise ConfigError("the birth is entry 0: nothing is submitted before it")
        self._birth = self._loop.create_future()
        # Fetched here, so that a birth nobody waits for any more is no warning at exit.
        self._birth.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._put(buffers)
        await asyncio.shield(self._birth)

    def submit(self, buffers: Sequence[Buffer]) -> int:
        if self._listener is None:
            raise ConfigError("an appender has a listener before anything is submitted")
        self._check_usable()
        return self._put(buffers)

    def _check_usable(self) -> None:
        self._check_process()
        if self._closing or self._abandoned:
            raise WriterClosed(f"ledger {self.ledger_id} was closed", ledger_id=self.ledger_id)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle(
                f"ledger {self.ledger_id} was opened by process {self._pid}, before a fork",
                ledger_id=self.ledger_id,
                pid=self._pid,
            )

    def _put(self, buffers: Sequence[Buffer]) -> int:
        size = 0
        for buffer in buffers:
            size += len(buffer) if isinstance(buffer, bytes) else memoryview(buffer).nbytes
        if size > LEDGER_ENTRY_BYTES_MAX:
            raise TooLarge(
                f"an entry has at most {LEDGER_ENTRY_BYTES_MAX} bytes, not {size}",
                ledger_id=self.ledger_id,
            )
        entry_id = self._next_entry
        self._next_entry = entry_id + 1
        if self._failure is None:
            self._committer.put(Waiting(entry_id, self._confirmed.last_entry, size, buffers))
        elif self._birth is not None and not self._birth.done():
            self._birth.set_exception(self._failure.again())
        return entry_id

    def publish(self) -> None:
        if not self._abandoned and self._failure is None:
            self._check_process()
            self._publish_through(self._confirmed.last_entry)

    def _publish_through(self, last_entry: int) -> None:
        """Confirmed entries up to the end of the newest run at or below `last_entry`."""
        offset, runs = 0, self._unpublished
        while runs and runs[0][0] <= last_entry:
            self._published_entry, offset = runs.popleft()
        if offset > 0 and not self._words.closed:
            self._words.publish(offset)
            if self._listener is not None:
                self._listener.on_published(self.ledger_id, self._published_entry)

    async def close(self) -> ClosedLedger:
        self._check_process()
        if self._closed is not None:
            return self._closed
        if self._abandoned:
            raise WriterClosed(f"ledger {self.ledger_id} was abandoned", ledger_id=self.ledger_id)
        self._closing = True
        self._committer.stop()
        await self.ended.wait()
        ours = self._confirmed
        try:
            end = await self._decide(ours)
        except NotFound as error:
            raise self._fenced("was deleted") from error
        if end is None:
            raise self._fenced("is being recovered by somebody else")
        if end.last_entry != ours.last_entry:
            raise self._fenced(f"was closed at entry {end.last_entry} by somebody else")
        check(end.bytes == ours.bytes, "one end has one size", end, ours)
        self._closed = end.closed
        self._let_go()
        return self._closed

    async def _decide(self, ours: End) -> End | None:
        """Where the ledger ends now; None while somebody else is about to decide it."""
        words = self._words
        if not words.closed and not words.fenced:
            # Before metadata changes: while no word is set, readers take the ledger for open.
            words.mark_closing()
            end = await self._nodes.decide_end(self.ledger_id, ours)
            if not words.closed:
                words.ring()
            return end
        return (await self._nodes.read(self.ledger_id)).end

    def _fenced(self, what: str) -> Fenced:
        self._let_go()
        return Fenced(f"ledger {self.ledger_id} {what}", ledger_id=self.ledger_id)

    def abandon(self) -> None:
        if os.getpid() != self._pid or self._abandoned:
            return
        self._abandoned = True
        self._committer.stop()
        if self._birth is not None and not self._birth.done():
            self._birth.set_exception(
                WriterClosed(f"ledger {self.ledger_id} was abandoned", ledger_id=self.ledger_id)
            )
        self._let_go()

    def _let_go(self) -> None:
        if self.ended.is_set():
            self._words.close()
            self._on_let_go(self)

    # Facts of the committer.

    def _hand_over(self, call: Callable[..., None], *facts: object) -> None:
        """From the committer's thread, or from the loop when there was no thread."""
        try:
            self._loop.call_soon_threadsafe(self._tell, call, *facts)
        except RuntimeError:  # the loop is closed: nobody is left to be told
            self._abandoned = True
            self._committer.stop()
            if call == self._end:
                self._words.close()

    def _tell(self, call: Callable[..., None], *facts: object) -> None:
        try:
            call(*facts)
        except Exception as error:  # noqa: BLE001 - a defect must end the appender, not hang it
            self._fail(as_broken(error, f"ledger {self.ledger_id}", ledger_id=self.ledger_id))

    def _confirm(self, fact: Confirmed) -> None:
        if self._abandoned or self._failure is not None:
            return
        check(
            self._confirmed.last_entry < fact.last_entry < self._next_entry,
            "confirmations rise, and only what was submitted is confirmed",
            fact,
        )
        self._confirmed = End(fact.last_entry, fact.bytes_total, fact.offset)
        self._unpublished.append((fact.last_entry, fact.offset))
        if self._birth is not None and not self._birth.done():
            self._birth.set_result(None)
        if self._listener is not None:
            self._listener.on_confirmed(self.ledger_id, fact.last_entry)
        self._publish_through(fact.last_confirmed)

    def _fail(self, error: DlogError) -> None:
        if self._abandoned or self._failure is not None:
            return
        self._failure = error
        if self._birth is not None and not self._birth.done():
            self._birth.set_exception(error.again())
        if self._listener is not None:
            self._listener.on_failed(self.ledger_id, error)

    def _end(self) -> None:
        self.ended.set()
        if self._abandoned:
            self._let_go()
