"""Bugs of lists that are damaged and repaired while everybody works on them: what is read is
believed, what is written was not proven, and what somebody else wrote meanwhile is forgotten."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from dlog.admin.fsck import lists, relist
from dlog.admin.fsck.lists import Walk
from dlog.admin.fsck.rebuild import Told
from dlog.admin.fsck.report import Action
from dlog.effects import CreateNode, Procedure
from dlog.errors import AlreadyExists
from dlog.meta import pages, sweep
from dlog.meta.listed import PageRef, Point, Segment
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import Cut, Held, page_from_bytes
from dlog.reader import places
from dlog.reader.core import ReaderCore
from dlog.testing.sim.planted import Patch, Plants
from dlog.writer import rotation
from dlog.writer.core import WriterCore

plants = Plants("log-repair")
PLANTS = plants.by_name
DAMAGES: dict[str, Any] = {"damages": 8, "checkers": 3, "rotate_every": 1, "appends": 20}
PAGES: dict[str, Any] = {**DAMAGES, "page_segments": 2}
ENDS: dict[str, Any] = {**DAMAGES, "page_segments": 128}
RACES: dict[str, Any] = {**PAGES, "crash": 0.01, "writers": 3, "incarnations": 3}
CUTS: dict[str, Any] = {"truncations": 5, "collectors": 2, "grace_s": 0}


@plants("I15, I24", **RACES)
def the_page_of_a_try_before_is_taken(patch: Patch) -> None:
    """Though an end that it holds was corrected since."""

    def write_page(core: WriterCore, cut: Cut) -> Procedure[bool]:
        identity = core.identity
        path = identity.layout.page(identity.name, cut.ref.number, cut.ref.level)
        try:
            yield CreateNode(path, cut.to_bytes())
        except AlreadyExists:
            pass
        return True

    patch.setattr(rotation, "_write_page", write_page)


@plants("I15, I24", **PAGES)
def a_page_is_named_that_was_written_of_another_list(patch: Patch) -> None:
    def paged(self: LogMeta, written: Mapping[tuple[int, int], Held]) -> LogMeta:
        meta = self
        while (cut := meta.next_cut()) is not None and (cut.ref.level, cut.ref.number) in written:
            meta = meta.without(cut)
        return meta

    patch.setattr(LogMeta, "paged", paged)


@plants("I17, I18", **PAGES)
def a_page_is_believed(patch: Patch) -> None:
    patch.setattr(pages, "_refuse_another", lambda ref, found, where: None)


@plants("I15, I8", **PAGES, **CUTS)
def a_page_is_trimmed_as_it_is(patch: Patch) -> None:
    def segments_of(ref: PageRef, raw: bytes, *, where: str) -> tuple[Segment, ...]:
        return page_from_bytes(raw, where=where)

    patch.setattr(sweep, "segments_of", segments_of)


@plants("I8, I15, I24", **PAGES, **CUTS)
def a_page_is_written_of_what_is_left(patch: Patch) -> None:
    """Whatever its reference says."""

    def proven_segments(ref: PageRef, told: Iterable[Told]) -> tuple[Segment, ...] | None:
        return tuple(each.segment for each in told)[1:] or None

    patch.setattr(relist, "proven_segments", proven_segments)


@plants("I26, I1", **PAGES)
def what_stood_in_a_lost_page_is_nobodys(patch: Patch) -> None:
    patch.setattr(Walk, "is_sound", property(lambda walk: not walk.not_checked))


@plants("I24", **PAGES)
def what_follows_a_gap_is_blamed_for_it(patch: Patch) -> None:
    real = lists._walk

    def walk(*args: Any) -> Procedure[Walk]:
        found = yield from real(*args)
        found.before = [None, *found.segments][: len(found.segments)]
        return found

    patch.setattr(lists, "_walk", walk)


@plants("I26", **PAGES, **CUTS)
def a_page_that_nobody_can_read_waits_for_ever(patch: Patch) -> None:
    real = Walk.bad

    def bad(self: Walk, kind: Any, told: str, action: Any = None, **where: Any) -> None:
        real(self, kind, told, None if action is Action.DELETE_PAGE else action, **where)

    patch.setattr(Walk, "bad", bad)


@plants("I18", **ENDS)
def what_a_short_end_cuts_off_was_truncated(patch: Patch) -> None:
    patch.setattr(ReaderCore, "_lacks_some", lambda self, segment: False)


@plants("I17", **ENDS)
def a_search_ends_where_the_list_says(patch: Patch) -> None:
    patch.setattr(places, "_check_end", lambda view, entered, last: None)


@plants("I15, I1", **ENDS, **CUTS)
def an_id_behind_the_listed_end_covers_all(patch: Patch) -> None:
    def covers(self: Point, segment: Segment) -> bool:
        sealed = segment.sealed
        if sealed is None:
            return False
        by_seq = sealed.next_seq <= self.seq and sealed.base_seq < self.seq
        return by_seq or (segment.ledger_id, sealed.last_entry) < (self.ledger_id, self.entry_id)

    patch.setattr(Point, "covers", covers)


@plants("I24, I8", **ENDS)
def a_repair_corrects_half_of_an_end(patch: Patch) -> None:
    real = relist._resealed

    def resealed(meta: LogMeta, segment: Segment) -> LogMeta:
        before = meta.segment(segment.number)
        assert before is not None
        assert before.sealed is not None
        assert segment.sealed is not None
        kept = dataclasses.replace(segment.sealed, bytes=before.sealed.bytes)
        return real(meta, dataclasses.replace(segment, sealed=kept))

    patch.setattr(relist, "_resealed", resealed)


@plants("I8", **ENDS, ledger_append_fails=0.1)
def a_repair_takes_the_time_back(patch: Patch) -> None:
    """Of the first message that was lost, by which its writer listed the end."""
    patch.setattr(relist, "max", min, raising=False)
