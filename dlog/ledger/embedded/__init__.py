"""Ledgers as files on a local disk, shared by the processes of one host without a server or a lock.

The room keeps one data file and one small mapped *words* file per ledger, and decides a ledger's
end by compare-and-set in the MetaStore it was handed. It may touch the floor, wire and the two
contracts. A paused writer is held off by one rule, **store, then look**: the appender writes,
syncs, and only then looks at the fence word; the fencer sets the fence and only then scans.
Whichever came first, either the scan sees the entry or the appender sees the fence.

Start at `store`; then `file` (the bytes), `words` (what processes tell each other), `committer`
(the one thread that writes), `recovery` (finding the end).
"""

from dlog.ledger.embedded.store import EmbeddedLedgerStore

__all__ = ["EmbeddedLedgerStore"]
