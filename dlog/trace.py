"""Crash points: the named steps of every protocol, announced as they are reached.

A step is announced twice, `before` its effect leaves us and `after` its fact arrived, so that a
test can kill or freeze the process on both sides of each message. In production nobody listens and
an announcement is one test of a global. `POINTS` is the full list: announcing a name that is not in
it is a bug, and a test fails if one was never hit.
"""

from __future__ import annotations

from collections.abc import Callable

from dlog.errors import check

POINTS = frozenset(
    {
        # takeover (log-protocol: claim, fence and recover, decide, commit, seam)
        "takeover.read",
        "takeover.claimed",
        "takeover.created",
        "takeover.born",
        "takeover.recovered",
        "takeover.decided",
        "takeover.committed",
        "takeover.seam",
        # rotation
        "rotate.created",
        "rotate.born",
        "rotate.listed",
        "rotate.switched",
        "rotate.drained",
        "rotate.closed",
        "rotate.released",
        # a ledger that cannot go on
        "heal.listed",
        "heal.recovered",
        "heal.rebuilt",
        # append
        "append.pushed",
        "append.confirmed",
        "append.published",
        "append.acked",
        # close and hand-over
        "close.drained",
        "close.closed",
        "close.sealed",
        # ledger store, embedded
        "ledger.node_created",
        "ledger.file_created",
        "ledger.written",
        "ledger.synced",
        "ledger.looked",
        "ledger.fenced",
        "recover.scanned",
        "recover.closed",
        # meta store, sqlite
        "meta.begun",
        "meta.committed",
        # reader
        "read.entered",
        "read.run",
        "read.delivered",
        "read.crossed",
        # life of a log
        "remove.marked",
        "remove.ledger_deleted",
        "remove.forgotten",
    }
)

# Of ledgers on bookies: tests with real servers, and the simulator, reach these.
BOOKIE_POINTS = frozenset(
    {
        "bookie.created",  # ledger metadata made
        "bookie.sent",  # a run of adds to one bookie
        "bookie.change_stored",  # an ensemble change
        "bookie.resent",
        "bookie.checked",  # metadata looked at again before a new connection counts
        "bookie.published",  # an explicit LAC
        "bookie.closed",
        "recovery.marked",
        "recovery.fenced",
        "recovery.read",
        "recovery.written_back",
        "recovery.closed",
    }
)

_listener: Callable[[str, str], None] | None = None


def listen(listener: Callable[[str, str], None] | None) -> None:
    """Tests only: `listener(point, side)` runs at every announcement, on the thread that reached
    it."""
    global _listener
    _listener = listener


def before(point: str) -> None:
    if _listener is not None:
        _announce(point, "before")


def after(point: str) -> None:
    if _listener is not None:
        _announce(point, "after")


def _announce(point: str, side: str) -> None:
    check(point in POINTS or point in BOOKIE_POINTS, "a crash point is listed in trace", point)
    if _listener is not None:
        _listener(point, side)
