"""The list of a log as it stands in the metadata store: the node, the pages below it, what waits
for its deletion, and page nodes that nothing refers to.

Page nodes are listed before the node of the log is read: a page that a writer makes later is not
among them. One that nothing refers to may still be about to be named, by the compare-and-set of a
writer that just wrote it; below the head of the log none ever is.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import Any

from dlog.admin.fsck.report import Action, Finding, Kind, NotChecked, Severity, Where
from dlog.effects import ListNodes, Procedure, ReadNode
from dlog.errors import FormatError, NotFound
from dlog.limits import FSCK_TRIES
from dlog.meta.cas import Seen, read_log
from dlog.meta.layout import Layout
from dlog.meta.listed import PageRef, Segment
from dlog.meta.log_meta import LogMeta, LogState
from dlog.meta.pages import page_from_bytes, refs_from_bytes

_PAGE_NODE = re.compile(r"(\d{10,})(?:\.([1-9]\d*))?", re.ASCII)


@dataclass(slots=True)
class Walk:
    """What one log lists, and what is wrong with that."""

    name: str
    seen: Seen | None = None  # None: its node cannot be read
    segments: list[Segment] = field(default_factory=list)  # oldest first, as far as they are known
    # What each of them follows; None: nothing, or what stands in a page that cannot be read.
    before: list[Segment | None] = field(default_factory=list)
    pages: set[tuple[int, int]] = field(default_factory=set)  # (level, number) of all referred to
    doomed: set[int] = field(default_factory=set)  # ledgers that wait for their deletion
    findings: list[Finding] = field(default_factory=list)
    not_checked: list[NotChecked] = field(default_factory=list)

    @property
    def meta(self) -> LogMeta:
        assert self.seen is not None
        return self.seen.meta

    @property
    def is_sound(self) -> bool:
        """Every ledger of the log is known: what is not here, is not listed."""
        return not self.not_checked and not any(
            each.is_damage and each.kind is not Kind.PAGE_UNUSED for each in self.findings
        )

    def bad(self, kind: Kind, told: str, action: Action | None = None, **where: Any) -> None:
        self._find(kind, Severity.BAD, told, action, **where)

    def note(self, kind: Kind, told: str, **where: Any) -> None:
        self._find(kind, Severity.NOTE, told, None, **where)

    def _find(
        self, kind: Kind, severity: Severity, told: str, action: Action | None, **where: Any
    ) -> None:
        place = Where(log=self.name, **where)
        self.findings.append(Finding(kind, severity, place, told, action))


def walk_list(name: str, layout: Layout) -> Procedure[Walk]:
    """`NotFound` if there is no such log. Of one that was removed, what its tombstone says."""
    for _ in range(FSCK_TRIES):
        nodes = yield from _page_nodes(name, layout)
        walk = yield from _walk(name, layout, nodes)
        if walk.seen is None or walk.is_sound:
            yield from _forget_gone(walk, layout)
            return walk
        seen = yield from read_log(layout.log(name))
        if seen.version == walk.seen.version:
            return walk
    told = f"its list changed each of {FSCK_TRIES} times while it was read"
    unsteady = Walk(name, walk.seen, walk.segments, walk.before, walk.pages, walk.doomed)
    unsteady.not_checked.append(NotChecked(Where(log=name), told))
    return unsteady


def _forget_gone(walk: Walk, layout: Layout) -> Procedure[None]:
    """Drop the findings about pages that a truncation or a collector deleted since."""
    if not any(each.action is Action.DELETE_PAGE for each in walk.findings):
        return
    there = {
        f"{layout.pages(walk.name)}/{node}" for node in (yield from _page_nodes(walk.name, layout))
    }
    walk.findings = [
        each
        for each in walk.findings
        if each.action is not Action.DELETE_PAGE or each.where.path in there
    ]


def _page_nodes(name: str, layout: Layout) -> Procedure[list[str]]:
    try:
        return (yield ListNodes(layout.pages(name)))  # type: ignore[no-any-return]
    except NotFound:
        return []


def _walk(name: str, layout: Layout, nodes: list[str]) -> Procedure[Walk]:
    walk = Walk(name)
    path = layout.log(name)
    try:
        walk.seen = yield from read_log(path)
    except FormatError as error:
        walk.bad(Kind.META_UNREADABLE, error.message, path=path)
        return walk
    meta = walk.meta
    if meta.moved_to is not None:
        place = meta.moved_to.place
        walk.note(Kind.MOVED, f"it was moved to {place}: nothing here counts any more", path=path)
        return walk
    walker = _Walker(walk, layout)
    for ref in meta.pages:
        yield from walker.page(ref)
    for segment in meta.segments:
        walker.segment(segment)
    walker.check_ends()
    walk.doomed.update(doomed.ledger_id for doomed in meta.deleting)
    for page in meta.deleting_pages:
        yield from walker.doomed_page(page.number, page.level)
    if meta.deleting or meta.deleting_pages:
        walk.note(
            Kind.WAITS_FOR_DELETION,
            f"{len(meta.deleting)} ledgers and {len(meta.deleting_pages)} pages of them left the "
            "list and are not deleted yet",
            path=path,
        )
    _check_nodes(walk, layout, nodes)
    return walk


class _Walker:
    """Goes through the tree of one log, oldest first."""

    def __init__(self, walk: Walk, layout: Layout) -> None:
        self._walk = walk
        self._layout = layout
        self._last: Segment | None = None
        self._next_seq: int | None = None  # where the next segment begins; None: not known

    def page(self, ref: PageRef) -> Procedure[None]:
        walk = self._walk
        path = self._layout.page(walk.name, ref.number, ref.level)
        walk.pages.add((ref.level, ref.number))
        where: dict[str, Any] = {"path": path, "first_seq": ref.base_seq, "next_seq": ref.next_seq}
        try:
            node = yield ReadNode(path, fresh=False)
            held: tuple[PageRef, ...] | tuple[Segment, ...]
            if ref.level > 0:
                held = refs_from_bytes(node.value, where=path)
                found = PageRef.of_pages(held)
            else:
                held = page_from_bytes(node.value, where=path)
                found = PageRef.of_segments(held)
        except NotFound:
            told = f"the page of segments {ref.number} to {ref.last_number} is not there"
            walk.bad(Kind.PAGE_MISSING, told, Action.WRITE_PAGE, **where)
            self._next_seq, self._last = ref.next_seq, None
            return
        except FormatError as error:
            walk.bad(Kind.PAGE_UNREADABLE, error.message, Action.WRITE_PAGE, **where)
            self._next_seq, self._last = ref.next_seq, None
            return
        below = [each for each in held if isinstance(each, PageRef)]
        if found != ref or any(each.level != ref.level - 1 for each in below):
            told = f"it holds something else than what refers to it says: {_differing(found, ref)}"
            walk.bad(Kind.PAGE_STALE, told, Action.WRITE_PAGE, **where)
            self._next_seq, self._last = ref.next_seq, None
            return
        for each in held:
            if isinstance(each, PageRef):
                yield from self.page(each)
            else:
                self.segment(each)

    def segment(self, segment: Segment) -> None:
        walk, last, sealed = self._walk, self._last, segment.sealed
        where: dict[str, Any] = {"segment": segment.number, "ledger_id": segment.ledger_id}
        if last is not None and not (
            last.number < segment.number and last.ledger_id < segment.ledger_id
        ):
            told = f"it stands behind segment {last.number} on ledger {last.ledger_id}"
            walk.bad(Kind.LIST_BROKEN, told, **where)
        if sealed is not None:
            if self._next_seq is not None and sealed.base_seq != self._next_seq:
                told = f"it begins at seq {sealed.base_seq}, and what is before ends at "
                walk.bad(Kind.LIST_BROKEN, f"{told}{self._next_seq}", **where)
            if sealed.next_seq < sealed.base_seq or sealed.last_time_us < sealed.first_time_us:
                walk.bad(Kind.LIST_BROKEN, f"it ends before it begins: {sealed}", **where)
            self._next_seq = sealed.next_seq
        walk.segments.append(segment)
        walk.before.append(last)
        self._last = segment

    def check_ends(self) -> None:
        walk, meta, last = self._walk, self._walk.meta, self._last
        if last is None:
            return
        path = self._layout.log(walk.name)
        if last.number >= meta.next_number or last.ledger_id > meta.ledger_floor:
            told = (
                f"segment {last.number} on ledger {last.ledger_id} is listed, and the next number "
                f"would be {meta.next_number}, the highest ledger {meta.ledger_floor}"
            )
            walk.bad(Kind.LIST_BROKEN, told, path=path, segment=last.number)
        newest = next((s for s in reversed(walk.segments) if s.sealed is not None), None)
        if newest is None or newest.sealed is None:
            return
        end, sealed = meta.end, newest.sealed
        if (end.number, end.ledger_id, end.last_entry, end.next_seq) != (
            newest.number,
            newest.ledger_id,
            sealed.last_entry,
            sealed.next_seq,
        ):
            told = f"the newest sealed segment ends at {sealed}, and the log at {end}"
            walk.bad(Kind.LIST_BROKEN, told, path=path, segment=newest.number)

    def doomed_page(self, number: int, level: int) -> Procedure[None]:
        """What is gone already was deleted, and its ledgers before it."""
        walk = self._walk
        path = self._layout.page(walk.name, number, level)
        walk.pages.add((level, number))
        try:
            node = yield ReadNode(path, fresh=False)
            if level > 0:
                for ref in refs_from_bytes(node.value, where=path):
                    yield from self.doomed_page(ref.number, ref.level)
            else:
                segments = page_from_bytes(node.value, where=path)
                walk.doomed.update(segment.ledger_id for segment in segments)
        except NotFound:
            return
        except FormatError as error:
            told = f"it waits for its deletion: {error.message}"
            walk.bad(Kind.PAGE_UNREADABLE, told, Action.DELETE_PAGE, path=path)


def _differing(found: PageRef, ref: PageRef) -> str:
    pairs = [
        f"{each.name} is {getattr(found, each.name)}, not {getattr(ref, each.name)}"
        for each in dataclasses.fields(PageRef)
        if getattr(found, each.name) != getattr(ref, each.name)
    ]
    return ", ".join(pairs) or "pages of several levels"


def head_number(meta: LogMeta) -> int:
    """No page of the log will ever begin with a smaller number."""
    if meta.pages:
        return meta.pages[0].number
    return meta.segments[0].number if meta.segments else meta.next_number


def _check_nodes(walk: Walk, layout: Layout, nodes: list[str]) -> None:
    is_gone = walk.meta.state in (LogState.DELETING, LogState.DELETED)
    head = head_number(walk.meta)
    for node in nodes:
        path = f"{layout.pages(walk.name)}/{node}"
        found = _PAGE_NODE.fullmatch(node)
        if found is None:
            walk.note(Kind.PAGE_UNUSED, "it has no name that a page has", path=path)
            continue
        number, level = int(found[1]), int(found[2] or 0)
        if (level, number) in walk.pages:
            continue
        if number < head or is_gone:
            told = f"nothing refers to it, and the log begins at segment {head}"
            place = Where(log=walk.name, path=path)
            walk.findings.append(
                Finding(Kind.PAGE_UNUSED, Severity.WARNING, place, told, Action.DELETE_PAGE)
            )
        else:
            told = "nothing refers to it; a writer, or its next try, may be about to"
            walk.note(Kind.PAGE_UNUSED, told, path=path)
