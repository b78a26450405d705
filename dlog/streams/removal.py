"""Removing a stream, and trimming its oldest shards: procedures, without IO.

Both first say in the stream's node what goes: the state `DELETING`, or the list `trimmed`. Then the
logs go, and last what names them. So whoever runs the procedure again, after a crash at any step,
goes on where it ended, and nothing is left that no node names. Each step names uids: a procedure
that slept while the stream was removed and made again finds nothing to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from dlog import limits
from dlog.chance import backoff_s
from dlog.effects import DeleteNode, Effect, ListNodes, Pause, Procedure, ReadNode
from dlog.errors import Conflict, NotFound, Retry
from dlog.meta.shards import ShardLog
from dlog.meta.stream_holds import StreamHold
from dlog.streams.document import Shard, StreamMeta, StreamState
from dlog.streams.lanes import read_inherited
from dlog.streams.reshard import Site, change_stream, end_before, read_stream
from dlog.streams.trimmed import LookAtEnd, TrimmedShard, keep_trimmed


@dataclass(frozen=True, slots=True)
class RemoveLog(Effect):
    """Remove the log of a shard, unless it is gone."""

    shard: ShardLog


# --- removal


def remove_stream(site: Site) -> Procedure[None]:
    """The stream that is there when it begins, or the site's; `NotFound` when there is none."""
    seen = yield from read_stream(site, is_removing=True)
    site = site.of(seen.meta)

    def doomed(meta: StreamMeta) -> StreamMeta:
        if meta.state is StreamState.DELETING:
            return meta
        return dataclasses.replace(meta.terminated(), state=StreamState.DELETING)

    seen = yield from change_stream(
        site,
        doomed,
        is_done=lambda meta: meta.state is StreamState.DELETING,
        point="stream.terminated",
        is_removing=True,
    )
    yield from _remove_logs(site, seen.meta, (*seen.meta.shards, *seen.meta.trimmed))
    yield from _sweep_numbers(site, seen.meta)
    yield from _drop_holders(site)
    yield from _delete_document(site)


def finish_removal(site: Site) -> Procedure[None]:
    """Of a stream whose remover died."""
    try:
        seen = yield from read_stream(site, is_removing=True)
    except NotFound:
        return
    if seen.meta.state is StreamState.DELETING:
        yield from remove_stream(site.of(seen.meta))


def _delete_document(site: Site) -> Procedure[None]:
    for attempt in range(limits.META_ATTEMPTS_MAX):
        try:
            seen = yield from read_stream(site, is_removing=True)
            if seen.version is None:
                return
            yield DeleteNode(site.path, seen.version, point="stream.removed")
            return
        except NotFound:
            return  # by somebody who removes it, too
        except Conflict as error:
            if error.retry is not Retry.NOW:
                raise
            yield from _delete_old_numbers(site)  # as a process of an older version stores them
        yield Pause(backoff_s(attempt, site.chance))
    raise Conflict(f"the stream {site.name!r} keeps changing while it is removed")


def _sweep_numbers(site: Site, meta: StreamMeta) -> Procedure[None]:
    """Delete what the shards of this stream inherited, and of no other one of its name."""
    own = site.numbers(meta.uid)
    for number in (yield from _children(own)):
        yield from _delete(f"{own}/{number}")
    yield from _delete(own)
    yield from _delete(own.rpartition("/")[0])
    if any(not shard.log_uid for shard in (*meta.shards, *meta.trimmed)):
        yield from _delete_old_numbers(site)


def _delete_old_numbers(site: Site) -> Procedure[None]:
    """Of older versions, by number alone."""
    old = f"{site.path}/numbers"
    for number in (yield from _children(old)):
        yield from _delete(f"{old}/{number}")
    yield from _delete(old)


def left_numbers(site: Site) -> Procedure[list[str]]:
    """Nodes of what shards inherited, of whatever stream had the name."""
    at = site.numbers("").rstrip("/")
    found: list[str] = []
    for uid in (yield from _children(at)):
        found += [f"{at}/{uid}/{number}" for number in (yield from _children(f"{at}/{uid}"))]
        found.append(f"{at}/{uid}")
    old = f"{site.path}/numbers"
    found += [f"{old}/{number}" for number in (yield from _children(old))]
    return [*found, *([old] if len(found) else [])]


def delete_nodes(paths: Iterable[str]) -> Procedure[None]:
    for path in paths:
        yield from _delete(path)


def _drop_holders(site: Site) -> Procedure[None]:
    """Holds on the stream, as they are left behind by consumers."""
    if site.holds is None:
        return
    for name in (yield from _children(site.holds)):
        path = f"{site.holds}/{name}"
        try:
            node = yield ReadNode(path)
            if StreamHold.from_bytes(node.value, name, where=path).stream_uid == site.uid:
                yield DeleteNode(path, node.version)
        except (NotFound, Conflict):
            continue
    yield from _delete(site.holds)


def _children(path: str) -> Procedure[list[str]]:
    try:
        return (yield ListNodes(path))  # type: ignore[no-any-return]
    except NotFound:
        return []


def _delete(path: str) -> Procedure[None]:
    """What changed meanwhile, or has children, is another's."""
    try:
        node = yield ReadNode(path)
        yield DeleteNode(path, node.version)
    except (NotFound, Conflict):
        pass


def _remove_logs(site: Site, meta: StreamMeta, shards: Iterable[Shard]) -> Procedure[None]:
    for shard in shards:
        yield RemoveLog(meta.log_of(shard, site.name), point="stream.log_removed")


# --- trimming


def _keep_ends(site: Site, meta: StreamMeta, gone: Iterable[int]) -> Procedure[None]:
    """How these shards ended, for who comes when their logs are removed."""
    found: list[TrimmedShard] = []
    for shard in (meta.shard(number) for number in sorted(gone) if meta.has(number)):
        try:
            first_seq, next_seq, last = yield LookAtEnd(meta.log_of(shard, site.name))
        except NotFound:  # another one trims, too, and kept it before it removed the log
            continue
        found.append(TrimmedShard(shard.number, first_seq, next_seq, last, shard.parents))
    yield from keep_trimmed(site, meta.uid, found)


def forget_shards(site: Site, numbers: Iterable[int]) -> Procedure[StreamMeta]:
    """Forget these ended shards, oldest first, all of whose messages are gone. What their children
    inherited of producers' numbers is stored with each child first. No numbers: only finish what
    an earlier trim left."""
    gone = set(numbers)
    seen = yield from read_stream(site)
    site = site.of(seen.meta)
    heirs = [
        shard
        for shard in seen.meta.shards
        if shard.number not in gone and gone & set(shard.parents)
    ]
    for shard in heirs:
        seen = yield from end_before(site, seen, shard.parents)
        try:
            yield from read_inherited(site, seen.meta, shard)
        except NotFound:  # trimmed by somebody else, unless the whole stream is gone
            seen = yield from read_stream(site)
    if gone:
        yield from _keep_ends(site, seen.meta, gone)
        seen = yield from change_stream(
            site,
            lambda now: now.forgotten(number for number in gone if now.has(number)),
            is_done=lambda now: not any(now.has(number) for number in gone),
            point="stream.forgotten",
        )
    if not seen.meta.trimmed:
        return seen.meta
    trimmed = seen.meta.trimmed
    yield from _remove_logs(site, seen.meta, trimmed)
    for shard in trimmed:
        yield from _delete(site.inherited(seen.meta.uid, shard))
    cleared = {shard.number for shard in trimmed}
    seen = yield from change_stream(
        site,
        lambda now: now.cleared(cleared),
        is_done=lambda now: not any(shard.number in cleared for shard in now.trimmed),
        point="stream.cleared",
    )
    return seen.meta
