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
        # numbers of producers
        "producers.marked",
        "producers.tabled",
        "takeover.counted",
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
        # the end of a log
        "remove.marked",
        "remove.ledger_deleted",
        "remove.forgotten",
    }
)

# Of where a log begins and ends: truncation, holds, the collector.
LIFE_POINTS = frozenset(
    {
        "truncate.marked",
        "truncate.page_written",
        "truncate.trimmed",
        "truncate.page_deleted",  # an obsolete one
        "hold.created",
        "hold.counted",  # in the log meta, which no truncation overlooks
        "hold.made",
        "hold.moved",
        "hold.dropped",
        "collect.ledger_deleted",
        "collect.forgotten",
        "collect.stale_deleted",  # a page that nothing names, a hold of a log that is gone
        "terminate.sealed",  # by its writer
        "terminate.marked",  # of a log that nobody writes
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

# Of a standby, which keeps a ledger ready for a takeover that may never come.
STANDBY_POINTS = frozenset(
    {
        "standby.read",
        "standby.created",
        "standby.born",
        "standby.replaced",  # a ledger that fell below the floor is deleted
    }
)

# Of a log whose metadata moves to another store.
MOVE_POINTS = frozenset(
    {
        "move.left",
        "move.made",  # its node, where it goes, not open yet
        "move.put",  # a page or a hold
        "move.arrived",
    }
)

# Of a repair, which does what a plan says.
REPAIR_POINTS = frozenset(
    {
        "repair.page_written",
        "repair.page_deleted",
        "repair.ledger_deleted",
        "repair.resealed",
        "repair.tail_taken",  # over
        "repair.tail_left",
    }
)

# Of a repair of ledgers on bookies.
COPY_POINTS = frozenset(
    {
        "copies.written",  # a run of them, to one bookie
        "copies.read_back",
        "copies.moved",  # as metadata has it from now on
        "copies.end_amended",
    }
)

# Of segments that jobs fill, and of publishing them.
JOB_POINTS = frozenset(
    {
        "job.created",
        "job.born",
        "job.closed",
        "job.deleted",  # given up, or it stayed empty
        "publish.claimed",
        "publish.looked",  # once more at what is to be listed
        "publish.page_written",
        "publish.committed",
        "discard.marked",  # from now on nobody may list it
        "discard.deleted",
        "discard.forgotten",
    }
)

# Of streams: their shards, and what a change of them sets off.
STREAM_POINTS = frozenset(
    {
        "stream.made",
        "stream.resharded",  # decided: parents are sealed, children are there
        "stream.log_ended",
        "stream.ended",  # that the logs have ended, the list says
        "stream.numbers_kept",  # of producers, for a child
        "stream.lane_opened",
        "stream.resent",
        "stream.terminated",
        "stream.forgotten",  # by a trim
        "stream.log_removed",  # of a trimmed shard, or of a stream that is removed
        "stream.cleared",  # that the logs of trimmed shards are removed, the node says
        "stream.removed",
    }
)

# Of groups: what their workers write down for each other.
GROUP_POINTS = frozenset(
    {
        "group.chartered",
        "group.registered",
        "group.renewed",
        "group.left",
        "group.buried",  # a worker that was silent
        "group.weighed",
        # of a lease
        "group.opened",  # the log that it is kept in
        "group.appended",
        "group.announced",
        "group.claimed",
        "group.saved",
        "group.released",
        "group.finished",
        "group.reset",
    }
)

# Of a document that changes while programs run.
CONFIG_POINTS = frozenset(
    {
        "config.kept",  # the version that was the newest, as a node of its own
        "config.changed",
        "config.swept",  # an older version that is not kept any more
        "options.told",  # a log's own options, by its writer
    }
)

KNOWN_POINTS = (
    POINTS
    | STREAM_POINTS
    | GROUP_POINTS
    | LIFE_POINTS
    | BOOKIE_POINTS
    | STANDBY_POINTS
    | MOVE_POINTS
    | REPAIR_POINTS
    | COPY_POINTS
    | JOB_POINTS
    | CONFIG_POINTS
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
    check(point in KNOWN_POINTS, "a crash point is listed in trace", point)
    if _listener is not None:
        _listener(point, side)
