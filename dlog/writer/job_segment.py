"""The async segment of a job: what `client.admin.open_segment(...)` gives. A thin face of the
filling."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from dlog.errors import ConfigError, DlogError, ForkedHandle, Handle
from dlog.reason import Reason
from dlog.writer.arguments import EventTime, HeadersArg
from dlog.writer.filled import FilledSegment
from dlog.writer.filling import Filling
from dlog.writer.run import Run

_MESSAGE_COLUMNS = ("value", "key", "headers", "event_time")
# What a reader's batches have beside these: the log gives messages their own.
_LOG_COLUMNS = ("seq", "timestamp", "ledger_id", "entry_id", "batch_idx", "epoch")


class JobSegment:
    """A ledger beside the log, filled by one job. Nobody reads it before it is published."""

    def __init__(self, filling: Filling) -> None:
        self._filling = filling
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._ending: asyncio.Task[Any] | None = None
        self._closed = False  # or given up

    # --- what it is

    @property
    def log(self) -> str:
        return self._filling.name

    @property
    def job(self) -> str:
        return self._filling.job

    @property
    def ledger_id(self) -> int:
        return self._filling.pipe.ledger_id

    @property
    def messages(self) -> int:
        """Taken so far. They are durable once `close` returned."""
        return self._filling.messages

    @property
    def bytes_taken(self) -> int:
        """Of what was taken so far, about."""
        return self._filling.bytes

    @property
    def is_full(self) -> bool:
        """As large as the segments of the log shall be: time to close it and open another one. At
        twice that it takes no more."""
        return self._filling.is_full

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def filled(self) -> FilledSegment | None:
        """What `close` answered."""
        return self._filling.filled

    # --- messages

    async def append_many(
        self,
        values: Iterable[bytes | None],
        *,
        keys: Iterable[bytes | None] | None = None,
        headers: Iterable[HeadersArg | None] | None = None,
        event_times: Iterable[EventTime | None] | None = None,
    ) -> None:
        """All of them, in order, each with its key, headers and event time. Waits while the window
        is full; durable once `close` returned."""
        self._check()
        batcher = self._filling.batcher
        run = Run(batcher, values, keys, headers, event_times=event_times, atomic=False)
        self._filling.check_room()
        while not run.step():
            run.forget()
            await self._room()
            batcher.passed_on()
            self._filling.check_room()

    async def append_batch(self, batch: Any) -> None:
        """A pyarrow RecordBatch or Table: the column `value` (binary), and `key` (binary),
        `headers` (lists of name and value) and `event_time` (a timestamp) if they are there. What a
        reader's batches have beside these is passed over, anything else refused."""
        self._check()
        names = list(batch.schema.names)
        strange = sorted(set(names) - {*_MESSAGE_COLUMNS, *_LOG_COLUMNS})
        if strange or "value" not in names:
            raise ConfigError(
                f"a batch has the columns {', '.join(_MESSAGE_COLUMNS)}, the first of which must "
                f"be there; not {', '.join(strange or names) or 'none'}"
            )
        lists = {
            name: _listed(name, batch.column(name)) for name in _MESSAGE_COLUMNS if name in names
        }
        await self.append_many(
            lists["value"],
            keys=lists.get("key"),
            headers=lists.get("headers"),
            event_times=lists.get("event_time"),
        )

    async def _room(self) -> None:
        arrived = self._loop.create_future()

        def room() -> None:
            if not arrived.done():
                arrived.set_result(None)

        batcher = self._filling.batcher
        batcher.call_when_room(room)
        try:
            await arrived
        except BaseException:
            batcher.forget_waiter(room)
            raise

    # --- the end

    async def close(self) -> FilledSegment:
        """All that was taken is durable, and the ledger closed, once this returns: what there is to
        publish. One without messages is deleted, and says so: 0 messages. Cancelling abandons the
        wait only; `close` again waits again. After an error that may pass, it tries again."""
        if not self._closed or _may_pass(self._ending):
            self._closed = True
            self._ending = self._loop.create_task(self._filling.close())
            self._ending.add_done_callback(_seen)
        if self._filling.filled is None:
            if self._ending is None:
                self._check()
            assert self._ending is not None
            await asyncio.shield(self._ending)
        assert self._filling.filled is not None
        return self._filling.filled

    def why(self) -> Reason | None:
        """What the segment waits for now, and since when; None when it waits for nothing."""
        return self._filling.why()

    async def abort(self) -> None:
        """Delete the ledger with all that was taken. Of a closed one: nothing happens; that is for
        `admin.discard_segments`. Idempotent."""
        self._closed = True
        if os.getpid() != self._pid or self._filling.filled is not None:
            return
        ending, self._ending = self._ending, None
        if ending is not None and not ending.done():
            ending.cancel()
            await asyncio.wait([ending])
        if not self._filling.is_over:
            await self._filling.abort()

    async def __aenter__(self) -> JobSegment:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            if self.filled is not None or self._filling.is_over:
                return
            try:
                await self.close()
            except DlogError:
                await self.abort()
                raise
            return
        try:
            await self.abort()
        except DlogError as second:
            error.add_note(f"giving up the segment failed, too: {second}")

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or os.getpid() != self._pid:
            return
        try:
            self._loop.call_soon_threadsafe(self._filling.let_go)
        except RuntimeError:
            pass  # the loop is gone; the ledger is nobody's
        warnings.warn(
            f"a segment of job {self.job!r} for log {self.log!r} was dropped without close()",
            ResourceWarning,
            stacklevel=2,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<JobSegment of {self.job!r} for {self.log!r}, {state}>"

    def __reduce__(self) -> str:
        raise ConfigError("a segment that is being filled cannot be pickled; close it first")

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle("this segment was opened before a fork; open one here", log=self.log)
        refusal = self._filling.batcher.refusal
        if refusal is not None:
            raise refusal.again()


def _may_pass(ending: asyncio.Task[Any] | None) -> bool:
    """Whether it failed, and another try may not."""
    if ending is None or not ending.done() or ending.cancelled():
        return False
    error = ending.exception()
    return isinstance(error, DlogError) and error.handle is Handle.USABLE


def _seen(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _listed(name: str, column: Any) -> Any:
    if name == "event_time":
        return column.cast("timestamp[us]").cast("int64").to_pylist()
    items = column.to_pylist()
    if name != "headers":
        return items
    return [
        None if pairs is None else tuple((each["name"], each["value"]) for each in pairs)
        for pairs in items
    ]
