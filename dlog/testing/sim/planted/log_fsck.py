"""Bugs of those who look a log over while others work on it: fsck cries wolf, or takes away what
somebody needs."""

from __future__ import annotations

from typing import Any

from dlog.admin.fsck import lists, orphan_deletes, orphans, segments
from dlog.admin.fsck.lists import Walk
from dlog.admin.fsck.orphans import Mark, Owner
from dlog.admin.fsck.report import Kind
from dlog.effects import Procedure
from dlog.meta.layout import Layout
from dlog.meta.listed import Segment
from dlog.meta.log_meta import LogMeta
from dlog.testing.sim import log_fsck
from dlog.testing.sim.planted import Patch, Plants
from dlog.writer.segments import BIRTH_ENTRY

plants = Plants("log-fsck")
PLANTS = plants.by_name
LOOKS: dict[str, Any] = {"checkers": 4, "appends": 20}
CUTS: dict[str, Any] = {**LOOKS, "truncations": 5, "forces": 0.0, "collectors": 3, "grace_s": 0}
PAGES: dict[str, Any] = {**CUTS, "page_segments": 2, "rotate_every": 1}


@plants("I26", **CUTS)
def what_waits_for_its_deletion_is_an_orphan(patch: Patch) -> None:
    def of(walk: Walk) -> Owner:
        kept = frozenset(segment.ledger_id for segment in walk.segments)
        return Owner(walk.name, walk.meta, kept, walk.is_sound)

    patch.setattr(Owner, "of", staticmethod(of))


@plants("I26", **LOOKS, page_segments=2, rotate_every=1)
def what_stands_in_pages_is_an_orphan(patch: Patch) -> None:
    def of(walk: Walk) -> Owner:
        kept = frozenset({*(segment.ledger_id for segment in walk.meta.segments), *walk.doomed})
        return Owner(walk.name, walk.meta, kept, walk.is_sound)

    patch.setattr(Owner, "of", staticmethod(of))


@plants("I26", **LOOKS, standbys=2, writers=3)
def a_standby_has_nothing_ready(patch: Patch) -> None:
    real = orphans._is_below

    def is_below(ledger_id: int, mark: Mark, meta: LogMeta) -> str | None:
        if mark.role == b"standby":
            return "it is not listed"
        return real(ledger_id, mark, meta)

    patch.setattr(orphans, "_is_below", is_below)


@plants("I26", **LOOKS, rotate_every=2)
def a_writer_has_nothing_ready(patch: Patch) -> None:
    """Neither ids nor the grace count."""
    patch.setattr(orphans, "_is_below", lambda ledger_id, mark, meta: "it is not listed")


@plants("I24, I26", **{**PAGES, "checkers": 8, "slow": 10.0, "crash": 0.0, "freeze": 0.1})
def a_list_that_changed_is_taken_for_broken(patch: Patch) -> None:
    def walk_list(name: str, layout: Layout) -> Procedure[Walk]:
        nodes = yield from lists._page_nodes(name, layout)
        return (yield from lists._walk(name, layout, nodes))

    for room in (log_fsck, orphan_deletes):
        patch.setattr(room, "walk_list", walk_list)


@plants("I24", **PAGES)
def what_left_the_list_is_missed(patch: Patch) -> None:
    def listed_now(view: Any, segment: Segment) -> Procedure[Segment | None]:
        yield from ()
        return segment

    patch.setattr(log_fsck, "listed_now", listed_now)


@plants("I24", **LOOKS, clocks_jump=0.3, rotate_every=2)
def ledgers_are_born_when_their_turn_comes(patch: Patch) -> None:
    """By the clock that their first message is told by."""
    real = segments._Reading._check_order

    def check_order(self: Any, entry_id: int, entry: Any) -> None:
        last = self.last
        if last is not None and last[0] == BIRTH_ENTRY:
            if entry.base_timestamp_us < last[1].last_timestamp_us:
                self._look.bad(Kind.ENTRY_MISPLACED, "it is older than its birth")
        real(self, entry_id, entry)

    patch.setattr(segments._Reading, "_check_order", check_order)


@plants(
    "I24",
    survives="mostly: one history in some five thousand has a page deleted just between the two "
    "looks that this is about",
    shown_by="tests/unit/admin/test_fsck_lists.py::test_a_page_that_was_deleted_meanwhile_is_not",
)
def pages_that_are_gone_are_unused(patch: Patch) -> None:
    def forget_gone(walk: Walk, layout: Layout) -> Procedure[None]:
        yield from ()

    patch.setattr(lists, "_forget_gone", forget_gone)
