"""Where the shards of a stream end at one moment: a cut that is right in every key."""

from __future__ import annotations

from dataclasses import dataclass

from dlog import limits
from dlog.admin.status import LogStatus, status_of
from dlog.drive import Stores
from dlog.errors import NotFound
from dlog.reader.feed import look
from dlog.reader.segments import SegmentView
from dlog.streams.document import StreamMeta
from dlog.streams.places import ends_are_looked_for
from dlog.together import together


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
        for first in range(0, len(group), limits.STREAM_LOOKS_AT_ONCE):
            some = group[first : first + limits.STREAM_LOOKS_AT_ONCE]
            statuses = await together(*(log_status(stores, shard.log) for shard in some))
            for shard, status in zip(some, statuses, strict=True):
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


async def log_status(stores: Stores, log: str) -> LogStatus | None:
    """None for a log that is not there."""
    view = SegmentView(log, stores.layout)
    try:
        return await look(stores, view, status_of(view))
    except NotFound:
        return None
