"""The batches of one range, as an iterator that survives an error: a generator would be at its end
behind one, and what is left of the range would look like nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dlog.errors import DlogError, Handle, Retry
from dlog.reader.message import MessageBatch
from dlog.reader.ranges import LedgerRange, RangeCount
from dlog.reader.reader import Reader


class RangeSteps:
    """How far a range was read, and how that ended. An error that says that the handle is usable is
    raised once, and the next step goes on; any other is raised by each step from then on."""

    def __init__(self, wanted: LedgerRange) -> None:
        self._wanted = wanted
        self._count: RangeCount | None = None
        self._error: DlogError | None = None
        self.is_over = False

    def begin(self) -> bool:
        """False at the end."""
        if self._error is not None:
            raise self._error.again()
        return not self.is_over

    def take(self, reader: Reader, *, is_there: bool) -> MessageBatch | None:
        """The next batch, if one is there; else the end, which has to be the planned one."""
        if self._count is None:
            self._count = RangeCount(self._wanted, reader.on_truncated)
        if not is_there:
            self._count.end()
            return None
        batch = reader._shelf.batch()
        self._count.take(batch)
        return batch

    def ends(self, error: DlogError) -> bool:
        """Whether no step goes on behind it."""
        if error.handle is Handle.USABLE and error.retry is Retry.NOW:
            return False
        self._error = error
        return True


class RangeBatches:
    def __init__(self, wanted: LedgerRange, open_reader: Callable[[], Awaitable[Reader]]) -> None:
        self._steps = RangeSteps(wanted)
        self._open_reader = open_reader
        self._reader: Reader | None = None

    def __aiter__(self) -> RangeBatches:
        return self

    async def __anext__(self) -> MessageBatch:
        steps = self._steps
        if not steps.begin():
            raise StopAsyncIteration
        try:
            reader = self._reader = self._reader or await self._open_reader()
            batch = steps.take(reader, is_there=await reader._fill())
        except DlogError as error:
            if steps.ends(error):
                await self.aclose()
            raise
        if batch is None:
            await self.aclose()
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        """Idempotent."""
        self._steps.is_over = True
        if self._reader is not None:
            await self._reader.close()

    def __del__(self) -> None:
        reader = getattr(self, "_reader", None)
        if reader is not None:
            reader.let_go()
