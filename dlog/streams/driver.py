"""Performs what changing a stream asks of single logs: to make, to end, to remove and to look for
one, to count the numbers of producers in one that has ended. It decides nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from dlog.admin.remove import remove
from dlog.admin.terminate import terminate
from dlog.chance import backoff_s
from dlog.drive import Driver, Stores
from dlog.effects import Effect, Procedure
from dlog.errors import DlogError, NotFound, Retry, Unsupported
from dlog.meta.cas import read_log
from dlog.meta.listed import WriterMark
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.shards import ENDS, ShardLog
from dlog.meta.sweep import Site as LogSite
from dlog.options import LogOptions, WriterOptions
from dlog.reader.feed import look
from dlog.reader.places import Tail, find_tail
from dlog.reader.segments import SegmentView, by_the_newest_list
from dlog.streams.document import StreamMeta, of_one_log
from dlog.streams.lanes import CountNumbers, LastWriter
from dlog.streams.making import make_log
from dlog.streams.numbers import Numbers
from dlog.streams.removal import RemoveLog
from dlog.streams.reshard import EndLog, LookForLog, MarkLog, mark_as_shard
from dlog.streams.reshard import Site as StreamSite
from dlog.streams.tails import first_seq_of
from dlog.streams.trimmed import LookAtEnd, TrimmedShard, read_trimmed
from dlog.writer.engine import Engine
from dlog.writer.owner import default_owner, new_mark
from dlog.writer.producers import count_producers
from dlog.writer.rotation import Ending

ENDING_TRIES = 50  # while others open the log, or end it, at the same time
PATIENT_TRIES = 10  # so often somebody else who ends it is waited for: some two seconds


class StreamDriver(Driver):
    def __init__(self, stores: Stores) -> None:
        super().__init__(stores.meta, stores.ledgers, clock=stores.clock, metrics=stores.metrics)
        self.stores = stores

    async def perform(self, effect: Effect) -> Any:
        match effect:
            case EndLog(shard=shard, options=options):
                return await self._end(shard, options)
            case LookForLog(log=log):
                return await self._look_for(log)
            case MarkLog(shard=shard):
                path = self.stores.layout.log(shard.name)
                await self.run(mark_as_shard(path, shard, self.stores.chance))
            case RemoveLog(shard=shard):
                await self.remove(shard)
            case CountNumbers(shard=shard):
                return await self._count(shard)
            case LastWriter(shard=shard):
                last, born = await self.last_writer(shard)
                return _since_birth(last, born)
            case LookAtEnd(shard=shard):
                return await self._look_at_end(shard)
            case _:
                return await super().perform(effect)

    async def _look_for(self, log: str) -> StreamMeta:
        try:
            meta = await self._meta_of(log)
            is_log = not meta.is_removed
        except NotFound:
            is_log = False
        if not is_log:
            raise NotFound(f"there is no stream and no log {log!r}", log=log)
        is_over = meta.state is LogState.TERMINATED
        return of_one_log(log, meta.uid, meta.options, is_over=is_over)

    async def _meta_of(self, log: str) -> LogMeta:
        return (await self.run(read_log(self.stores.layout.log(log)))).meta.is_here(log)

    async def _of_shard(self, shard: ShardLog) -> LogMeta:
        """`NotFound` where its log is not made yet, or gone."""
        meta = await self._meta_of(shard.name)
        if meta.is_removed or not shard.is_log(meta):
            raise NotFound(f"the log {shard.name!r} is not made, or was removed", log=shard.name)
        return meta

    async def _end(self, shard: ShardLog, options: LogOptions) -> None:
        """Whoever else is at it: once this returns, the log takes no more messages."""
        for attempt in range(ENDING_TRIES):
            try:
                if await self._ended(shard, is_patient=attempt < PATIENT_TRIES):
                    return
            except NotFound:  # it is made, so that nobody can make it later, and write to it
                if not await self.make(shard, options):
                    return  # it was ended, and trimmed
            except DlogError as error:
                if error.retry is Retry.NEVER or attempt + 1 == ENDING_TRIES:
                    raise
            await asyncio.sleep(backoff_s(attempt, self.stores.chance, base_s=0.01))

    async def _ended(self, shard: ShardLog, *, is_patient: bool) -> bool:
        meta, log = await self._of_shard(shard), shard.name
        if meta.state is LogState.TERMINATED:
            return True
        if meta.stream is None:  # of an older version
            await self.run(mark_as_shard(self.stores.layout.log(log), shard, self.stores.chance))
        if is_patient and meta.writer is not None and meta.writer.name.startswith(ENDS):
            return False  # somebody else is at it
        site = LogSite(log, self.stores.layout, meta.uid, self.stores.chance)
        if await self.run(terminate(site, shard)):
            return True
        # Somebody writes it, or died writing it: a new writer decides its end.
        mark = new_mark(self.stores, ENDS)
        ending = _EndingMark(mark.token, mark.name, mark.since_us)
        engine = Engine(self.stores, log, WriterOptions(), ending)
        engine.shard = shard
        try:
            await engine.open(None)
        except Unsupported:
            return False  # terminated meanwhile
        failure = await engine.close(Ending.TERMINATE)
        if failure is not None:
            raise failure.again()
        return True

    async def last_writer(self, shard: ShardLog) -> tuple[int, int]:
        """The epoch of the log's last writer (see `LastWriter`), and that at which the log
        began."""
        try:
            meta = await self._of_shard(shard)
        except NotFound:
            return 0, 0
        return _last_writer(meta), meta.born_epoch

    async def _look_at_end(self, shard: ShardLog) -> tuple[int, int, int]:
        meta = await self._of_shard(shard)
        view = SegmentView(shard.name, self.stores.layout, meta.uid)
        tail = await look(self.stores, view, _tail(view))
        return first_seq_of(meta), tail.next_seq, _since_birth(_last_writer(meta), meta.born_epoch)

    async def trimmed(self, shard: ShardLog, number: int) -> TrimmedShard | None:
        """What is known of a shard whose log was removed."""
        stores = self.stores
        site = StreamSite.at(stores.layout, shard.stream, stores.chance, shard.stream_uid)
        kept: Mapping[int, TrimmedShard] = await self.run(read_trimmed(site, shard.stream_uid))
        return kept.get(number)

    async def make(self, shard: ShardLog, options: LogOptions) -> bool:
        """See `make_log`."""
        stores = self.stores
        site = StreamSite.at(stores.layout, shard.stream, stores.chance, shard.stream_uid)
        making = make_log(site, stores.layout.log(shard.name), shard, options)
        return await self.run(making)

    async def remove(self, shard: ShardLog) -> None:
        """The shard's log, unless it is gone."""
        stores = self.stores
        now_us = stores.clock.wall_us()
        remover = WriterMark(stores.chance.token(), default_owner(), now_us)
        with contextlib.suppress(NotFound):
            await self.run(remove(shard.name, stores.layout, remover, now_us, stores.chance, shard))

    async def _count(self, shard: ShardLog) -> Numbers:
        """`NotFound` when the log is gone, and its numbers with it."""
        log = shard.name
        seen = await self.run(read_log(self.stores.layout.log(log)))
        if seen.meta.is_here(log).is_removed or not shard.is_log(seen.meta):
            raise NotFound(f"the log {log!r} was removed", log=log)
        if not seen.meta.producers:
            return Numbers()
        counting = count_producers(log, self.stores.layout, seen, seen.meta.next_number)
        producers = await self.run(counting)
        numbers = {row.producer_id: row.number for row in producers.rows.values()}
        return Numbers(numbers, producers.forgotten)


class _EndingMark(WriterMark):
    """Who ends a log says so, with its epoch, and who wrote it last: by the list that it claims,
    since others may end the log at the same time."""

    __slots__ = ()

    def claiming(self, meta: LogMeta) -> WriterMark:
        name = f"{ENDS}{meta.epoch + 1} after {_last_writer(meta)}"
        return WriterMark(self.token, name, self.since_us)


def _since_birth(epoch: int, born: int) -> int:
    return epoch if epoch < 0 else max(0, epoch - born)


def _tail(view: SegmentView) -> Procedure[Tail]:
    yield from view.refresh()
    return (yield from by_the_newest_list(view, lambda: find_tail(view)))


def _last_writer(meta: LogMeta) -> int:
    mark = meta.writer or meta.left_by
    if mark is None or not mark.name.startswith(ENDS):
        return meta.epoch
    epoch, _, last = mark.name[len(ENDS) :].partition(" after ")
    if not epoch.isdecimal() or int(epoch) != meta.epoch or not last.isdecimal():
        return -1
    return int(last)
