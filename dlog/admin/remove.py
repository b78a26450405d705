"""Removing a log, as a procedure that can be run again after a crash at any step.

First the log meta says DELETING, with the next epoch: from there every writer is fenced by the
list, and by the ledger store once its ledger is fenced. Then ledgers go, then pages and holds, then
the node becomes a tombstone that keeps what must never go back: epoch, segment numbers, the floor
of ledger ids. A log made later under the same name continues them. It is another log: whoever slept
or heard no answer, and finds it, has nothing left to do.
"""

from __future__ import annotations

import dataclasses

from dlog.admin.doomed import delete_ledger, delete_page
from dlog.chance import Chance
from dlog.effects import DeleteNode, ListNodes, Procedure, ReadNode
from dlog.errors import Conflict, FormatError, NotFound
from dlog.meta.cas import Seen, change_log, read_log
from dlog.meta.holds import Hold
from dlog.meta.layout import Layout
from dlog.meta.listed import WriterMark
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.shards import ShardLog, refuse_unless_shard


def remove(
    name: str,
    layout: Layout,
    remover: WriterMark,
    now_us: int,
    chance: Chance,
    shard: ShardLog | None = None,
) -> Procedure[None]:
    """`shard`: the log of a stream that removes it."""
    path = layout.log(name)
    try:
        seen: Seen = yield from read_log(path)
    except NotFound:
        raise NotFound(f"there is no log {name!r}", log=name) from None
    if seen.meta.state is LogState.DELETED:
        raise NotFound(f"the log {name!r} was removed", log=name)
    uid = seen.meta.is_here(name).uid
    if seen.meta.state is not LogState.DELETING:
        refuse_unless_shard(seen.meta, shard, name)

    def doom(meta: LogMeta) -> LogMeta:
        refuse_unless_shard(meta, shard, name)
        return meta.doomed(now_us, remover)

    seen = yield from change_log(
        path,
        seen,
        lambda meta: meta if meta.state is LogState.DELETING else doom(meta),
        is_done=lambda meta: meta.uid != uid or meta.is_here(name).is_removed,
        chance=chance,
        point="remove.marked",
    )
    if seen.meta.uid != uid or seen.meta.state is LogState.DELETED:
        return  # another remover went on where we were, and is done
    for doomed in seen.meta.deleting:
        yield from delete_ledger(doomed.ledger_id, seen.meta.digest, "remove.ledger_deleted")
    for page in seen.meta.deleting_pages:
        yield from delete_page(
            name, layout, page.number, page.level, seen.meta.digest, "remove.ledger_deleted"
        )

    yield from _drop_holds(name, layout, uid)

    def bury(meta: LogMeta) -> LogMeta:
        return dataclasses.replace(meta, deleting=(), deleting_pages=()).tombstone()

    yield from change_log(
        path,
        seen,
        bury,
        is_done=lambda meta: meta.uid != uid or meta.state is not LogState.DELETING,
        chance=chance,
        point="remove.forgotten",
    )


def _drop_holds(name: str, layout: Layout, uid: str) -> Procedure[None]:
    """One that comes in behind us counts for nothing: it names a log that is gone. Those of a log
    that was made meanwhile are not ours to drop."""
    try:
        names = yield ListNodes(layout.holds(name))
    except NotFound:
        return
    for each in names:
        path = f"{layout.holds(name)}/{each}"
        try:
            node = yield ReadNode(path)
            if _is_of(node.value, uid, path):
                yield DeleteNode(path, node.version)
        except (NotFound, Conflict):
            continue


def _is_of(raw: bytes, uid: str, path: str) -> bool:
    """What cannot be read goes, too."""
    try:
        return Hold.from_bytes(raw, path, where=path).log_uid == uid
    except FormatError:
        return True
