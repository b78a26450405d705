"""Where the shards of a stream begin and end at one moment: a cut that is right in every key.

Whether a shard takes more messages is asked of its log. The list of shards says what was decided,
and the log of a sealed shard is open until that was carried out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from dlog import limits
from dlog.admin.status import LogStatus, status_of
from dlog.clock import us_datetime
from dlog.drive import Driver, Stores
from dlog.effects import Procedure
from dlog.errors import Corrupt, NotFound, Truncated
from dlog.ids import Position
from dlog.meta.cas import read_log
from dlog.meta.listed import End
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.shards import ENDS
from dlog.options import TailMode
from dlog.reader.feed import look
from dlog.reader.places import find_head_seq, find_tail, locate
from dlog.reader.segments import SegmentView, by_the_newest_list
from dlog.streams.document import Shard, ShardState, StreamMeta, StreamState, shard_log, was_removed
from dlog.streams.places import ends_are_looked_for
from dlog.streams.reshard import SeenStream, Site, read_stream
from dlog.together import some_at_once

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShardTail:
    """Where a shard ended when it was looked at. What is seen of a shard has, in those before it,
    all that came before."""

    number: int
    log: str
    uid: str
    parents: tuple[str, ...]  # logs of the listed shards before it
    head_seq: int
    next_seq: int
    is_over: bool  # nothing more can come
    last_time_us: int | None


@dataclass(frozen=True, slots=True)
class LogEnds:
    """Where a log begins and ends. `next_seq` is None where it was not asked for."""

    uid: str
    first_seq: int  # that it ever had
    head_seq: int
    next_seq: int | None
    is_terminated: bool


async def by_newest_shards(
    driver: Driver, site: Site, ask: Callable[[StreamMeta], Awaitable[T]]
) -> tuple[SeenStream, T]:
    """The list of shards, and what is found by it; by the next list where one of its logs is gone
    meanwhile."""
    seen: SeenStream = await driver.run(read_stream(site))
    while True:
        try:
            return seen, await ask(seen.meta)
        except NotFound:
            before, seen = seen, await driver.run(read_stream(site.of(seen.meta)))
            if before.meta.shards == seen.meta.shards:
                raise


async def tails_of(stores: Stores, meta: StreamMeta) -> tuple[ShardTail, ...]:
    """Oldest first. Shards whose logs are not made yet are left out."""
    logs = {shard.number: shard.log for shard in meta.shards}
    found: dict[int, ShardTail] = {}
    for group in ends_are_looked_for(meta):
        for shard, status in zip(group, await statuses_of(stores, group), strict=True):
            if status is not None:
                found[shard.number] = ShardTail(
                    shard.number,
                    shard.log,
                    status.uid,
                    tuple(logs[n] for n in shard.parents if n in logs),
                    status.head_seq,
                    status.next_seq,
                    status.state == "terminated",
                    status.last_time_us,
                )
    return tuple(found[number] for number in sorted(found))


async def statuses_of(
    stores: Stores, shards: Iterable[Shard], *, tail: TailMode = "normal"
) -> list[LogStatus | None]:
    """In their order; None for a shard whose log is not made yet, or was trimmed. `NotFound` where
    an open one is gone: so is the list that named it, or the stream. `Corrupt` for one whose log
    was removed under its stream."""

    async def ask(shard: Shard) -> LogStatus | None:
        status = await log_status(stores, shard, tail=tail)
        if status is None and await log_is_gone(stores, shard) and shard.is_open:
            raise NotFound(f"the log {shard.log!r} was removed", log=shard.log)
        return status

    return await some_at_once(limits.STREAM_LOOKS_AT_ONCE, ask, shards)


async def log_status(
    stores: Stores, shard: Shard, *, tail: TailMode = "normal"
) -> LogStatus | None:
    """None for a shard whose log is not there."""
    view = SegmentView(shard.log, stores.layout, shard.log_uid or None, tail=tail)
    try:
        return await look(stores, view, status_of(view))
    except NotFound as error:
        if error.ledger_id is not None:  # the log is there, and something of it is lost
            raise
        return None


async def ends_of(
    stores: Stores, shards: Iterable[Shard], *, tail: TailMode, with_tails: bool
) -> dict[int, LogEnds | None]:
    """By number; None for a shard whose log is not made yet. Tails cost a look at the ledgers."""

    async def ask(shard: Shard) -> LogEnds | None:
        view = SegmentView(shard.log, stores.layout, shard.log_uid or None, tail=tail)
        try:
            return await look(stores, view, _ends(view, with_tails))
        except NotFound as error:
            await unmade(stores, shard, error)
            return None

    wanted = list(shards)
    found = await some_at_once(limits.STREAM_LOOKS_AT_ONCE, ask, wanted)
    return {shard.number: each for shard, each in zip(wanted, found, strict=True)}


async def unmade(stores: Stores, shard: Shard, error: NotFound) -> None:
    """The log of this shard is not there. Raises the error where that does not mean that nobody
    wrote to the shard yet, and `Corrupt` where the log was removed under its stream."""
    if error.ledger_id is not None:
        raise error
    if await log_is_gone(stores, shard) or shard.state is ShardState.ENDED:
        raise error


async def log_is_gone(stores: Stores, shard: Shard) -> bool:
    """Whether the log of this shard was made, and removed again. `Corrupt` if a stream lists the
    shard all the same: a stream removes no log of a shard that it lists."""
    if not shard.log_uid:  # of an older version: it may be the log of an earlier stream
        return False
    try:
        node = await stores.meta.get(stores.layout.log(shard.log))
    except NotFound:
        return False
    is_removed = was_removed(shard, node.value, shard.log)
    if not is_removed and LogMeta.from_bytes(node.value, where=shard.log).uid == shard.log_uid:
        return False
    # Else it is the log of another stream of this name: of one before ours, or of one behind it.
    # The list is read behind the log: one that was read before it may be older than a trim.
    await stores.meta.sync()
    for name in dict.fromkeys((shard.log.rpartition("/")[0], shard.log)):
        if name and await _lists(stores, name, shard):
            if not is_removed:
                return False
            raise Corrupt(
                f"stream {name!r} lists shard {shard.number}, and the log of it, {shard.log!r}, "
                "was removed: what was in it is lost",
                log=shard.log,
                stream=name,
            )
    return True


async def _lists(stores: Stores, name: str, shard: Shard) -> bool:
    path = stores.layout.stream(name)
    try:
        meta = StreamMeta.from_bytes((await stores.meta.get(path)).value, path)
    except NotFound:
        return False
    is_here = meta.state is not StreamState.DELETING
    return is_here and any(each.log_uid == shard.log_uid for each in meta.shards)


def _ends(view: SegmentView, with_tails: bool) -> Procedure[LogEnds]:
    yield from view.refresh()
    return (yield from by_the_newest_list(view, lambda: _find_ends(view, with_tails)))


def _find_ends(view: SegmentView, with_tails: bool) -> Procedure[LogEnds]:
    next_seq = (yield from find_tail(view)).next_seq if with_tails else None
    head_seq = yield from find_head_seq(view)
    is_terminated = view.meta.state is LogState.TERMINATED
    return LogEnds(view.meta.uid, first_seq_of(view.meta), head_seq, next_seq, is_terminated)


def first_seq_of(meta: LogMeta) -> int:
    """Of the first message that a log ever had, or will have."""
    return 0 if meta.copy_of is None else meta.copy_of.first_seq


async def find_log(stores: Stores, shards: Iterable[Shard], uid: str) -> str | None:
    """Which log of shards of an older version, whose list does not say so, has this uid."""
    wanted = [shard for shard in shards if not shard.log_uid]
    metas = await some_at_once(
        limits.STREAM_LOOKS_AT_ONCE, lambda shard: _meta_of(stores, shard.log), wanted
    )
    for shard, meta in zip(wanted, metas, strict=True):
        if meta is not None and meta.uid == uid:
            return shard.log
    return None


async def has_ended(stores: Stores, log: str) -> bool:
    """Whether this log of a shard takes no more messages."""
    meta = await _meta_of(stores, log)
    if meta is None or meta.is_removed or meta.state is LogState.TERMINATED:
        return True
    return meta.writer is not None and meta.writer.name.startswith(ENDS)


async def _meta_of(stores: Stores, log: str) -> LogMeta | None:
    """None where there is no node of it."""
    driver = Driver(stores.meta, stores.ledgers, clock=stores.clock, metrics=stores.metrics)
    try:
        return (await driver.run(read_log(stores.layout.log(log)))).meta
    except NotFound:
        return None


async def nothing_left_in(stores: Stores, shards: Iterable[Shard]) -> list[int]:
    """Those of these shards that have ended, and have no message any more: all were truncated, or
    the log was trimmed."""
    wanted = list(shards)
    metas = await some_at_once(
        limits.STREAM_LOOKS_AT_ONCE, lambda shard: _meta_of(stores, shard.log), wanted
    )
    return [
        shard.number
        for shard, meta in zip(wanted, metas, strict=True)
        if shard.state is ShardState.ENDED and (meta is None or _is_spent(meta))
    ]


def _is_spent(meta: LogMeta) -> bool:
    point, end = meta.truncate_before, meta.end
    is_over = meta.state is LogState.TERMINATED
    is_truncated = point.seq >= end.next_seq or point.ledger_id > end.ledger_id
    return meta.is_removed or (is_over and is_truncated)


class Remains(NamedTuple):
    """What stays of a log that was removed, or is being removed: where it ended."""

    uid: str
    first_seq: int  # that it ever had
    end: End

    @property
    def is_empty(self) -> bool:
        """It never had a message."""
        return self.end.next_seq <= self.first_seq

    def had_more(self, at: Position) -> bool:
        """Behind this place; also where the place is of another log."""
        return self.uid != at.log_uid or self.end.next_seq > at.next_seq

    def is_older(self, since_us: int) -> bool:
        """All of it, and of the shards before it. An empty one says nothing of those."""
        return not self.is_empty and self.end.last_time_us < since_us


async def remains_of(stores: Stores, stream: str, number: int) -> Remains | None:
    """Of a shard that was trimmed; None where nothing stays. The first shard of a log that was
    split is that log itself."""
    for log in (shard_log(stream, number), stream)[: 2 if number == 0 else 1]:
        meta = await _meta_of(stores, log)
        if meta is not None:
            is_over = meta.is_removed or meta.state is LogState.TERMINATED
            return Remains(meta.uid, first_seq_of(meta), meta.end) if is_over else None
    return None


async def remains_of_all(
    stores: Stores, stream: str, numbers: Iterable[int]
) -> dict[int, Remains | None]:
    wanted = list(numbers)
    found = await some_at_once(
        limits.STREAM_LOOKS_AT_ONCE, lambda number: remains_of(stores, stream, number), wanted
    )
    return dict(zip(wanted, found, strict=True))


async def missed_nothing_in(
    stores: Stores, stream: str, numbers: Iterable[int], since_us: int | None
) -> list[int]:
    """Those of these shards, which left the list unread, that had nothing which was to be read."""
    found = await remains_of_all(stores, stream, numbers)
    return [
        number
        for number, left in found.items()
        if left is not None
        and (left.is_empty or (since_us is not None and left.is_older(since_us)))
    ]


@dataclass(frozen=True, slots=True)
class Since:
    """What a log has from a time on. `is_over`: nothing, and nothing more will come. `is_whole`:
    some message of it, or all that ever wrote it, is older; so what is before it is older, too."""

    is_over: bool
    is_whole: bool


async def since_of(
    stores: Stores, shards: Iterable[Shard], since_us: int, *, tail: TailMode
) -> dict[int, Since]:
    """By number."""

    async def ask(shard: Shard) -> Since:
        view = SegmentView(shard.log, stores.layout, shard.log_uid or None, tail=tail)
        try:
            return await look(stores, view, _since(view, since_us))
        except NotFound as error:
            await unmade(stores, shard, error)
            return Since(False, False)

    wanted = list(shards)
    found = await some_at_once(limits.STREAM_LOOKS_AT_ONCE, ask, wanted)
    return {shard.number: each for shard, each in zip(wanted, found, strict=True)}


def _since(view: SegmentView, since_us: int) -> Procedure[Since]:
    yield from view.refresh()
    return (yield from by_the_newest_list(view, lambda: _find_since(view, since_us)))


def _find_since(view: SegmentView, since_us: int) -> Procedure[Since]:
    meta = view.meta
    mark = meta.writer or meta.left_by
    was_open = mark is not None and mark.since_us <= since_us
    try:
        place = yield from locate(view, us_datetime(since_us))
    except Truncated:  # a reader of the log will say so
        return Since(False, False)
    assert place.seq is not None
    is_whole = was_open or place.seq > first_seq_of(meta)
    if meta.state is not LogState.TERMINATED:
        return Since(False, is_whole)
    return Since(place.seq >= (yield from find_tail(view)).next_seq, is_whole)
