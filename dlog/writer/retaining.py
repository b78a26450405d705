"""Retention as a duty of the writer, behind each rotation: truncate what the log's options no
longer keep. It is in nobody's way: a few tries, and what fails is made up for behind the next
rotation, or by the collector."""

from __future__ import annotations

import logging

from dlog.effects import Procedure
from dlog.errors import Broken, DlogError
from dlog.meta.cas import Seen
from dlog.meta.log_meta import LogMeta
from dlog.meta.sweep import Site
from dlog.meta.truncation import retain
from dlog.writer.core import WriterCore

_log = logging.getLogger("dlog.writer")

TRIES_MAX = 3


def retain_log(core: WriterCore) -> Procedure[None]:
    core.retention_due = False
    who, seen = core.identity, core.seen
    site = Site(who.name, who.layout, seen.meta.uid, who.chance)
    try:
        moved = yield from retain(
            site,
            who.now_us(),
            newest_us=lambda meta: _newest_us(core, meta),
            attempts_max=TRIES_MAX,
        )
    except Broken:
        raise
    except DlogError as error:
        _log.warning("log %s: retention waits for the next rotation: %s", who.name, error)
        return
    _take(core, moved.seen)
    if moved.unswept is not None:
        _log.warning("log %s: truncated, but not swept: %s", who.name, moved.unswept)
    if moved.is_held:
        names = ", ".join(hold.name for hold in moved.holds)
        _log.info("log %s: holds keep what retention would not: %s", who.name, names)


def _newest_us(core: WriterCore, meta: LogMeta) -> int:
    """The time that ages of messages count from: of those that this writer stamped, its own clock.
    Earlier ones were stamped by other clocks, which this one need not agree with. Since the last of
    them passed at least what passed since this writer opened."""
    now_us, mark = core.identity.now_us(), meta.writer
    if core.identity.is_copy:  # its messages have the times of another log
        return min(now_us, meta.end.last_time_us)
    ends = (*meta.pages, *(each.sealed for each in meta.segments))
    if not ends or ends[0] is None or ends[0].base_seq >= core.opened_end.next_seq:
        return now_us
    passed_us = max(0, now_us - mark.since_us) if mark is not None else 0
    return min(now_us, core.opened_end.last_time_us + passed_us)


def _take(core: WriterCore, seen: Seen) -> None:
    """The next change begins with what stands there now, if the log is ours in it."""
    if seen.meta.owned_by(core.identity.token):
        core.seen = seen
