"""Making the log of a shard: a procedure, without IO.

A log has a name, and another log may have it: one that an earlier stream of the name left behind,
or one of a later stream, if we slept. So the list is read again around each step. What is found
under the name before the list still had our shard is older than the stream, and gives way. What we
made, and the list does not have any more behind that, is removed again.
"""

from __future__ import annotations

from dlog import limits
from dlog.chance import backoff_s
from dlog.effects import CreateNode, Pause, Procedure, ReplaceNode
from dlog.errors import AlreadyExists, Conflict, Corrupt, NotFound
from dlog.meta.cas import read_log
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.shards import ShardLog
from dlog.options import LogOptions
from dlog.streams.removal import RemoveLog
from dlog.streams.reshard import Site, read_stream


def make_log(site: Site, path: str, shard: ShardLog, options: LogOptions) -> Procedure[bool]:
    """The log of a listed shard is there behind this. False for a shard that was trimmed: it has
    none. `NotFound` where its stream is gone, `AlreadyExists` where a plain log has the name."""
    for attempt in range(limits.META_ATTEMPTS_MAX):
        if not (yield from _is_listed(site, shard)):
            return False
        if (yield from _made(site, path, shard, options)):
            break
        yield Pause(backoff_s(attempt, site.chance))
    else:
        raise Conflict(f"the log {shard.name!r} keeps changing while it is made", log=shard.name)
    try:
        is_listed = yield from _is_listed(site, shard)
    except NotFound:
        yield RemoveLog(shard)
        raise
    if not is_listed:
        yield RemoveLog(shard)
    return is_listed


def _is_listed(site: Site, shard: ShardLog) -> Procedure[bool]:
    meta = (yield from read_stream(site)).meta
    return any((each.log, each.log_uid) == (shard.name, shard.uid) for each in meta.shards)


def _made(site: Site, path: str, shard: ShardLog, options: LogOptions) -> Procedure[bool]:
    """False when another log had to go first, or somebody else was faster."""
    uid = shard.uid or site.chance.token()
    try:
        fresh = LogMeta(uid=uid, options=options, stream=shard.mark)
        yield CreateNode(path, fresh.to_bytes())
        return True
    except AlreadyExists:
        pass
    try:
        seen = yield from read_log(path)
    except NotFound:
        return False
    meta = seen.meta.is_here(shard.name)
    if meta.is_removed and meta.uid == shard.uid:
        if not (yield from _is_listed(site, shard)):
            return False
        raise Corrupt(
            f"the log {shard.name!r} was removed under its stream {shard.stream!r}, with the "
            "messages of the shard",
            log=shard.name,
        )
    if meta.state is LogState.DELETED:
        try:
            reborn = meta.reborn(uid, options, stream=shard.mark)
            yield ReplaceNode(path, reborn.to_bytes(), seen.version)
            return True
        except Conflict:
            return False
    if shard.is_log(meta) and meta.state is not LogState.DELETING:
        return True
    if not (yield from _is_listed(site, shard)):
        return False  # the log may be of a stream that is younger than ours
    if meta.stream is None and not meta.is_blank:
        raise AlreadyExists(
            f"there is a log {shard.name!r}, which is no shard: the shard cannot be made",
            log=shard.name,
        )
    yield RemoveLog(shard._replace(uid=meta.uid, stream_uid=meta.stream or shard.stream_uid))
    return False
