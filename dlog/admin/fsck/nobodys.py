"""Deleting what is nobody's: ledgers that no list has or ever will, pages that nothing names.
Procedures, each of which looks again at what it rests on before it deletes anything."""

from __future__ import annotations

import dataclasses

from dlog.admin.discard import Discarding, discard
from dlog.admin.doomed import delete_ledger
from dlog.admin.fsck.lists import walk_list
from dlog.admin.fsck.orphans import JOB, Mark, Owner, judge, mark_of
from dlog.admin.fsck.report import Action, Ended, Kind
from dlog.chance import Chance
from dlog.effects import DeleteNode, LookAtLedger, Procedure, ReadNode
from dlog.errors import NotFound
from dlog.meta.layout import Layout

Said = tuple[Ended, str]


def delete_orphan(
    name: str, layout: Layout, ledger_id: int, now_us: int, chance: Chance
) -> Procedure[Said]:
    info = yield LookAtLedger(ledger_id)  # before the list is read
    mark = mark_of(info, now_us)
    if mark is not None and mark.role == JOB:
        mark = yield from present_or_not(name, layout, mark)
    walk = yield from walk_list(name, layout)
    if mark is None or walk.seen is None or mark.uid != walk.meta.uid:
        return Ended.REFUSED, "it does not say any more that it is of this log"
    # The grace was over when it was planned.
    finding = judge(ledger_id, mark, Owner.of(walk), 0.0)
    if finding is None:
        return Ended.NOT_NEEDED, "it is listed, or waits for its deletion"
    if finding.kind is not Kind.ORPHAN or finding.action is None:
        return Ended.REFUSED, f"{finding.told} {finding.advice}".strip()
    if mark.role == JOB:  # it could still be listed
        work = Discarding(name, mark.uid, layout, now_us, chance)
        done = yield from discard(work, (ledger_id,))
        if not done.deleted:
            return Ended.NOT_NEEDED, "it is listed, or waits for its deletion"
        return Ended.DONE, "marked, fenced and deleted"
    yield from delete_ledger(ledger_id, info.spec.digest, "repair.ledger_deleted")
    return Ended.DONE, "fenced and deleted"


def present_or_not(name: str, layout: Layout, mark: Mark) -> Procedure[Mark]:
    """Is the job there that filled it? Of one without a name nobody knows."""
    if not mark.token:
        return mark
    try:
        yield ReadNode(layout.job(name, mark.token))
    except NotFound:
        return dataclasses.replace(mark, is_present=False)
    return mark


def delete_unused_page(name: str, layout: Layout, path: str) -> Procedure[Said]:
    walk = yield from walk_list(name, layout)
    unused = (f for f in walk.findings if f.action is Action.DELETE_PAGE and f.where.path == path)
    if next(unused, None) is None:
        return Ended.NOT_NEEDED, "it is gone, or something refers to it"
    node = yield ReadNode(path)
    yield DeleteNode(path, node.version, point="repair.page_deleted")
    return Ended.DONE, "deleted"
