"""Doing what a plan says, one step after the other. Each step looks again at what it rests on, and
changes by compare-and-set: beside a writer, another repair or a collector it does its part once, or
finds that there is nothing to do. What cannot be proven is refused, and said.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence

from dlog import trace
from dlog.admin.fsck.lists import Walk, walk_list
from dlog.admin.fsck.nobodys import delete_orphan, delete_unused_page
from dlog.admin.fsck.orphans import mark_of
from dlog.admin.fsck.rebuild import (
    ENTRIES_TOLD,
    Told,
    find_ref,
    proven_refs,
    proven_segments,
    refs_below,
    told_by,
)
from dlog.admin.fsck.report import Action, Ended, Finding, RepairReport, Step, StepDone
from dlog.admin.fsck.run import FsckDriver
from dlog.drive import Driver, Stores
from dlog.effects import (
    CreateNode,
    LastReadable,
    Procedure,
    ReadEntries,
    ReadNode,
    ReadRun,
    ReplaceNode,
)
from dlog.errors import (
    AlreadyExists,
    Conflict,
    Corrupt,
    DlogError,
    Fenced,
    FormatError,
    NotFound,
    Unavailable,
    Unsupported,
    check,
)
from dlog.ledger.copies import KeepsCopies
from dlog.meta.cas import Seen, change_log, read_log
from dlog.meta.listed import End, PageRef, Segment
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.pages import page_to_bytes
from dlog.options import WriterOptions
from dlog.reader.segments import SegmentView
from dlog.wire.batch import Seam
from dlog.writer.engine import Engine
from dlog.writer.owner import new_mark
from dlog.writer.rotation import Ending
from dlog.writer.segments import SEAM_ENTRY, decode_seam

_log = logging.getLogger("dlog.admin")

_NO_PROOF = (Corrupt, FormatError, Unsupported)
_DONE, _NOT_NEEDED, _REFUSED, _FAILED = Ended.DONE, Ended.NOT_NEEDED, Ended.REFUSED, Ended.FAILED
_Said = tuple[Ended, str]


async def repair(stores: Stores, steps: Sequence[Step]) -> RepairReport:
    """All of them, also when one fails."""
    done = []
    for step in steps:
        ended, told = await _one(stores, step)
        _log.info("%s: %s: %s: %s", step.action.value, step.where, ended.value, told)
        done.append(StepDone(step, ended, told))
    return RepairReport(tuple(done))


async def _one(stores: Stores, step: Step) -> _Said:
    try:
        return await _VERBS[step.action](_Repair(stores, step))
    except NotFound as error:
        return _NOT_NEEDED, error.message
    except _NO_PROOF as error:
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

    async def walk(self) -> Walk:
        view = SegmentView(self.name, self.stores.layout)
        return await FsckDriver(self.stores, view).run(walk_list(self.name, self.stores.layout))

    async def found_again(self) -> tuple[Walk, Finding | None]:
        walk = await self.walk()
        again = (
            each
            for each in walk.findings
            if each.where.path == self.where.path and each.action is self.step.action
        )
        return walk, next(again, None)

    @property
    def ledger_id(self) -> int:
        assert self.where.ledger_id is not None
        return self.where.ledger_id

    # --- nobody's

    async def delete_ledger(self) -> _Said:
        now_us = self.stores.clock.wall_us()
        layout = self.stores.layout
        return await self.driver.run(delete_orphan(self.name, layout, self.ledger_id, now_us))

    async def delete_page(self) -> _Said:
        assert self.where.path is not None
        layout = self.stores.layout
        return await self.driver.run(delete_unused_page(self.name, layout, self.where.path))

    # --- the list

    async def write_page(self) -> _Said:
        walk, finding = await self.found_again()
        if finding is None or finding.where.path is None:
            return _NOT_NEEDED, "it says what refers to it says"
        layout, path, meta = self.stores.layout, finding.where.path, walk.meta
        ref = await self.driver.run(
            find_ref(
                self.name,
                layout,
                meta,
                lambda ref: layout.page(self.name, ref.number, ref.level) == path,
            )
        )
        if ref is None:
            return _NOT_NEEDED, "nothing refers to it any more"
        held: tuple[Segment, ...] | tuple[PageRef, ...] | None
        if ref.level == 0:
            held = proven_segments(ref, await self._told_between(meta, ref))
        else:
            numbers = await self._page_numbers(ref)
            below = await self.driver.run(refs_below(self.name, layout, ref.level - 1, numbers))
            held = proven_refs(ref, below)
        if held is None:
            return _REFUSED, (
                "what is left does not prove what stood there: segments "
                f"{ref.number} to {ref.last_number}, seqs {ref.base_seq} to {ref.next_seq - 1}"
            )
        try:
            await self.driver.run(_put_node(path, page_to_bytes(held)))
        except (Conflict, AlreadyExists):
            return _NOT_NEEDED, "somebody else wrote it meanwhile"
        return _DONE, f"written: {ref.segments} segments, proven by what they say themselves"

    async def _told_between(self, meta: LogMeta, ref: PageRef) -> list[Told]:
        told = []
        async for ledger_id in self.stores.ledgers.scan_ids():
            if ref.first_ledger <= ledger_id <= ref.last_ledger:
                found = await self._told(meta, ledger_id)
                if found is not None:
                    told.append(found)
        return told

    async def _told(self, meta: LogMeta, ledger_id: int) -> Told | None:
        """None: it is not closed, or no segment of this log, or not to be read."""
        try:
            info = await self.stores.ledgers.info(ledger_id)
            mark = mark_of(info, 0)
            closed = info.closed
            if mark is None or mark.uid != meta.uid or closed is None:
                return None
            if closed.last_entry < SEAM_ENTRY:
                return None
            entries = await self.driver.perform(
                ReadEntries(ledger_id, meta.digest, (*ENTRIES_TOLD, closed.last_entry))
            )
            return told_by(ledger_id, closed.bytes, closed.last_entry, entries, meta.uid)
        except (NotFound, *_NO_PROOF):
            return None

    async def _page_numbers(self, ref: PageRef) -> list[int]:
        suffix = f".{ref.level - 1}" if ref.level > 1 else ""
        names = await self.stores.meta.children(self.stores.layout.pages(self.name))
        stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
        numbers = sorted(int(stem) for stem in stems if stem.isdigit())
        return [number for number in numbers if ref.number <= number <= ref.last_number]

    async def reseal(self) -> _Said:
        seen = await self._seen()
        number = self.where.segment
        assert number is not None
        segment = seen.meta.segment(number)
        if segment is None or segment.sealed is None or segment.ledger_id != self.ledger_id:
            return _REFUSED, "it is not in the node of the log itself, whose pages prove each other"
        after = next((s for s in seen.meta.segments if s.number > number), None)
        seam = None if after is None else await self._seam(seen, after)
        try:
            told = await self._told(seen.meta, segment.ledger_id)
        except Unavailable:  # nobody has its last entry, or not everybody answers: `amend` asks all
            told = None
        # Where the ledger has more than the list says, only who continues it proves the list.
        has_more = told is not None and told.end[1] > segment.sealed.last_entry
        goes_on = seam is not None and _continues(seam) == (
            segment.ledger_id,
            segment.sealed.last_entry,
        )
        if (goes_on or not has_more) and await self._amended(segment, seen.meta.digest):
            return _DONE, "the ledger's metadata says again what the list and its last entry say"
        if told is None or told.segment.sealed is None:
            return _REFUSED, "the ledger does not tell where it ends"
        wanted, listed = told.segment.sealed, segment.sealed
        if wanted == listed:
            return _NOT_NEEDED, "the list says what the ledger says"
        if (told.segment.number, told.segment.epoch) != (segment.number, segment.epoch) or (
            (wanted.base_seq, wanted.next_seq) != (listed.base_seq, listed.next_seq)
        ):
            return _REFUSED, (
                f"the list says seqs {listed.base_seq} to {listed.next_seq - 1}, and the ledger "
                f"has {wanted.base_seq} to {wanted.next_seq - 1}: which of them is right, nothing "
                "proves"
            )
        if after is not None and seam is None and wanted.last_entry != listed.last_entry:
            return _REFUSED, "what the segment behind it continues cannot be read (yet)"
        if seam is not None and _continues(seam) != told.end:
            return _REFUSED, (
                f"the segment behind it continues entry {seam.predecessor_last} of ledger "
                f"{seam.predecessor_ledger}, and the ledger ends with entry {told.end[1]}"
            )

        def change(meta: LogMeta) -> LogMeta:
            if meta.segment(number) != segment:
                raise NotFound(f"segment {number} changed meanwhile")
            return _resealed(meta, dataclasses.replace(segment, sealed=wanted))

        def is_done(meta: LogMeta) -> bool:
            now = meta.segment(number)
            return now is not None and now.sealed == wanted

        chance = self.stores.chance
        point = "repair.resealed"
        await self.driver.run(
            change_log(self.path, seen, change, is_done=is_done, chance=chance, point=point)
        )
        return _DONE, f"the list says entry {wanted.last_entry}, {wanted.bytes} bytes"

    async def _seam(self, seen: Seen, segment: Segment) -> Seam | None:
        """Of a segment that may be open. A takeover drops it if it continues more than the list
        says, with all that was acknowledged in it. None: it cannot be read (yet)."""
        view = SegmentView(self.name, self.stores.layout)
        view.seen = seen
        driver = FsckDriver(self.stores, view)
        try:
            return await driver.run(_read_seam(segment))
        except (NotFound, *_NO_PROOF):
            return None
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
        except _NO_PROOF:
            return False

    async def seal_tail(self) -> _Said:
        """By the way that every opener goes, polite to whoever is there."""
        stores = self.stores
        seen = await self._seen()
        engine = Engine(stores, self.name, WriterOptions(takeover="if_dead"), new_mark(stores))
        engine.copies = seen.meta.copies
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
        """Of a log that is there."""
        seen = await self.driver.run(read_log(self.path))
        if seen.meta.state not in (LogState.OPEN, LogState.TERMINATED):
            raise NotFound(f"the log {self.name!r} is {seen.meta.state.value}", log=self.name)
        return seen

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


def _resealed(meta: LogMeta, segment: Segment) -> LogMeta:
    """The same seqs as before, so that nothing behind it moves."""
    sealed = segment.sealed
    before = meta.segment(segment.number)
    assert sealed is not None
    check(
        before is not None
        and before.sealed is not None
        and (before.sealed.base_seq, before.sealed.next_seq) == (sealed.base_seq, sealed.next_seq),
        "a repair moves no seq",
        segment,
    )
    end = meta.end
    if end.number == segment.number:
        end = End(
            segment.number,
            segment.ledger_id,
            sealed.last_entry,
            sealed.next_seq,
            max(end.last_time_us, sealed.last_time_us),
        )
    segments = tuple(segment if s.number == segment.number else s for s in meta.segments)
    return dataclasses.replace(meta, segments=segments, end=end)


def _continues(seam: Seam) -> tuple[int, int]:
    return seam.predecessor_ledger, seam.predecessor_last


def _read_seam(segment: Segment) -> Procedure[Seam | None]:
    if (yield LastReadable(segment.ledger_id)) < SEAM_ENTRY:
        return None
    raw = yield ReadRun(segment.ledger_id, SEAM_ENTRY, SEAM_ENTRY, 1)
    seam, _ = decode_seam(raw[0], segment)
    return seam


def _put_node(path: str, value: bytes) -> Procedure[None]:
    try:
        node = yield ReadNode(path)
    except NotFound:
        yield CreateNode(path, value, point="repair.page_written")
        return
    if node.value != value:
        yield ReplaceNode(path, value, node.version, point="repair.page_written")
