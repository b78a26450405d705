"""The writer of a copy: takes entries of another log, which keep their seqs, their times and their
bytes. Window, acknowledgements, rotation and fencing are those of every writer."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from dlog.wire.batch import Entry
from dlog.writer.batch import CopiedBatch
from dlog.writer.writer import Writer


class CopyWriter:
    """`on_copied` hears of each entry that was acknowledged, in order: the seq behind it, and its
    bytes."""

    def __init__(self, writer: Writer, on_copied: Callable[[int, int], None]) -> None:
        self._engine = writer._engine
        self._writer = writer
        self._on_copied = on_copied

    @property
    def next_seq(self) -> int:
        """Of the next message that is sent; right after opening, the end of the copy so far."""
        return self._engine.core.current.next_seq

    async def put(self, entry: Entry, start: int, end: int, seq: int) -> None:
        """Messages `start` … `end`-1 of an entry, the first of which has this seq. Waits while the
        window is full."""
        batch = CopiedBatch(entry, start, end, seq)

        def resolved() -> None:
            if batch.error is None:
                self._on_copied(seq + end - start, batch.bytes)

        batch.waiters.append(resolved)
        if batch.producer is not None and not self._engine.core.seen.meta.producers:
            await self._engine.allow_numbers()
        while not self._engine.batcher.offer_whole(batch):
            await self._writer._room(None)

    async def flush(self) -> None:
        """Everything put by now is acknowledged once this returns."""
        await self._writer.flush()

    async def close(self, *, timeout: float | None = None) -> None:
        """Flush, close, seal."""
        await self._writer.close(timeout=timeout)

    async def __aenter__(self) -> CopyWriter:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._writer.__aexit__(kind, error, trace)
