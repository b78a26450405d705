"""Retention: which of the oldest segments a log's options no longer keep. Whole segments, and
sealed ones only: by the age of their last message, and as long as what is kept without them still
holds `retention_bytes`. It only prefers: holds overrule it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlog.effects import Procedure
from dlog.meta.layout import Layout
from dlog.meta.listed import PageRef, Point, Segment
from dlog.meta.log_meta import LogMeta
from dlog.meta.sweep import read_refs, read_segments
from dlog.options import LogOptions

SECOND_US = 1_000_000
Item = PageRef | Segment


def is_limited(options: LogOptions) -> bool:
    return options.retention_age_s is not None or options.retention_bytes is not None


def expired(options: LogOptions, items: Sequence[Item], newer_bytes: int, now_us: int) -> int:
    """How many of the oldest items no limit keeps; behind all of them there are `newer_bytes`."""
    oldest_us = None
    if options.retention_age_s is not None:
        oldest_us = now_us - options.retention_age_s * SECOND_US
    left_bytes = newer_bytes + sum(map(_bytes, items))
    for count, item in enumerate(items):
        left_bytes -= _bytes(item)
        last_time_us = _last_time_us(item)
        if last_time_us is None:
            return count
        too_old = oldest_us is not None and last_time_us < oldest_us
        too_much = options.retention_bytes is not None and left_bytes >= options.retention_bytes
        if not (too_old or too_much):
            return count
    return len(items)


def find_point(name: str, layout: Layout, meta: LogMeta, now_us: int) -> Procedure[Point]:
    """Up to where retention would truncate. Reads pages only on the way down to where it ends."""
    point = meta.truncate_before
    items: tuple[Item, ...] = (*meta.pages, *meta.segments)
    newer_bytes = 0
    while is_limited(meta.options) and items:
        count = expired(meta.options, items, newer_bytes, now_us)
        if count > 0:
            point = point.joined(Point(seq=_next_seq(items[count - 1])))
        if count == len(items):
            break
        partly = items[count]
        newer_bytes += sum(map(_bytes, items[count + 1 :]))
        if isinstance(partly, Segment) or not _may_have_some(meta, partly, newer_bytes, now_us):
            break
        if partly.level > 0:
            items = yield from read_refs(name, layout, partly)
        else:
            items = yield from read_segments(name, layout, partly)
    return point


def _may_have_some(meta: LogMeta, page: PageRef, newer_bytes: int, now_us: int) -> bool:
    options = meta.options
    age_s, most = options.retention_age_s, options.retention_bytes
    by_age = age_s is not None and page.first_time_us < now_us - age_s * SECOND_US
    return by_age or (most is not None and newer_bytes + page.bytes > most)


def _bytes(item: Item) -> int:
    if isinstance(item, PageRef):
        return item.bytes
    return 0 if item.sealed is None else item.sealed.bytes


def _last_time_us(item: Item) -> int | None:
    """None of what is not sealed: it stays."""
    if isinstance(item, PageRef):
        return item.last_time_us
    return None if item.sealed is None else item.sealed.last_time_us


def _next_seq(item: Item) -> int:
    end = item if isinstance(item, PageRef) else item.sealed
    assert end is not None
    return end.next_seq
