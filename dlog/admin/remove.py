"""Removing a log, as a procedure that can be run again after a crash at any step.

First the log meta says DELETING, with the next epoch: from there every writer is fenced by the
list, and by the ledger store once its ledger is fenced. Then ledgers go, then pages, then the node
becomes a tombstone that keeps what must never go back: epoch, segment numbers, the floor of ledger
ids. A log made later under the same name continues them.
"""

from __future__ import annotations

import dataclasses

from dlog.chance import Chance
from dlog.effects import DeleteLedger, DeleteNode, Procedure, ReadNode, RecoverLedger
from dlog.errors import NotFound
from dlog.meta.cas import Seen, change_log, read_log
from dlog.meta.layout import Layout
from dlog.meta.log_meta import Doomed, LogMeta, LogState, WriterMark, page_from_bytes


def remove(
    name: str, layout: Layout, remover: WriterMark, now_us: int, chance: Chance
) -> Procedure[None]:
    path = layout.log(name)
    try:
        seen: Seen = yield from read_log(path)
    except NotFound:
        raise NotFound(f"there is no log {name!r}", log=name) from None
    if seen.meta.state is LogState.DELETED:
        raise NotFound(f"the log {name!r} was removed", log=name)
    seen = yield from change_log(
        path,
        seen,
        lambda meta: meta if meta.state is LogState.DELETING else meta.doomed(now_us, remover),
        is_done=lambda meta: meta.state is not LogState.OPEN,
        chance=chance,
        point="remove.marked",
    )
    while seen.meta.pages:
        seen = yield from _unfold_page(name, layout, seen, now_us, chance)
    for doomed in seen.meta.deleting:
        # Fence before deleting: a writer that still holds the ledger must hear of it.
        try:
            yield RecoverLedger(doomed.ledger_id)
        except NotFound:
            continue
        yield DeleteLedger(doomed.ledger_id, point="remove.ledger_deleted")

    def bury(meta: LogMeta) -> LogMeta:
        return dataclasses.replace(meta, deleting=()).tombstone()

    yield from change_log(
        path,
        seen,
        bury,
        is_done=lambda meta: meta.state is not LogState.DELETING,
        chance=chance,
        point="remove.forgotten",
    )


def _unfold_page(
    name: str, layout: Layout, seen: Seen, now_us: int, chance: Chance
) -> Procedure[Seen]:
    """The ledgers of the oldest page are doomed; then the page node goes."""
    ref = seen.meta.pages[0]
    path = layout.page(name, ref.number)
    node = yield ReadNode(path)
    doomed = tuple(
        Doomed(segment.ledger_id, now_us) for segment in page_from_bytes(node.value, where=path)
    )

    def unfold(meta: LogMeta) -> LogMeta:
        if not meta.pages or meta.pages[0] != ref:
            return meta
        return dataclasses.replace(meta, pages=meta.pages[1:], deleting=meta.deleting + doomed)

    after = yield from change_log(
        layout.log(name),
        seen,
        unfold,
        is_done=lambda meta: not meta.pages or meta.pages[0] != ref,
        chance=chance,
    )
    yield DeleteNode(path, node.version)
    return after
