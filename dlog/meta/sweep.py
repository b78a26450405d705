"""Bringing a log's list up to its truncation point: what is wholly before the point leaves it and
waits for its deletion; a page that the point reaches into is trimmed.

A page is immutable, so trimming puts others in its place: a leaf with the segments that stay, and
the neighbours that its ancestors named. The leaf is written before the node names it, and named by
its first segment: the same try again writes the same page. What it replaces is deleted afterwards;
a crash before that leaves pages below the head that nothing names, and the collector deletes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from dlog import limits
from dlog.chance import Chance, backoff_s
from dlog.effects import Answer, CreateNode, DeleteNode, Pause, Procedure, ReadNode, ReplaceNode
from dlog.errors import AlreadyExists, Conflict, Corrupt, DlogError, NotFound, Retry, check
from dlog.meta.cas import Seen, read_log
from dlog.meta.layout import Layout
from dlog.meta.listed import PageRef, Point, Segment
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import page_to_bytes, refs_of, segments_of


@dataclass(frozen=True, slots=True)
class Shortened:
    """What becomes of a list's first page."""

    first: PageRef
    by: tuple[PageRef, ...]
    leaf: tuple[Segment, ...]  # the new one; () if nothing of the old one stays
    gone: tuple[int, ...]  # ledgers
    gone_pages: tuple[PageRef, ...]
    obsolete: tuple[PageRef, ...]  # nodes that nothing names afterwards

    def fits(self, meta: LogMeta) -> bool:
        """There is room where all of it waits for its deletion."""
        ledgers = len(meta.deleting) + len(self.gone)
        pages = len(meta.deleting_pages) + len(self.gone_pages)
        return ledgers <= limits.META_DELETING_MAX and pages <= limits.META_DELETING_PAGES_MAX

    def of(self, meta: LogMeta, now_us: int) -> LogMeta:
        return meta.trimmed(self.first, self.by, self.gone, self.gone_pages, now_us)


@dataclass(frozen=True, slots=True)
class Site:
    """Whose list, and where it is."""

    name: str
    layout: Layout
    uid: str
    chance: Chance

    @property
    def path(self) -> str:
        return self.layout.log(self.name)

    def refuse_another_log(self, meta: LogMeta) -> None:
        if meta.uid != self.uid or meta.is_removed:
            raise NotFound(f"the log {self.name!r} was removed", log=self.name)


def sweep(
    site: Site, seen: Seen, now_us: int, *, attempts_max: int | None = None
) -> Procedure[Seen]:
    """Until nothing is left to do, or no room; the list as it stands then."""
    refused: DlogError | None = None
    is_old = False
    for attempt in range(attempts_max or limits.META_ATTEMPTS_MAX):
        try:
            if is_old:
                seen = yield from read_log(site.path)
                is_old = False
            site.refuse_another_log(seen.meta)
            swept = seen.meta.swept(now_us)
            cut = yield from _shorten_first(site, seen, swept)
            wanted = swept
            if cut is not None:
                yield from _write_leaf(site, cut)
                wanted = cut.of(swept, now_us).swept(now_us)
            if wanted == seen.meta:
                return seen
            version = yield ReplaceNode(
                site.path, wanted.to_bytes(), seen.version, point="truncate.trimmed"
            )
            seen = Seen(wanted, version)
            if cut is not None:
                yield from _delete_nodes(site, cut.obsolete)
            continue
        except DlogError as error:
            if error.retry is not Retry.NOW:
                raise
            refused = error
        is_old = True
        yield Pause(backoff_s(attempt, site.chance))
    if refused is not None:
        raise refused
    return seen


def foresee(site: Site, seen: Seen, meta: LogMeta, now_us: int) -> Procedure[LogMeta]:
    """What sweeping would make of `meta`: of the list that was seen, with another point. Writes
    nothing."""
    swept = meta.swept(now_us)
    cut = yield from _shorten_first(site, seen, swept)
    return swept if cut is None else cut.of(swept, now_us).swept(now_us)


def _shorten_first(site: Site, seen: Seen, meta: LogMeta) -> Procedure[Shortened | None]:
    """None when there is nothing to cut, or no room for what would leave. A page that is wholly
    before the point and still stands there waits for room, or is needed."""
    point = meta.truncate_before
    if not meta.pages or not point.reaches_into(meta.pages[0]) or point.covers_page(meta.pages[0]):
        return None
    cut = yield from of_its_pages(
        site, seen, lambda: shorten(site, meta.pages[0], meta.truncate_before, meta.kept_from)
    )
    return cut if cut is not None and cut.fits(meta) else None


def of_its_pages(
    site: Site, seen: Seen, read: Callable[[], Procedure[Answer]]
) -> Procedure[Answer]:
    """What is read in the pages of a list. Others take the place of pages, so that one may be gone:
    `Conflict`, and its list is old."""
    try:
        return (yield from read())
    except NotFound:
        pass
    now = yield from read_log(site.path)
    if now.version != seen.version:
        raise Conflict("the list changed while it was read", log=site.name)
    try:  # what we wrote ourselves we may not have seen before that sync
        return (yield from read())
    except NotFound as error:
        now = yield from read_log(site.path)
        if now.version != seen.version:
            raise Conflict("the list changed while it was read", log=site.name) from error
        what = f"log {site.name!r}: a page of its list is missing: {error}"
        raise Corrupt(what, log=site.name) from error


def shorten(
    site: Site, first: PageRef, point: Point, kept_from: int | None = None
) -> Procedure[Shortened | None]:
    """Reads the page and, of those in it, the one that the point reaches into, down to a leaf. None
    when no segment of it is covered. What is `kept_from` that number on stays anyhow."""

    def goes(each: PageRef) -> bool:
        is_free = kept_from is None or each.last_number < kept_from
        return is_free and point.covers_page(each)

    gone_pages: list[PageRef] = []
    after: list[PageRef] = []  # what stays, right of the way down
    obsolete = [first]
    ref: PageRef | None = first
    while ref is not None and ref.level > 0:
        refs = yield from read_refs(site.name, site.layout, ref)
        stay = next((i for i, each in enumerate(refs) if not goes(each)), len(refs))
        gone_pages += refs[:stay]
        after[:0] = refs[stay + 1 :]
        ref = refs[stay] if stay < len(refs) else None
        if ref is not None:
            obsolete.append(ref)
    if ref is None:
        return Shortened(first, tuple(after), (), (), tuple(gone_pages), tuple(obsolete))
    segments = yield from read_segments(site.name, site.layout, ref)
    free = (s for s in segments if kept_from is None or s.number < kept_from)
    stay = sum(1 for _ in itertools.takewhile(point.covers, free))
    if stay == 0:
        if not gone_pages:
            return None
        by = (ref, *after)  # the leaf stays as it is, without those above it
        return Shortened(first, by, (), (), tuple(gone_pages), tuple(obsolete[:-1]))
    leaf = segments[stay:]
    by = (PageRef.of_segments(leaf), *after) if leaf else tuple(after)
    gone = tuple(each.ledger_id for each in segments[:stay])
    return Shortened(first, by, leaf, gone, tuple(gone_pages), tuple(obsolete))


def read_refs(name: str, layout: Layout, ref: PageRef) -> Procedure[tuple[PageRef, ...]]:
    path = layout.page(name, ref.number, ref.level)
    node = yield ReadNode(path, fresh=False)
    return refs_of(ref, node.value, where=path)


def read_segments(name: str, layout: Layout, ref: PageRef) -> Procedure[tuple[Segment, ...]]:
    path = layout.page(name, ref.number, ref.level)
    node = yield ReadNode(path, fresh=False)
    return segments_of(ref, node.value, where=path)


def _write_leaf(site: Site, cut: Shortened) -> Procedure[None]:
    if not cut.leaf:
        return
    path = site.layout.page(site.name, cut.leaf[0].number)
    value = page_to_bytes(cut.leaf)
    try:
        yield CreateNode(path, value, point="truncate.page_written")
    except AlreadyExists:  # by a try before
        there = yield ReadNode(path)
        check(there.value == value, "a page never changes", path)


def _delete_nodes(site: Site, refs: tuple[PageRef, ...]) -> Procedure[None]:
    """Nobody needs them any more: what cannot be deleted now, the collector will."""
    for ref in refs:
        path = site.layout.page(site.name, ref.number, ref.level)
        try:
            node = yield ReadNode(path, fresh=False)
            yield DeleteNode(path, node.version, point="truncate.page_deleted")
        except DlogError:
            continue
