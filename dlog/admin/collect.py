"""The collector: what was truncated is deleted, once its grace is over. One log, one pass, a
procedure that can be run by anybody at any time, by several at once, and again after a crash at any
step.

First what retention truncates, and what found no room before, leaves the list. A ledger is deleted
only while it waits in the log meta for its deletion (so no list has it, and none ever will again),
and only once it is closed; then the log meta forgets it. What cannot be deleted now waits for the
next pass, and is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dlog import limits
from dlog.admin.doomed import Gone, delete_ledger, delete_page
from dlog.admin.summary import Collection
from dlog.admin.truncate import known_head_seq, ledgers_left
from dlog.effects import DeleteNode, ListNodes, Procedure, ReadNode
from dlog.errors import AlreadyExists, Broken, Conflict, DlogError, NotFound
from dlog.meta.cas import Seen, change_log, read_log
from dlog.meta.holds import Hold
from dlog.meta.layout import unescape
from dlog.meta.log_meta import LogMeta
from dlog.meta.pages import refs_from_bytes
from dlog.meta.retention import SECOND_US
from dlog.meta.sweep import Site, sweep
from dlog.meta.truncation import Moved, Newest, retain
from dlog.reader.segments import SegmentView


@dataclass(slots=True)
class _Pass:
    site: Site
    now_us: Callable[[], int]
    seen: Seen
    gone: Gone = field(default_factory=Gone)
    pages: int = 0
    left: int = 0
    nodes: int = 0
    failed: set[tuple[int, int]] = field(default_factory=set)  # level and number; ledgers at -1
    problems: list[str] = field(default_factory=list)


_LEDGERS = -1


def collect(
    view: SegmentView, site: Site, now_us: Callable[[], int], newest_us: Newest | None = None
) -> Procedure[Collection]:
    """The view must be fresh. `newest_us` as of `retain`."""
    moved: Moved = yield from retain(site, now_us(), newest_us=newest_us)
    at_work = _Pass(site, now_us, moved.seen, left=ledgers_left(moved))
    if moved.unswept is not None:
        at_work.problems.append(str(moved.unswept))
    held = moved.holds if moved.is_held else ()
    while (yield from _delete_some(at_work)):
        before = at_work.seen.meta
        at_work.seen = yield from sweep(site, at_work.seen, now_us())
        at_work.left += ledgers_left(Moved(before, at_work.seen, before.truncate_before, ()))
    for attempt in (_delete_stale_pages, _delete_stale_holds):
        try:
            yield from attempt(at_work)
        except DlogError as error:
            _fail(at_work, error)
    view.seen = at_work.seen
    head_seq = yield from known_head_seq(view)
    meta = at_work.seen.meta
    return Collection(
        log=site.name,
        done=True,
        head_seq=head_seq,
        truncated=at_work.left,
        deleted=at_work.gone.ledgers,
        bytes=at_work.gone.bytes,
        unsized=0,
        pages=at_work.pages,
        nodes=at_work.nodes,
        waiting=len(meta.deleting) + len(meta.deleting_pages),
        held_by=tuple(hold.name for hold in held),
        problems=tuple(at_work.problems),
    )


def is_due(since_us: int, meta: LogMeta, now_us: int) -> bool:
    return now_us - since_us >= meta.options.deletion_grace_s * SECOND_US


def _delete_some(at_work: _Pass) -> Procedure[bool]:
    """Some of what is due, as one compare-and-set forgets it. False when nothing was left to do."""
    meta, now_us, site = at_work.seen.meta, at_work.now_us(), at_work.site
    ledgers = [
        doomed.ledger_id
        for doomed in meta.deleting
        if is_due(doomed.since_us, meta, now_us)
        and (_LEDGERS, doomed.ledger_id) not in at_work.failed
    ][: limits.COLLECT_AT_ONCE]
    pages = [
        (doomed.level, doomed.number)
        for doomed in meta.deleting_pages
        if is_due(doomed.since_us, meta, now_us)
        and (doomed.level, doomed.number) not in at_work.failed
    ][:1]
    if not ledgers and not pages:
        return False
    gone_ledgers, gone_pages = set[int](), set[tuple[int, int]]()
    point = "collect.ledger_deleted"
    for ledger_id in ledgers:
        try:
            at_work.gone += yield from delete_ledger(ledger_id, meta.digest, point)
            gone_ledgers.add(ledger_id)
        except DlogError as error:
            _fail(at_work, error, (_LEDGERS, ledger_id))
    for level, number in pages:
        try:
            at_work.gone += yield from delete_page(
                site.name, site.layout, number, level, meta.digest, point
            )
            gone_pages.add((level, number))
            at_work.pages += 1
        except DlogError as error:
            _fail(at_work, error, (level, number))
    if gone_ledgers or gone_pages:
        yield from _forget(at_work, gone_ledgers, gone_pages)
    return True


def _forget(at_work: _Pass, ledgers: set[int], pages: set[tuple[int, int]]) -> Procedure[None]:
    site = at_work.site

    def change(meta: LogMeta) -> LogMeta:
        site.refuse_another_log(meta)
        return meta.forgotten(ledgers, pages)

    at_work.seen = yield from change_log(
        site.path,
        at_work.seen,
        change,
        is_done=lambda meta: meta.uid == site.uid and change(meta) == meta,
        chance=site.chance,
        point="collect.forgotten",
    )


def _fail(at_work: _Pass, error: DlogError, what: tuple[int, int] | None = None) -> None:
    if isinstance(error, Broken):
        raise error
    at_work.problems.append(str(error))
    if what is not None:
        at_work.failed.add(what)


# --- nodes that nothing names: left by those who died between two steps


def _delete_stale_pages(at_work: _Pass) -> Procedure[None]:
    """Below the head nothing is ever written again that the list will name."""
    site = at_work.site
    at_work.seen = yield from read_log(site.path)
    meta = at_work.seen.meta
    site.refuse_another_log(meta)
    for level, number in (yield from stale_pages(site, meta)):
        yield from _delete_node(at_work, site.layout.page(site.name, number, level))


def stale_pages(site: Site, meta: LogMeta) -> Procedure[list[tuple[int, int]]]:
    """Level and number of each."""
    try:
        names = yield ListNodes(site.layout.pages(site.name))
    except NotFound:
        return []
    head = first_number(meta)
    named = [page for name in names if (page := _page_named(name)) is not None]
    stale = [(level, number) for level, number in named if number < head]
    if not stale:
        return []
    kept = set[tuple[int, int]]()
    for doomed in meta.deleting_pages:
        yield from _keep(site, doomed.level, doomed.number, kept)
    return [page for page in stale if page not in kept]


def first_number(meta: LogMeta) -> int:
    """Of the segments in the list."""
    if meta.pages:
        return meta.pages[0].number
    return meta.segments[0].number if meta.segments else meta.next_number


def _page_named(name: str) -> tuple[int, int] | None:
    number, _, level = name.partition(".")
    if not number.isdecimal() or not (level or "0").isdecimal():
        return None  # not ours
    return int(level or "0"), int(number)


def _keep(site: Site, level: int, number: int, kept: set[tuple[int, int]]) -> Procedure[None]:
    """A page that waits for its deletion names what has to go before it does."""
    kept.add((level, number))
    if level == 0:
        return
    path = site.layout.page(site.name, number, level)
    try:
        node = yield ReadNode(path, fresh=False)
    except NotFound:
        return  # it goes last, so all below it is gone
    for ref in refs_from_bytes(node.value, where=path):
        yield from _keep(site, ref.level, ref.number, kept)


def _delete_stale_holds(at_work: _Pass) -> Procedure[None]:
    for path in (yield from stale_holds(at_work.site)):
        yield from _delete_node(at_work, path)


def stale_holds(site: Site) -> Procedure[list[str]]:
    """Of logs of this name that were removed."""
    found: list[str] = []
    try:
        names = yield ListNodes(site.layout.holds(site.name))
    except NotFound:
        return found
    for name in map(unescape, names):
        path = site.layout.hold(site.name, name)
        try:
            value, _ = yield ReadNode(path, fresh=False)
        except NotFound:
            continue
        if Hold.from_bytes(value, name, where=path).log_uid != site.uid:
            found.append(path)
    return found


def _delete_node(at_work: _Pass, path: str) -> Procedure[None]:
    try:
        node = yield ReadNode(path)
        yield DeleteNode(path, node.version, point="collect.stale_deleted")
    except (NotFound, Conflict, AlreadyExists):
        return  # somebody else was faster
    at_work.nodes += 1
