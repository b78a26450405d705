"""Ending a log that nobody writes: it takes no more messages, for good, and stays readable. One
that has a writer, or whose last writer died, is taken over first, and ended by its new writer."""

from __future__ import annotations

from dlog.effects import Procedure
from dlog.errors import Conflict, Retry
from dlog.meta.cas import change_log
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.shards import ShardLog, refuse_unless_shard
from dlog.meta.sweep import Site


class _Busy(Conflict):
    """Somebody may be writing."""


def terminate(site: Site, shard: ShardLog | None = None) -> Procedure[bool]:
    """False when there are segments that are not sealed: whoever has it taken over may do it.
    `shard`: the log of a stream that ends it."""

    def change(meta: LogMeta) -> LogMeta:
        site.refuse_another_log(meta)
        refuse_unless_shard(meta, shard, site.name)
        if meta.unsealed:
            raise _Busy("the log has a writer", retry=Retry.NEVER, log=site.name)
        return meta.terminated()

    try:
        yield from change_log(
            site.path,
            None,
            change,
            is_done=lambda meta: meta.uid == site.uid and meta.state is LogState.TERMINATED,
            chance=site.chance,
            point="terminate.marked",
        )
    except _Busy:
        return False
    return True
