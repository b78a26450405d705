"""Deleting orphans: ledgers that no log lists or can list any more, and pages that no log meta
refers to. Each procedure checks its evidence again before it deletes anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from dlog.admin.discard import Discarding, discard
from dlog.admin.doomed import delete_ledger
from dlog.admin.fsck.lists import walk_list
from dlog.admin.fsck.orphans import JOB, Mark, Owner, judge, mark_of
from dlog.admin.fsck.report import Action, Ended, Kind
from dlog.chance import Chance
from dlog.effects import DeleteNode, ListNodes, LookAtLedger, Procedure, ReadNode
from dlog.errors import NotFound
from dlog.meta.layout import Layout

Said = tuple[Ended, str]


def delete_orphan(
    name: str, layout: Layout, ledger_id: int, now_us: int, chance: Chance
) -> Procedure[Said]:
    info = yield LookAtLedger(ledger_id)  # before the list is read
    mark = mark_of(info, now_us)
    if mark is not None and mark.role == JOB:
        mark = (yield from present_jobs(name, layout)).weigh(mark)
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


@dataclass(frozen=True, slots=True)
class PresentJobs:
    """The jobs that are present for segments of one log: their names, by token."""

    names: Mapping[str, bytes]

    def weigh(self, mark: Mark) -> Mark:
        """`mark` with `is_present` False if the job that filled the ledger is gone. A job publishes
        its segments together, so it counts as present while it is present for any of them. A ledger
        without a token tells nothing and stays as it was. A ledger that does not name its job may
        belong to any job that is present."""
        names = self.names
        is_there = mark.token in names or mark.job in names.values()
        if not mark.token or is_there or (mark.job is None and names):
            return mark
        return dataclasses.replace(mark, is_present=False)


def present_jobs(name: str, layout: Layout) -> Procedure[PresentJobs]:
    names: dict[str, bytes] = {}
    try:
        yield ReadNode(layout.log(name))  # behind a sync, and so is what follows
        tokens = yield ListNodes(layout.jobs(name))
    except NotFound:
        return PresentJobs(names)
    for token in tokens:
        try:
            names[token] = (yield ReadNode(layout.job(name, token), fresh=False)).value
        except NotFound:
            continue
    return PresentJobs(names)


def delete_unused_page(name: str, layout: Layout, path: str) -> Procedure[Said]:
    walk = yield from walk_list(name, layout)
    unused = (f for f in walk.findings if f.action is Action.DELETE_PAGE and f.where.path == path)
    if next(unused, None) is None:
        return Ended.NOT_NEEDED, "it is gone, or something refers to it"
    node = yield ReadNode(path)
    yield DeleteNode(path, node.version, point="repair.page_deleted")
    return Ended.DONE, "deleted"
