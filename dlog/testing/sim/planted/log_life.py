"""Bugs at the other end of logs: truncation, holds, retention, the collector, the end for good."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dlog.admin import collect, doomed, holds, remove, truncate
from dlog.admin.truncate import Aimed
from dlog.effects import (
    DeleteLedger,
    Effect,
    ListNodes,
    Procedure,
    ReadNode,
    RecoverLedger,
    ReplaceNode,
    WaitNode,
)
from dlog.errors import Corrupt, DlogError, NotFound, Truncated
from dlog.ids import MessageId
from dlog.meta import log_meta, sweep, truncation
from dlog.meta.cas import read_log
from dlog.meta.holds import Hold
from dlog.meta.listed import Point, Segment
from dlog.meta.log_meta import LogMeta
from dlog.reader import core as reader_core
from dlog.reader import places
from dlog.reader import segments as reader_segments
from dlog.testing.sim.planted import Patch, Plants
from dlog.writer import takeover
from dlog.writer.segments import SEAM_ENTRY

plants = Plants("log-life")
PLANTS = plants.by_name
LIFE: dict[str, Any] = {"truncations": 5, "forces": 0.0, "grace_s": 0}
PAGES: dict[str, Any] = {**LIFE, "page_segments": 2, "rotate_every": 1, "appends": 20}
HOLDS: dict[str, Any] = {**LIFE, "holders": 2}
EARLY: dict[str, Any] = {"truncations": 5, "collectors": 3, "grace_s": 30}

Intercept = Callable[[Effect], Procedure[tuple[bool, Any]]]


def _through(procedure: Procedure[Any], intercept: Intercept) -> Procedure[Any]:
    """As it is, but for the effects that `intercept` answers: (True, answer)."""
    answer: Any = None
    error: DlogError | None = None
    while True:
        try:
            effect = procedure.send(answer) if error is None else procedure.throw(error)
        except StopIteration as stop:
            return stop.value
        answer = error = None
        try:
            is_answered, answer = yield from intercept(effect)
            if not is_answered:
                answer = yield effect
        except DlogError as raised:
            error = raised


# --- holds


@plants("P29, I19", **HOLDS)
def truncation_point_computed_before_reading_holds(patch: Patch) -> None:
    """The holds as they stood before the log meta was read."""
    real = truncation.move_point

    def move_point(site: Any, *arguments: Any, **others: Any) -> Procedure[Any]:
        yield from read_log(site.path)
        folder = site.layout.holds(site.name)
        try:
            names = yield ListNodes(folder)
        except NotFound:
            names = []
        nodes = {}
        for name in names:
            try:
                nodes[f"{folder}/{name}"] = yield ReadNode(f"{folder}/{name}")
            except NotFound:
                continue

        def intercept(effect: Effect) -> Procedure[tuple[bool, Any]]:
            yield from ()
            if isinstance(effect, ListNodes) and effect.path == folder:
                return True, [path[len(folder) + 1 :] for path in nodes]
            if isinstance(effect, ReadNode) and effect.path in nodes:
                return True, nodes[effect.path]
            return False, None

        return (yield from _through(real(site, *arguments, **others), intercept))

    for room in (truncation, truncate):
        patch.setattr(room, "move_point", move_point)


@plants("I19", **HOLDS)
def a_hold_is_not_counted(patch: Patch) -> None:
    """It looks at the truncation point, and leaves the log meta as it is."""
    patch.setattr(holds, "_count", lambda site: read_log(site.path))


@plants("I19", **HOLDS)
def a_hold_that_is_not_made_is_moved(patch: Patch) -> None:
    real = Hold.from_bytes

    def from_bytes(raw: bytes, name: str, *, where: str) -> Hold:
        return dataclasses.replace(real(raw, name, where=where), made=True)

    patch.setattr(Hold, "from_bytes", from_bytes)


@plants("I19", **HOLDS)
def a_hold_does_not_look_at_the_point_again(patch: Patch) -> None:
    patch.setattr(Hold, "is_behind", lambda self, point: False)


@plants(
    "I19: found by these histories",
    **{**HOLDS, "holders": 4, "ledger_store_ms": 20.0},  # time between a listing and its seam
    writers=1,
    appends=3,
)
def a_hold_in_front_of_the_first_message_begins_above_its_ledger(patch: Patch) -> None:
    real = holds._place

    def place(view: Any, at: Any) -> Procedure[Any]:
        seq, id_ = yield from real(view, at)
        where = yield from places.locate(view, at)
        if where.number is None:
            id_ = MessageId(view.meta.ledger_floor + 1, 0, 0)
        return seq, id_

    patch.setattr(holds, "_place", place)


@plants("I19", **HOLDS, retention_bytes=0, rotate_every=1, appends=8)
def retention_does_not_heed_holds(patch: Patch) -> None:
    patch.setattr(truncation, "bounded", lambda point, holds: point)


@plants("I24: found by these histories", **HOLDS, crash=0.05)
def a_hold_that_was_made_meanwhile_is_an_error(patch: Patch) -> None:
    real = holds._put

    def put(*arguments: Any) -> Procedure[Any]:
        try:
            return (yield from real(*arguments))
        except DlogError as error:
            raise error.__cause__ or error from None

    patch.setattr(holds, "_put", put)


# --- the point and the list


@plants("P30, I19", **LIFE, rotate_every=1, appends=8)
def ledgers_are_deleted_before_the_list_says_so(patch: Patch) -> None:
    real = truncation.move_point

    def move_point(site: Any, *arguments: Any, **others: Any) -> Procedure[Any]:
        def intercept(effect: Effect) -> Procedure[tuple[bool, Any]]:
            if isinstance(effect, ReplaceNode) and effect.point == "truncate.marked":
                meta = LogMeta.from_bytes(effect.value, where="")
                for each in meta.deleting:
                    yield from doomed.delete_ledger(each.ledger_id, meta.digest, "")
            return False, None

        return (yield from _through(real(site, *arguments, **others), intercept))

    for room in (truncation, truncate):
        patch.setattr(room, "move_point", move_point)


@plants("I19", **LIFE)
def a_truncation_point_goes_back(patch: Patch) -> None:
    def truncated(self: LogMeta, point: Point) -> LogMeta:
        return dataclasses.replace(self, truncate_before=point)

    patch.setattr(LogMeta, "truncated", truncated)


@plants("I19", **LIFE)
def a_truncation_goes_behind_the_end(patch: Patch) -> None:
    def by_seq(view: Any, seq: int | None, asked: str) -> Procedure[Aimed]:
        tail = yield from places.find_tail(view)
        return Aimed(Point(tail.next_seq + 2 if seq is None else seq + 2), asked)

    patch.setattr(truncate, "_by_seq", by_seq)


@plants("I1, I15", **LIFE, rotate_every=2, appends=8)
def a_segment_leaves_the_list_before_it_is_sealed(patch: Patch) -> None:
    real = LogMeta.swept

    def swept(self: LogMeta, now_us: int) -> LogMeta:
        meta = real(self, now_us)
        while not meta.pages and meta.unsealed[:1] == meta.segments[:1] != ():
            if meta.truncate_before.seq <= meta.end.next_seq:
                break
            meta = meta.dropped(meta.segments[0].number, now_us)
        return meta

    patch.setattr(LogMeta, "swept", swept)


@plants("I26", **LIFE, rotate_every=2, appends=8)
def what_leaves_the_list_is_forgotten(patch: Patch) -> None:
    real = LogMeta.swept

    def swept(self: LogMeta, now_us: int) -> LogMeta:
        return dataclasses.replace(real(self, now_us), deleting=self.deleting)

    patch.setattr(LogMeta, "swept", swept)


@plants("I15", **PAGES)
def segments_behind_a_page_leave_before_it(patch: Patch) -> None:
    real = LogMeta.swept

    def swept(self: LogMeta, now_us: int) -> LogMeta:
        bare = real(dataclasses.replace(self, pages=()), now_us)
        paged = real(self, now_us)
        return dataclasses.replace(bare, pages=paged.pages, deleting_pages=paged.deleting_pages)

    def covers(self: Point, segment: Segment) -> bool:
        return segment.sealed is not None and segment.sealed.base_seq < self.seq

    patch.setattr(Point, "covers", covers)
    patch.setattr(LogMeta, "swept", swept)


@plants("I15, I8", **{**PAGES, "page_segments": 3})
def a_page_that_was_cut_lacks_its_last_segment(patch: Patch) -> None:
    real = sweep._write_leaf

    def write_leaf(site: Any, cut: Any) -> Procedure[None]:
        if len(cut.leaf) > 1:
            cut = dataclasses.replace(cut, leaf=cut.leaf[:-1])
        yield from real(site, cut)

    patch.setattr(sweep, "_write_leaf", write_leaf)


@plants("I15", **PAGES)
def a_page_that_was_cut_is_named_before_it_is_written(patch: Patch) -> None:
    def write_leaf(site: Any, cut: Any) -> Procedure[None]:
        yield from ()

    patch.setattr(sweep, "_write_leaf", write_leaf)


@plants("I17, I24: found by these histories", **PAGES, meta_stale=1.0)
def a_page_that_is_missing_is_damage_at_once(patch: Patch) -> None:
    def in_pages(self: Any, wanted: Any, maybe: Any, *, newest: bool = False) -> Procedure[Any]:
        try:
            return (yield from self._descend(self.meta.pages, wanted, maybe, newest))
        except NotFound as error:
            raise Corrupt("a page of its list is missing") from error

    patch.setattr(reader_segments.SegmentView, "_in_pages", in_pages)


# --- readers


@plants("I18", **LIFE, readers=3)
def a_reader_does_not_look_at_the_point(patch: Patch) -> None:
    patch.setattr(Point, "cut", lambda *arguments: 0)


@plants("I18, I17", **LIFE, readers=3, jumps=0.0)
def a_reader_jumps_without_being_told(patch: Patch) -> None:
    def go_to_head(self: Any) -> Procedure[None]:
        self._passed = False
        yield from self.view.refresh()
        self.place = yield from places.find_head(self.view)
        self._from = self.view.meta.truncate_before

    patch.setattr(reader_core.ReaderCore, "_go_to_head", go_to_head)


@plants("I18, I17", **LIFE, readers=3, rotate_every=1, appends=8)
def a_reader_takes_whatever_segment_comes_next(patch: Patch) -> None:
    def begin(self: Any, entered: Any) -> bool:
        number = entered.segment.number
        self.place = places.Place(number, SEAM_ENTRY, 0, entered.base_seq)
        return True

    patch.setattr(reader_core.ReaderCore, "_begin", begin)


@plants("I18", **LIFE, readers=3)
def a_start_before_the_head_is_taken_for_the_head(patch: Patch) -> None:
    real = places.locate

    def locate(view: Any, start: Any) -> Procedure[Any]:
        try:
            return (yield from real(view, start))
        except Truncated:
            return (yield from places.find_head(view))

    patch.setattr(reader_core, "locate", locate)


@plants("I27: waits for ever where nothing is left", **LIFE, readers=3, retention_bytes=0)
def a_reader_that_is_behind_waits_for_what_is_gone(patch: Patch) -> None:
    def at_the_end(self: Any, *last: Any) -> Procedure[bool]:
        self.state = reader_core.ReaderState.CROSSING
        yield WaitNode(self.view.path, reader_core.WAIT_MS)
        return False

    patch.setattr(reader_core.ReaderCore, "_at_the_end", at_the_end)


@plants("I17: found by these histories", **LIFE, readers=3, collectors=3)
def a_ledger_that_left_the_list_is_an_error(patch: Patch) -> None:
    def by_the_list_it_has(view: Any, look: Any) -> Procedure[Any]:
        return (yield from look())

    for room in (reader_core, truncate, holds):
        patch.setattr(room, "by_the_newest_list", by_the_list_it_has)


# --- the collector


@plants("P31, I19", **EARLY)
def ledgers_are_deleted_without_grace(patch: Patch) -> None:
    patch.setattr(collect, "is_due", lambda since_us, meta, now_us: True)


@plants("I19", **LIFE, collectors=3, removers=1)
def ledgers_are_deleted_that_are_not_closed(patch: Patch) -> None:
    def delete_ledger(ledger_id: int, digest: str, point: str) -> Procedure[doomed.Gone]:
        yield DeleteLedger(ledger_id, point=point)
        return doomed.Gone(1)

    for room in (doomed, collect, remove):
        patch.setattr(room, "delete_ledger", delete_ledger)


@plants("I26", **LIFE, collectors=3, ledger_recover_fails=0.3)
def what_could_not_be_deleted_is_forgotten(patch: Patch) -> None:
    def delete_ledger(ledger_id: int, digest: str, point: str) -> Procedure[doomed.Gone]:
        try:
            yield RecoverLedger(ledger_id, digest)
            yield DeleteLedger(ledger_id, point=point)
        except DlogError:
            return doomed.Gone()
        return doomed.Gone(1)

    for room in (doomed, collect):
        patch.setattr(room, "delete_ledger", delete_ledger)


@plants("I26", **PAGES, collectors=3)
def a_page_goes_before_its_ledgers(patch: Patch) -> None:
    """Those that it names, if it waits for its deletion itself."""

    def keep(site: Any, level: int, number: int, kept: set[Any]) -> Procedure[None]:
        yield from ()

    patch.setattr(collect, "_keep", keep)


@plants("I26", **PAGES, collectors=3, crash=0.05)
def pages_that_nothing_names_stay(patch: Patch) -> None:
    def delete_stale_pages(at_work: Any) -> Procedure[None]:
        yield from ()

    patch.setattr(collect, "_delete_stale_pages", delete_stale_pages)


@plants("I15, I26", **PAGES, collectors=3)
def pages_of_the_list_are_taken_for_stale(patch: Patch) -> None:
    patch.setattr(collect, "first_number", lambda meta: meta.next_number)


# --- the end for good


@plants("I27", terminators=1, readers=3, removers=0)
def readers_of_an_ended_log_wait_for_more(patch: Patch) -> None:
    real = reader_core.ReaderCore._at_the_end

    def at_the_end(self: Any, *last: Any) -> Procedure[bool]:
        is_left = yield from real(self, *last)
        if self._is_over:
            self._is_over = False
            yield WaitNode(self.view.path, reader_core.WAIT_MS)
            return False
        return bool(is_left)

    patch.setattr(reader_core.ReaderCore, "_at_the_end", at_the_end)


@plants("I7", terminators=1, writers=3, incarnations=3)
def an_ended_log_is_opened_again(patch: Patch) -> None:
    def claimed(self: LogMeta, writer: Any, **others: Any) -> LogMeta:
        return dataclasses.replace(
            self,
            state=log_meta.LogState.OPEN,
            epoch=self.epoch + 1,
            writer=writer,
            left_by=None,
            hand_over=None,
        )

    patch.setattr(takeover, "refuse_unless_open", lambda meta, name: None)
    patch.setattr(LogMeta, "claimed", claimed)
