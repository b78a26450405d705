"""Ledgers on stock Apache BookKeeper, spoken to directly: no JVM, broker or sidecar in between.

`core/` decides and does no IO: `connection` (which answer belongs to which request), `appender`
(acks, ensemble changes), `entry_read`, `tail_read`, `recovery`, and what they share: `quorum` and
`changes`. `policy` prefers: which bookies. The rest does: `links` is the contract of connections,
`transport` and `pool` keep it; `registry` knows which bookies there are and where; `ledger_nodes`
keeps ledger metadata through a MetaStore that is handed in; `appender`, `reader` and `recovery` are
the drivers of their cores, and `store` the LedgerStore that ties them together: start reading
there. The room may use asyncio and sockets (never in `core/` and `policy`), and no other backend.
"""
