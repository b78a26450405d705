"""Performs what changing a stream asks of single logs: to end one, to look for one, to count the
numbers of producers in one that has ended. It decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from dlog.admin.terminate import terminate
from dlog.chance import backoff_s
from dlog.drive import Driver, Stores
from dlog.effects import Effect
from dlog.errors import AlreadyExists, Conflict, DlogError, NotFound, Retry, Unsupported
from dlog.meta.cas import read_log
from dlog.meta.listed import WriterMark
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.sweep import Site as LogSite
from dlog.options import LogOptions, WriterOptions
from dlog.streams.document import of_one_log
from dlog.streams.lanes import CountNumbers, LastWriter
from dlog.streams.numbers import Numbers
from dlog.streams.reshard import EndLog, LookForLog
from dlog.writer.engine import Engine
from dlog.writer.owner import new_mark
from dlog.writer.producers import count_producers
from dlog.writer.rotation import Ending

ENDING_TRIES = 50  # while others open the log, or end it, at the same time
PATIENT_TRIES = 10  # so often somebody else who ends it is waited for: some two seconds
ENDS = "ends the shard, epoch "


class StreamDriver(Driver):
    def __init__(self, stores: Stores) -> None:
        super().__init__(stores.meta, stores.ledgers, clock=stores.clock, metrics=stores.metrics)
        self.stores = stores

    async def perform(self, effect: Effect) -> Any:
        match effect:
            case EndLog(log=log, options=options):
                return await self._end(log, options)
            case LookForLog(log=log):
                try:
                    meta = await self._meta_of(log)
                    there = not meta.is_removed
                except NotFound:
                    there = False
                if not there:
                    raise NotFound(f"there is no stream and no log {log!r}", log=log)
                return of_one_log(log, meta.uid, meta.options)
            case CountNumbers(log=log):
                return await self._count(log)
            case LastWriter(log=log):
                return await self.last_writer(log)
            case _:
                return await super().perform(effect)

    async def _meta_of(self, log: str) -> LogMeta:
        return (await self.run(read_log(self.stores.layout.log(log)))).meta.is_here(log)

    async def _end(self, log: str, options: LogOptions) -> None:
        """Whoever else is at it: once this returns, the log takes no more messages."""
        for attempt in range(ENDING_TRIES):
            try:
                if await self._ended(log, is_patient=attempt < PATIENT_TRIES):
                    return
            except NotFound:
                await self._make(log, options)
            except DlogError as error:
                if error.retry is Retry.NEVER or attempt + 1 == ENDING_TRIES:
                    raise
            await asyncio.sleep(backoff_s(attempt, self.stores.chance, base_s=0.01))

    async def _ended(self, log: str, *, is_patient: bool) -> bool:
        meta = await self._meta_of(log)
        if meta.is_removed:
            raise NotFound(f"the log {log!r} was removed", log=log)
        if meta.state is LogState.TERMINATED:
            return True
        if is_patient and meta.writer is not None and meta.writer.name.startswith(ENDS):
            return False  # somebody else is at it
        site = LogSite(log, self.stores.layout, meta.uid, self.stores.chance)
        if await self.run(terminate(site)):
            return True
        # Somebody writes it, or died writing it: a new writer decides its end.
        mark = new_mark(self.stores, ENDS)
        ending = _EndingMark(mark.token, mark.name, mark.since_us)
        engine = Engine(self.stores, log, WriterOptions(), ending)
        try:
            await engine.open(None)
        except Unsupported:
            return False  # terminated meanwhile
        failure = await engine.close(Ending.TERMINATE)
        if failure is not None:
            raise failure.again()
        return True

    async def last_writer(self, log: str) -> int:
        """See `LastWriter`."""
        try:
            return _last_writer(await self._meta_of(log))
        except NotFound:
            return 0

    async def _make(self, log: str, options: LogOptions) -> None:
        """So that nobody can make it, and write to it, later."""
        path = self.stores.layout.log(log)
        fresh = LogMeta(uid=self.stores.chance.token(), options=options)
        try:
            await self.stores.meta.create(path, fresh.to_bytes())
        except AlreadyExists:
            seen = await self.run(read_log(path))
            if seen.meta.state is LogState.DELETED:
                reborn = seen.meta.reborn(fresh.uid, options)
                with contextlib.suppress(Conflict):  # somebody else made it
                    await self.stores.meta.put(path, reborn.to_bytes(), seen.version)

    async def _count(self, log: str) -> Numbers:
        seen = await self.run(read_log(self.stores.layout.log(log)))
        if not seen.meta.producers or seen.meta.is_removed:
            return Numbers()
        counting = count_producers(log, self.stores.layout, seen, seen.meta.next_number)
        producers = await self.run(counting)
        numbers = {row.producer_id: row.number for row in producers.rows.values()}
        return Numbers(numbers, producers.forgot)


class _EndingMark(WriterMark):
    """Who ends a log says so, with its epoch, and who wrote it last: by the list that it claims,
    since others may end the log at the same time."""

    __slots__ = ()

    def claiming(self, meta: LogMeta) -> WriterMark:
        name = f"{ENDS}{meta.epoch + 1} after {_last_writer(meta)}"
        return WriterMark(self.token, name, self.since_us)


def _last_writer(meta: LogMeta) -> int:
    mark = meta.writer or meta.left_by
    if mark is None or not mark.name.startswith(ENDS):
        return meta.epoch
    epoch, _, last = mark.name[len(ENDS) :].partition(" after ")
    if not epoch.isdecimal() or int(epoch) != meta.epoch or not last.isdecimal():
        return -1
    return int(last)
