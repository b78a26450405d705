"""Where the reader of a stream begins, and where one that does not follow ends. Asks the log of
each shard that is to be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Container
from datetime import datetime
from typing import NamedTuple

from dlog.clock import datetime_us, us_datetime
from dlog.drive import Stores
from dlog.errors import ConfigError, Truncated
from dlog.ids import Position
from dlog.options import ReaderOptions
from dlog.streams.document import Shard, ShardState, StreamMeta, log_uid
from dlog.streams.places import StreamPosition, ends_are_looked_for, trimmed_parents
from dlog.streams.tails import LogEnds, ends_of, remains_of_all, since_of

StreamStart = str | StreamPosition | datetime


class End(NamedTuple):
    """Where reading without `follow` ends in a shard, and whether more may come there later."""

    seq: int
    is_final: bool


def check_start(start: object) -> None:
    if isinstance(start, datetime) and start.tzinfo is None:
        raise ConfigError("start: a time knows its time zone (as datetime.now(UTC) does)")
    if isinstance(start, (StreamPosition, datetime)):
        return
    if not (isinstance(start, str) and start in ("earliest", "latest")):
        raise ConfigError(
            f"start is 'earliest', 'latest', a StreamPosition or an aware datetime, not {start!r}"
        )


class Starts:
    """One look at the logs of a stream, by one list of its shards. `NotFound` where the list says
    that there is a log, and there is none: the list is old, or the log was removed."""

    def __init__(
        self,
        stores: Stores,
        stream: str,
        meta: StreamMeta,
        options: ReaderOptions,
        only: Container[int] | None,
    ) -> None:
        self._stores = stores
        self._stream = stream
        self._meta = meta
        self._options = options
        self._only = only
        self._shards = [shard for shard in meta.shards if self._counts(shard.number)]

    def _counts(self, number: int) -> bool:
        return self._only is None or number in self._only

    async def place(self, start: StreamStart) -> StreamPosition:
        if isinstance(start, StreamPosition):
            if not start.is_blank:
                return start
            earliest = await self._earliest()
            return dataclasses.replace(earliest, stream_uid=start.stream_uid)
        if isinstance(start, datetime):
            return await self._since(datetime_us(start))
        return await (self._earliest() if start == "earliest" else self._latest())

    async def ends(self, done: Container[int]) -> dict[int, End]:
        """Of each shard that is not done, at whatever moment. One that may get more is not read to
        its end, so nothing of what follows it is read: a key has no gap."""
        wanted = [shard for shard in self._shards if shard.number not in done]
        ends: dict[int, End] = {}
        for number, log in (await self._ends_of(wanted, with_tails=True)).items():
            if log is None or log.next_seq is None:
                ends[number] = End(0, is_final=False)
            else:
                ends[number] = End(log.next_seq, log.is_terminated)
        return ends

    async def _earliest(self) -> StreamPosition:
        """What was truncated or trimmed by now is not wanted; all that goes later is missed."""
        heads = {
            number: Position(log.uid, log.head_seq, None)
            for number, log in (await self._ends_of(self._shards, with_tails=False)).items()
            if log is not None and log.head_seq > log.first_seq
        }
        at = StreamPosition(self._meta.uid, {}, trimmed_parents(self._meta), heads=heads)
        return self._known(at)

    async def _latest(self) -> StreamPosition:
        """At the tail of each shard whose log takes messages. A shard before which another one is
        not terminated has none yet, and is begun behind that. A log that was terminated since the
        list was read is read to its end, for the shards that follow it are not in this list."""
        logs: dict[int, LogEnds | None] = {}
        for group in ends_are_looked_for(self._meta):  # children before their parents
            wanted = [s for s in group if self._counts(s.number) and not _has_ended(s)]
            logs.update(await self._ends_of(wanted, with_tails=True))
        places: dict[int, Position] = {}
        done = set(trimmed_parents(self._meta))
        for shard in self._meta.shards:  # parents stand before their children
            log = logs.get(shard.number)
            if _has_ended(shard):
                done.add(shard.number)
            elif log is not None and self._are_done(shard, done):
                if log.is_terminated and not shard.is_open:
                    done.add(shard.number)
                else:
                    assert log.next_seq is not None
                    places[shard.number] = Position(log.uid, log.next_seq, None)
        return self._known(StreamPosition(self._meta.uid, places, frozenset(done), heads={}))

    async def _since(self, since_us: int) -> StreamPosition:
        """Shards that were terminated before that time are done; all others are read from it on."""
        lost = trimmed_parents(self._meta)
        wanted = [s for s in self._shards if not s.is_open or not lost.isdisjoint(s.parents)]
        found = await since_of(self._stores, wanted, since_us, tail=self._options.tail)
        done = set(lost)
        unknown: set[int] = set()
        for shard in wanted:  # parents stand before their children
            log = found[shard.number]
            if not log.is_whole:
                unknown.update(n for n in shard.parents if n in lost and self._counts(n))
            if log.is_over and not shard.is_open and self._are_done(shard, done):
                done.add(shard.number)
        if self._options.on_truncated != "jump":
            await self._refuse_unknown(unknown, since_us)
        return self._known(StreamPosition(self._meta.uid, {}, frozenset(done), since_us))

    def _known(self, at: StreamPosition) -> StreamPosition:
        """What this list had is known; what left it before is not missed."""
        listed = {shard.number for shard in self._meta.shards}
        to_come = frozenset(listed - at.shards.keys() - at.done)
        return dataclasses.replace(at, next_number=self._meta.next_number, to_come=to_come)

    async def _refuse_unknown(self, trimmed: set[int], since_us: int) -> None:
        """`Truncated` if these shards may have had messages from that time on. One that had none
        at all says nothing of those before it; which those are is not known any more, but that
        their numbers are lower."""
        found = await remains_of_all(self._stores, self._stream, sorted(trimmed))
        empty = [
            number
            for number, left in found.items()
            if left is not None and left.is_empty and left.uid != log_uid(self._meta.uid, number)
        ]  # without those that the stream was made with: nothing is before them
        lower = (n for n in range(max(empty, default=0)) if self._counts(n) and n not in found)
        gone = [number for number in lower if not self._meta.has(number)]
        found |= await remains_of_all(self._stores, self._stream, gone)
        unknown = [
            number
            for number, left in sorted(found.items())
            if left is None or not (left.is_empty or left.is_older(since_us))
        ]
        if unknown:
            raise Truncated(
                f"what was written from {us_datetime(since_us).isoformat()} on, or some of it, may "
                f"have been in shards {unknown} of the stream, which were trimmed"
            )

    def _are_done(self, shard: Shard, done: Container[int]) -> bool:
        return all(parent in done for parent in shard.parents if self._counts(parent))

    async def _ends_of(self, shards: list[Shard], *, with_tails: bool) -> dict[int, LogEnds | None]:
        tail = self._options.tail
        return await ends_of(self._stores, shards, tail=tail, with_tails=with_tails)


def _has_ended(shard: Shard) -> bool:
    return shard.state is ShardState.ENDED
