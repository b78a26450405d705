"""Where the shards of a stream end at one moment: a cut that is right in every key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dlog import limits
from dlog.admin.status import LogStatus, status_of
from dlog.drive import Stores
from dlog.errors import NotFound
from dlog.options import TailMode
from dlog.reader.feed import look
from dlog.reader.segments import SegmentView
from dlog.streams.document import Shard, StreamMeta
from dlog.streams.places import ends_are_looked_for
from dlog.together import some_at_once


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
    """In their order; None for a shard whose log is not made yet."""
    return await some_at_once(
        limits.STREAM_LOOKS_AT_ONCE, lambda shard: log_status(stores, shard, tail=tail), shards
    )


async def log_status(
    stores: Stores, shard: Shard, *, tail: TailMode = "normal"
) -> LogStatus | None:
    """None for a shard whose log is not there."""
    view = SegmentView(shard.log, stores.layout, shard.log_uid or None, tail=tail)
    try:
        return await look(stores, view, status_of(view))
    except NotFound:
        return None
