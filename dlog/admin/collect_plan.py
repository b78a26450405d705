"""What a pass of the collector would do to a log now, as a procedure that changes nothing: what is
deleted, what leaves the list and waits from then on, and what waits already."""

from __future__ import annotations

from collections.abc import Callable

from dlog.admin.collect import is_due, stale_holds, stale_pages
from dlog.admin.doomed import Gone
from dlog.admin.summary import Collection
from dlog.admin.truncate import is_full, known_head_seq, ledgers_left
from dlog.effects import LookAtLedger, Procedure, ReadNode
from dlog.errors import Corrupt, NotFound, Timeout, Unavailable
from dlog.meta.pages import page_from_bytes, refs_from_bytes
from dlog.meta.sweep import Site
from dlog.meta.truncation import Newest, retain
from dlog.reader.segments import SegmentView


def plan_collection(
    view: SegmentView, site: Site, now_us: Callable[[], int], newest_us: Newest | None = None
) -> Procedure[Collection]:
    """The view must be fresh. `newest_us` as of `retain`."""
    now = now_us()
    moved = yield from retain(site, now, newest_us=newest_us, pretend=True)
    meta = moved.after
    ledgers = [doomed.ledger_id for doomed in meta.deleting if is_due(doomed.since_us, meta, now)]
    pages = [each for each in meta.deleting_pages if is_due(each.since_us, meta, now)]
    gone, unsized = Gone(), 0
    for ledger_id in ledgers:
        try:
            closed = (yield LookAtLedger(ledger_id)).closed
        except NotFound:
            continue
        except (Corrupt, Unavailable, Timeout):
            closed = None
        gone += Gone(1, 0 if closed is None else closed.bytes)
        unsized += closed is None
    for page in pages:
        gone += yield from _in_page(site, page.number, page.level)
    nodes = len((yield from stale_pages(site, moved.before)))
    nodes += len((yield from stale_holds(site)))
    view.seen = moved.seen
    head_seq = yield from known_head_seq(view)
    full = f"{len(meta.deleting)} ledgers and {len(meta.deleting_pages)} pages of them wait: more "
    return Collection(
        log=site.name,
        done=False,
        head_seq=head_seq,
        truncated=ledgers_left(moved),
        deleted=gone.ledgers,
        bytes=gone.bytes,
        unsized=unsized,
        pages=len(pages),
        nodes=nodes,
        waiting=len(meta.deleting) + len(meta.deleting_pages) - len(ledgers) - len(pages),
        held_by=tuple(hold.name for hold in moved.holds if moved.is_held),
        problems=(f"{full}leaves the list once there is room",) if is_full(meta) else (),
    )


def _in_page(site: Site, number: int, level: int) -> Procedure[Gone]:
    """Of a page that left the list: all below it is sealed, and deleted with it."""
    path = site.layout.page(site.name, number, level)
    gone = Gone()
    try:
        value = (yield ReadNode(path)).value
    except NotFound:
        return gone  # by another collector
    if level == 0:
        for segment in page_from_bytes(value, where=path):
            gone += Gone(1, 0 if segment.sealed is None else segment.sealed.bytes)
        return gone
    for ref in refs_from_bytes(value, where=path):
        gone += yield from _in_page(site, ref.number, ref.level)
    return gone
