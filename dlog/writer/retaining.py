"""Retention as a duty of the writer, behind each rotation: truncate what the log's options no
longer keep. It is in nobody's way: a few tries, and what fails is made up for behind the next
rotation, or by the collector."""

from __future__ import annotations

import logging

from dlog.effects import Procedure
from dlog.errors import Broken, DlogError
from dlog.meta.cas import Seen
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
        moved = yield from retain(site, who.now_us(), attempts_max=TRIES_MAX)
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


def _take(core: WriterCore, seen: Seen) -> None:
    """The next change begins with what stands there now, if the log is ours in it."""
    if seen.meta.owned_by(core.identity.token):
        core.seen = seen
