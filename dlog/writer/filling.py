"""The driver that fills one ledger for a job: batches, numbers and encodes messages as a writer
does, without holding the log. It fences nobody and lists nothing; whoever publishes the closed
ledger gives it its place.

The job stays present when its ledger is closed: until that was published or discarded, or until its
client closes. Before that nobody may take it for left behind.

Seqs count from 0, entries from 1, behind the birth. An appender that fails ends the segment: there
is nothing to take over, so the job fills another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial

from dlog import limits, trace
from dlog.awaited import longest
from dlog.chance import backoff_s
from dlog.drive import Driver, Stores
from dlog.effects import CloseLedger, DeleteLedger, LookAtLedger, Pause, Procedure
from dlog.errors import (
    DlogError,
    Fenced,
    NotFound,
    Retry,
    TooLarge,
    WriterClosed,
    check,
)
from dlog.ledger.store import ClosedLedger, Explains
from dlog.meta.cas import read_log
from dlog.meta.log_meta import LogMeta, LogState
from dlog.options import FillOptions
from dlog.progress import Progress
from dlog.reason import Reason, ReasonCode, Wait, told_of
from dlog.writer.batch import Batch, Origin
from dlog.writer.batcher import Batcher
from dlog.writer.defects import as_death, guarded
from dlog.writer.filled import FilledSegment
from dlog.writer.pipe import CODECS, Pipe, check_codec
from dlog.writer.presence import Presence
from dlog.writer.present import be_present
from dlog.writer.producers import Producers
from dlog.writer.segments import job_ledger
from dlog.writer.takeover import refuse_unless_open

_log = logging.getLogger("dlog.writer")

TURN_BYTES_MAX = 4 << 20  # encoded in one turn of the loop
FAREWELL_S = 1.0  # so long a name is waited for that is to be taken away
CLOSE_TRIES_MAX = 20


class Filling:
    """Implements `AppenderListener`."""

    def __init__(self, stores: Stores, name: str, job: str, options: FillOptions) -> None:
        check_codec(options.codec)
        self.name = name
        self.job = job
        self.is_over = False  # closed, or given up
        self.filled: FilledSegment | None = None
        self._stores = stores
        self._options = options
        self._token = stores.chance.token()
        self._loop = asyncio.get_running_loop()
        self._driver = Driver(
            stores.meta, stores.ledgers, self, clock=stores.clock, metrics=stores.metrics
        )
        self.batcher = Batcher(
            entry_bytes=options.entry_bytes,
            window_bytes=options.window_bytes,
            wake_loop=self._wake,
        )
        self.batcher.set_hungry(False)  # messages wait for company: nobody reads them yet
        self._presence = Presence(stores, stores.layout.job(name, self._token), job.encode())
        self._driver.announce = self._presence.make
        self._meta: LogMeta | None = None
        self._pipe: Pipe | None = None
        self._last_time_us = 0
        self._first_time_us = 0
        self._flushing = False
        self._failure: DlogError | None = None
        self._progress = Progress()
        self._giving_up: asyncio.Task[None] | None = None

    # --- what it is

    @property
    def pipe(self) -> Pipe:
        assert self._pipe is not None
        return self._pipe

    @property
    def meta(self) -> LogMeta:
        assert self._meta is not None
        return self._meta

    @property
    def presence(self) -> Presence:
        """Until the segment was published or discarded, or is given up."""
        return self._presence

    @property
    def bytes(self) -> int:
        """Taken, about."""
        return self.pipe.bytes + sum(batch.bytes for batch in self.batcher.pending)

    @property
    def messages(self) -> int:
        return self.pipe.next_seq + sum(len(batch.values) for batch in self.batcher.pending)

    def why(self) -> Reason | None:
        """Its end comes first, then what it waits for."""
        clock, pipe = self._stores.clock, self.pipe
        wait = longest(self._driver.awaited.values())
        if self.is_over:
            wait = Wait(ReasonCode.CLOSED, f"the segment of job {self.job!r} was closed")
        elif self._failure is not None:
            told = f"the segment of job {self.job!r} ended: {self._failure}"
            wait = Wait(ReasonCode.LOST, told, told_of(self._failure))
        elif not pipe.is_drained:
            appender = self._driver.appenders.get(pipe.ledger_id)
            told = f"entries of ledger {pipe.ledger_id} are not confirmed yet"
            wait = Wait(ReasonCode.UNCONFIRMED, told, {"ledger_id": pipe.ledger_id})
            wait = wait.because(appender.why() if isinstance(appender, Explains) else None)
        elif self._flushing:
            wait = Wait(ReasonCode.CLOSING, "the segment is being closed").because(wait)
        wait = wait or self._presence.wait()
        if wait is None:
            return None
        return wait.told(now_s=clock.monotonic_s(), now_us=clock.wall_us())

    # --- opening

    async def open(self) -> None:
        stores = self._stores
        try:
            seen = await self._driver.run(read_log(stores.layout.log(self.name)))
        except NotFound:
            raise NotFound(f"there is no log {self.name!r}", log=self.name) from None
        refuse_unless_open(seen.meta, self.name)
        self._meta = seen.meta
        self._last_time_us = seen.meta.end.last_time_us
        now_us = stores.clock.wall_us()
        try:
            path = stores.layout.job(self.name, self._token)
            # Before there is a ledger to be found.
            await self._driver.run(
                be_present(path, self.job, stores.chance, stores.clock.monotonic_s)
            )
            ledger_id = await self._driver.run(
                job_ledger(seen.meta, token=self._token, now_us=now_us, job=self.job)
            )
        except BaseException:
            await self._leave_made()
            raise
        self._pipe = Pipe(0, ledger_id, 0, (-1, -1), stores.clock.monotonic_s())
        self.batcher.begin(Origin(seen.meta.uid, 0), 0, Producers())

    async def _leave_made(self) -> None:
        """Of an opening that failed: ledgers that nobody knows of yet."""
        try:
            for ledger_id in list(self._driver.appenders):
                with contextlib.suppress(DlogError):
                    await self._driver.perform(DeleteLedger(ledger_id))
        finally:  # also when it is cancelled again
            await self._end()

    # --- messages

    def check_room(self) -> None:
        """`TooLarge` where a writer would wait for a rotation."""
        hard = self.meta.options.segment_bytes * limits.SEGMENT_HARD_FACTOR
        if self.pipe.bytes >= hard or self.pipe.last_pushed >= limits.SEGMENT_ENTRIES_MAX:
            raise TooLarge(
                f"the segment of job {self.job!r} has {self.pipe.bytes} bytes, and in this log "
                f"one has {self.meta.options.segment_bytes}: close it, and open another one",
                log=self.name,
            )

    @property
    def is_full(self) -> bool:
        """A writer would rotate."""
        is_long = self.pipe.last_pushed >= limits.SEGMENT_ENTRIES_MAX
        return self.bytes >= self.meta.options.segment_bytes or is_long

    def _wake(self) -> None:
        self._loop.call_soon(self._pump)

    @guarded
    def _pump(self) -> None:
        if self._pipe is not None and self._failure is None:
            self._push_all(self._pipe)

    def break_down(self, error: Exception) -> None:
        self.fail(as_death(error, f"the segment of job {self.job!r}", self.name))

    def _push_all(self, pipe: Pipe) -> None:
        turn_bytes = 0
        while pipe.in_flight_entries < self._options.window_entries:
            if turn_bytes >= TURN_BYTES_MAX:
                self._loop.call_soon(self._pump)
                break
            batch = self.batcher.take(partial=self._flushing)
            if batch is None:
                break
            turn_bytes += batch.bytes
            buffers = pipe.push(batch, self._stamp(), CODECS[self._options.codec])
            entry_id = self._driver.appenders[pipe.ledger_id].submit(buffers)
            check(entry_id == pipe.last_pushed, "the appender counts entries as we do", entry_id)

    def _stamp(self) -> int:
        """As a writer's: now, and never before what stood in the log when this was opened."""
        self._last_time_us = max(self._stores.clock.wall_us(), self._last_time_us)
        self._first_time_us = self._first_time_us or self._last_time_us
        return self._last_time_us

    @guarded
    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        pipe = self._pipe
        if pipe is None or ledger_id != pipe.ledger_id or self._failure is not None:
            return
        check(last_entry <= pipe.last_pushed, "only what was pushed is confirmed", last_entry)
        pipe.last_confirmed = last_entry
        released: list[Batch] = pipe.released(last_entry)
        self.batcher.release(sum(batch.bytes for batch in released))
        self._progress.tell()
        self._pump()

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        """Nobody reads it before it is closed."""

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        if self._pipe is None or ledger_id == self._pipe.ledger_id:
            self.fail(error)

    def fail(self, error: DlogError) -> None:
        if self._failure is None:
            self._failure = error
            self.batcher.refuse(error)
            self._progress.tell()

    def _is_drained(self) -> bool:
        return self.pipe.is_drained and not self.batcher.pending

    async def _drained(self) -> None:
        await self._progress.until(lambda: self._failure is not None or self._is_drained())
        if self._failure is not None:
            raise self._failure.again()

    # --- the end

    async def close(self) -> FilledSegment:
        told = f"the segment of job {self.job!r} is closed"
        self.batcher.close(WriterClosed(told, log=self.name))
        self._flushing = True
        self._pump()
        pipe = self.pipe
        path = self._stores.layout.log(self.name)
        self._presence.until(partial(is_settled, path, self.meta.uid, pipe.ledger_id))
        await self._drained()
        if not pipe.holds_messages:
            await self._delete()
            self.filled = self._told(ClosedLedger(pipe.last_pushed, 0))
            return self.filled
        closed = await self._driver.run(self._close_ledger(pipe))
        self.filled = self._told(closed)
        self.is_over = True
        self._driver.let_all_go()
        return self.filled

    def _told(self, closed: ClosedLedger) -> FilledSegment:
        pipe = self.pipe
        return FilledSegment(
            self.name,
            self.meta.uid,
            self.job,
            pipe.ledger_id,
            closed.last_entry,
            pipe.next_seq,
            closed.bytes,
            self._first_time_us,
            pipe.last_time_us,
        )

    def _close_ledger(self, pipe: Pipe) -> Procedure[ClosedLedger]:
        """An unknown reply is asked again."""
        for attempt in range(CLOSE_TRIES_MAX):
            try:
                closed: ClosedLedger = yield CloseLedger(pipe.ledger_id, point="job.closed")
            except DlogError as error:
                if error.retry is not Retry.NOW or attempt + 1 == CLOSE_TRIES_MAX:
                    raise
                wait = Wait(
                    ReasonCode.LEDGER_CLOSE,
                    f"ledger {pipe.ledger_id} could not be closed yet: {error}",
                    {"ledger_id": pipe.ledger_id, "tries": attempt + 1, "error": error.message},
                )
            else:
                if closed.last_entry == pipe.last_pushed:
                    return closed
                break
            pause_s = backoff_s(attempt, self._stores.chance, base_s=0.05, limit_s=1.5)
            yield Pause(pause_s, wait=wait)
        raise Fenced(
            f"ledger {pipe.ledger_id} was closed by somebody else",
            log=self.name,
            ledger_id=pipe.ledger_id,
        )

    async def abort(self) -> None:
        """Delete the ledger, which nobody was told of. After an error that may pass, it may be
        asked for again."""
        self.fail(WriterClosed(f"the segment of job {self.job!r} was given up", log=self.name))
        await self._delete()

    async def _delete(self) -> None:
        """Its name stays until that is done, or will never be."""
        try:
            trace.before("job.deleted")
            await self._driver.perform(DeleteLedger(self.pipe.ledger_id))
            trace.after("job.deleted")
        except DlogError as error:
            if error.retry is not Retry.NOW:
                await self._end()
            raise
        except BaseException:  # also cancelled: nobody asks for the deletion again
            await self._end()
            raise
        await self._end()

    async def _end(self) -> None:
        self.is_over = True
        self._driver.let_all_go()
        await self._presence.withdrawn(FAREWELL_S)

    def let_go(self) -> None:
        """Nobody holds the segment any more: give it up, in a task of its own."""
        self._giving_up = self._loop.create_task(self._give_up())

    async def _give_up(self) -> None:
        if not self.is_over:
            try:
                await self.abort()
            except DlogError as error:
                _log.info("log %s: a ledger of job %s is left over: %s", self.name, self.job, error)
                await self._end()


def is_settled(path: str, uid: str, ledger_id: int) -> Procedure[bool]:
    """Is a closed ledger of a job listed, gone, or unfit for ever to be published?"""
    try:
        meta = (yield from read_log(path)).meta
        if meta.uid != uid or meta.state is not LogState.OPEN or ledger_id <= meta.ledger_floor:
            return True
        yield LookAtLedger(ledger_id)
    except NotFound:
        return True
    return False
