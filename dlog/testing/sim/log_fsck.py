"""Somebody who looks a simulated log over while everybody works on it, and deletes what he finds to
be nobody's. The production's procedures, in the order of their driver (`dlog.admin.fsck.run`).

Nothing is ever wrong with these logs. So whatever is told to be wrong is a lie, unless the truth
bears it out: a ledger in no list is an orphan if no list ever has it, a page if nothing names it.
The grace is over for everything, at every moment: that is harder than any clock.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from dlog.admin.fsck.lists import Walk, walk_list
from dlog.admin.fsck.orphan_deletes import Said, delete_orphan, delete_unused_page
from dlog.admin.fsck.orphans import Mark, Owner, judge, mark_of
from dlog.admin.fsck.relist import LostPage, Weighed, find_lost_page, reseal, weigh, write_page
from dlog.admin.fsck.report import Action, Ended, Finding, Kind
from dlog.admin.fsck.segments import Look, listed_now, look_at
from dlog.effects import DeleteLedger, Effect, LookAtLedger, Procedure
from dlog.errors import DlogError, NotFound
from dlog.limits import FSCK_TRIES
from dlog.meta.listed import Segment
from dlog.meta.log_meta import LogState
from dlog.reader.segments import SegmentView
from dlog.testing.sim.clients import Scene
from dlog.testing.sim.log_life import SimWarden
from dlog.testing.sim.log_oracle import LAYOUT, NAME
from dlog.testing.sim.metadata import Answered
from dlog.testing.sim.world import require


class FsckOracle:
    """What was told to be nobody's, of all that look."""

    def __init__(self, scene: Scene) -> None:
        self._oracle = scene.oracle
        self._orphans: set[int] = set()

    def found(self, finding: Finding) -> None:
        """At this very moment."""
        if not finding.is_damage:
            return
        if finding.kind is Kind.ORPHAN:
            assert finding.where.ledger_id is not None
            self._orphans.add(finding.where.ledger_id)
            self.check()
            return
        damage = self._oracle.damage
        is_hurt = damage is not None and damage.has_hurt()
        named = self._names(finding.where.path, also_doomed=not is_hurt)
        justified = finding.kind is Kind.PAGE_UNUSED and not named
        justified |= damage is not None and damage.justifies(finding)
        require(justified, "I24", "fsck cries wolf", finding)

    def deletes(self, ledger_id: int) -> None:
        self._orphans.add(ledger_id)
        self.check()

    def check(self) -> None:
        """Also of what is listed later. Of what left the list as part of a page that was damaged
        nobody knows but whoever finds it: that it is not listed has to do."""
        damage = self._oracle.damage
        if damage is not None and damage.has_hurt():
            kept = {segment.ledger_id for segment in self._oracle.listed()}
        else:
            kept = set(self._oracle.ever_listed)
        listed = self._orphans & kept
        require(not listed, "I26", "a ledger that is, or was, listed is nobody's to fsck", listed)

    def _names(self, path: str | None, *, also_doomed: bool) -> bool:
        """`also_doomed`: by pages that wait for their deletion. Of one that is lost nobody knows
        what it named."""
        if path is None:
            return False
        meta = self._oracle.now
        assert meta is not None
        name = path.rpartition("/")[2]
        number, _, level = name.partition(".")
        at = int(level or 0), int(number)
        tops = [(each.level, each.number) for each in meta.pages]
        if also_doomed:
            tops += [(each.level, each.number) for each in meta.deleting_pages]
        while tops:
            top = tops.pop()
            if at == top:
                return True
            tops += self._oracle.below.get(top, ())
        return False


class SimChecker(SimWarden):
    """Looks once, and repairs if it is to."""

    def __init__(self, scene: Scene, name: str, told: FsckOracle, *, repairs: bool) -> None:
        super().__init__(scene, name)
        self._told = told
        self._repairs = repairs
        self.found: list[Finding] | None = None

    def look(self) -> None:
        def judge(_: str, found: list[Finding]) -> None:
            self.found = found
            self.world.mark("looked over")

        self.work(self._fsck, judge)

    def _fsck(self, view: SegmentView) -> Procedure[list[Finding]]:
        marks = yield from self._marks()
        yield from view.refresh()  # `NotFound`: there is no log
        walk = yield from walk_list(NAME, LAYOUT)
        found = list(walk.findings)
        if walk.seen is not None and walk.meta.state in (LogState.OPEN, LogState.TERMINATED):
            for before, segment in zip(walk.before, walk.segments, strict=True):
                found += yield from self._segment(walk, segment, before)
        found += yield from self._orphans(walk, marks)
        for finding in found:
            self._told.found(finding)
        if self._repairs:
            for finding in found:
                yield from self._repair(finding)
        return found

    def _marks(self) -> Procedure[dict[int, Mark]]:
        found: dict[int, Mark] = {}
        for ledger_id in sorted(self.scene.ledgers.ledgers):  # those that are gone are so told
            try:
                info = yield LookAtLedger(ledger_id)
            except NotFound:
                continue
            mark = mark_of(info, self.now_us())
            if mark is not None:
                found[ledger_id] = mark
        return found

    def _segment(
        self, walk: Walk, segment: Segment, before: Segment | None
    ) -> Procedure[list[Finding]]:
        view = SegmentView(NAME, LAYOUT, walk.meta.uid)
        view.seen = walk.seen
        meta = walk.meta
        look: Look | None = None
        for _ in range(FSCK_TRIES):
            look = yield from look_at(NAME, meta, segment, before, 1)
            if not look.has_trouble:
                break
            now = yield from listed_now(view, segment)
            if now is None:
                return []
            if now == segment:
                break
            segment, meta = now, view.meta
        assert look is not None
        return look.findings

    def _orphans(self, walk: Walk, marks: dict[int, Mark]) -> Procedure[list[Finding]]:
        if walk.seen is None:
            return []
        owner, found = Owner.of(walk), list[Finding]()
        for ledger_id, mark in sorted(marks.items()):
            finding = judge(ledger_id, mark, owner, 0.0) if mark.uid == walk.meta.uid else None
            if finding is None:
                continue
            if finding.is_damage:
                try:
                    yield LookAtLedger(ledger_id)
                except NotFound:
                    continue
            found.append(finding)
        return found

    def _repair(self, finding: Finding) -> Procedure[None]:
        where = finding.where
        try:
            if finding.action is Action.DELETE_LEDGER:
                assert where.ledger_id is not None
                done = yield from delete_orphan(NAME, LAYOUT, where.ledger_id, self.now_us(), self)
            elif finding.action is Action.DELETE_PAGE:
                assert where.path is not None
                done = yield from delete_unused_page(NAME, LAYOUT, where.path)
            elif finding.action is Action.WRITE_PAGE:
                assert where.path is not None
                done = yield from self._write_page(where.path)
            elif finding.action is Action.RESEAL:
                assert where.segment is not None
                assert where.ledger_id is not None
                done = yield from self._reseal(where.segment, where.ledger_id)
            else:
                return
        except NotFound:
            return
        except DlogError as error:
            self.world.note(f"{self.name}: {where}: {error}")
            return
        self.world.note(f"{self.name}: {finding.action}: {where}: {done[0]}: {done[1]}")
        if done[0] is Ended.DONE:
            self.world.mark(f"repaired: {finding.action}")

    def _write_page(self, path: str) -> Procedure[Said]:
        lost = yield from find_lost_page(NAME, LAYOUT, path)
        if not isinstance(lost, LostPage):
            return lost
        ref, there = lost.ref, sorted(self.scene.ledgers.ledgers)
        ids = [each for each in there if ref.first_ledger <= each <= ref.last_ledger]
        return (yield from write_page(NAME, LAYOUT, lost, ids))

    def _reseal(self, number: int, ledger_id: int) -> Procedure[Said]:
        weighed = yield from weigh(NAME, LAYOUT, number, ledger_id)
        if not isinstance(weighed, Weighed):
            return weighed
        return (yield from reseal(NAME, LAYOUT, weighed, self))

    def perform(self, effect: Effect, answer: Answered) -> None:
        if isinstance(effect, DeleteLedger):
            self._told.deletes(effect.ledger_id)
        if isinstance(effect, LookAtLedger):
            answer = _of_old(answer)
        super().perform(effect, answer)


def _of_old(answer: Answered) -> Answered:
    """Of ledgers it is only ever told that they were made long ago."""

    def told(info: Any, error: DlogError | None) -> None:
        answer(None if info is None else dataclasses.replace(info, made_us=0), error)

    return told
