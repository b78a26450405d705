"""Doing what a plan says, one step after the other. Each step looks again at what it rests on, and
changes by compare-and-set: beside a writer, another repair or a collector it does its part once, or
finds that there is nothing to do. What cannot be proven is refused, and said.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from dlog import trace
from dlog.admin.fsck.orphan_deletes import delete_orphan, delete_unused_page
from dlog.admin.fsck.relist import (
    NO_PROOF,
    LostPage,
    Weighed,
    find_lost_page,
    read_there,
    reseal,
    weigh,
    write_page,
)
from dlog.admin.fsck.report import Action, Ended, RepairReport, Step, StepDone
from dlog.admin.fsck.run import FsckDriver
from dlog.drive import Driver, Stores
from dlog.errors import (
    Conflict,
    DlogError,
    Fenced,
    NotFound,
    Unsupported,
)
from dlog.ledger.copies import KeepsCopies
from dlog.meta.cas import Seen, read_log
from dlog.meta.listed import Segment
from dlog.meta.shards import ShardLog
from dlog.meta.store import LosesSessions
from dlog.options import WriterOptions
from dlog.reader.segments import SegmentView
from dlog.writer.engine import Engine
from dlog.writer.owner import new_mark
from dlog.writer.rotation import Ending

_log = logging.getLogger("dlog.admin")

_BY_ABSENCE = (Action.SEAL_TAIL, Action.DELETE_LEDGER)
_DONE, _NOT_NEEDED, _REFUSED, _FAILED = Ended.DONE, Ended.NOT_NEEDED, Ended.REFUSED, Ended.FAILED
_Said = tuple[Ended, str]


async def repair(stores: Stores, steps: Sequence[Step]) -> RepairReport:
    """All of them, also when one fails. That a writer or a job is gone counts when it was not there
    twice, a session's time-out apart: whose session ended under it is back by then. It was looked
    for when the steps were planned; each step looks again."""
    done = []
    is_late = False
    for step in steps:
        if step.action in _BY_ABSENCE and not is_late:
            meta, is_late = stores.meta, True
            await asyncio.sleep(meta.session_timeout_s if isinstance(meta, LosesSessions) else 0.0)
        ended, told = await _one(stores, step)
        _log.info("%s: %s: %s: %s", step.action.value, step.where, ended.value, told)
        done.append(StepDone(step, ended, told))
    return RepairReport(tuple(done))


async def _one(stores: Stores, step: Step) -> _Said:
    try:
        return await _VERBS[step.action](_Repair(stores, step))
    except NotFound as error:
        return _NOT_NEEDED, error.message
    except NO_PROOF as error:
        return _REFUSED, error.message
    except DlogError as error:
        return _FAILED, error.message


class _Repair:
    """One step, over the stores."""

    def __init__(self, stores: Stores, step: Step) -> None:
        self.stores = stores
        self.step = step
        self.where = step.where
        assert step.where.log is not None, "what is repaired is of a log"
        self.name = step.where.log
        self.path = stores.layout.log(self.name)
        self.driver = Driver(stores.meta, stores.ledgers)

    @property
    def ledger_id(self) -> int:
        assert self.where.ledger_id is not None
        return self.where.ledger_id

    # --- orphans

    async def delete_ledger(self) -> _Said:
        now_us = self.stores.clock.wall_us()
        layout = self.stores.layout
        chance = self.stores.chance
        return await self.driver.run(
            delete_orphan(self.name, layout, self.ledger_id, now_us, chance)
        )

    async def delete_page(self) -> _Said:
        assert self.where.path is not None
        layout = self.stores.layout
        return await self.driver.run(delete_unused_page(self.name, layout, self.where.path))

    # --- the list

    async def write_page(self) -> _Said:
        name, layout, path = self.name, self.stores.layout, self.where.path
        assert path is not None
        async with self._reading() as driver:
            lost = await driver.run(find_lost_page(name, layout, path))
            if not isinstance(lost, LostPage):
                return lost
            ref, ids = lost.ref, list[int]()
            if ref.level == 0:
                async for ledger_id in self.stores.ledgers.scan_ids():
                    if ref.first_ledger <= ledger_id <= ref.last_ledger:
                        ids.append(ledger_id)
            return await driver.run(write_page(name, layout, lost, ids))

    async def reseal(self) -> _Said:
        name, layout, number = self.name, self.stores.layout, self.where.segment
        assert number is not None
        async with self._reading() as driver:
            weighed = await driver.run(weigh(name, layout, number, self.ledger_id))
            if not isinstance(weighed, Weighed):
                return weighed
            digest = weighed.seen.meta.digest
            if weighed.may_be_right and await self._amended(weighed.segment, digest):
                return (
                    _DONE,
                    "the ledger's metadata says again what the list and its last entry say",
                )
            return await driver.run(reseal(name, layout, weighed, self.stores.chance))

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[FsckDriver]:
        """A driver that reads ledgers, and closes what it opened."""
        view = SegmentView(self.name, self.stores.layout)
        view.seen = await self.driver.run(read_log(self.path))
        driver = FsckDriver(self.stores, view)
        try:
            yield driver
        finally:
            await driver.close()

    async def _amended(self, segment: Segment, digest: str) -> bool:
        """The list is right, the entry at its end says so, and the ledger's metadata is wrong."""
        ledgers, sealed = self.stores.ledgers, segment.sealed
        if sealed is None or not isinstance(ledgers, KeepsCopies):
            return False
        try:
            return await ledgers.amend_end(
                segment.ledger_id, sealed.last_entry, sealed.bytes, digest=digest
            )
        except NO_PROOF:
            return False

    async def seal_tail(self) -> _Said:
        """Take the log over as an opener with `takeover="if_dead"` does, seal and leave it."""
        stores = self.stores
        seen = await self._seen()
        engine = Engine(stores, self.name, WriterOptions(takeover="if_dead"), new_mark(stores))
        engine.copies = seen.meta.copies
        if seen.meta.stream is not None:
            engine.shard = ShardLog(self.name, seen.meta.uid, "", seen.meta.stream)
        trace.before("repair.tail_taken")
        try:
            await engine.open(None)
        except (Conflict, Fenced) as error:
            return _NOT_NEEDED, error.message
        trace.after("repair.tail_taken")
        trace.before("repair.tail_left")
        failure = await engine.close(Ending.HAND_OVER)
        if failure is not None:
            raise failure
        trace.after("repair.tail_left")
        return _DONE, "taken over, sealed and left"

    # --- copies

    async def mend_copy(self) -> _Said:
        store, digest = await self._copies()
        where = self.where
        assert where.bookie is not None
        assert where.first_entry is not None
        assert where.last_entry is not None
        count = await store.mend_copy(
            self.ledger_id, where.bookie, where.first_entry, where.last_entry, digest=digest
        )
        if count == 0:
            return _NOT_NEEDED, "its copies are good, or it keeps none of them any more"
        return _DONE, f"{count} copies written and read back"

    async def move_copies(self) -> _Said:
        store, digest = await self._copies()
        where = self.where
        assert where.bookie is not None
        assert where.first_entry is not None
        to = await store.move_copies(self.ledger_id, where.first_entry, where.bookie, digest=digest)
        if to is None:
            return _NOT_NEEDED, f"{where.bookie} is back, or keeps none of them any more"
        return _DONE, f"on bookie {to}"

    async def _seen(self) -> Seen:
        return await self.driver.run(read_there(self.name, self.stores.layout))

    async def _copies(self) -> tuple[KeepsCopies, str]:
        ledgers = self.stores.ledgers
        if not isinstance(ledgers, KeepsCopies):
            raise Unsupported("this store keeps one copy of each entry")
        return ledgers, (await self._seen()).meta.digest


_VERBS: dict[Action, Callable[[_Repair], Awaitable[_Said]]] = {
    Action.DELETE_LEDGER: _Repair.delete_ledger,
    Action.DELETE_PAGE: _Repair.delete_page,
    Action.WRITE_PAGE: _Repair.write_page,
    Action.MEND_COPY: _Repair.mend_copy,
    Action.MOVE_COPIES: _Repair.move_copies,
    Action.RESEAL: _Repair.reseal,
    Action.SEAL_TAIL: _Repair.seal_tail,
}
