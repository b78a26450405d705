"""What every LedgerStore does, as checks named after behaviours: the only proof of the contract.

A check is an async function that takes `make`, which gives a further store on the same ledgers (as
another process would be). `ALL` holds every check, by name. A check fails by `AssertionError` or by
the error that should not have come; it never sleeps: it waits for the fact, with a bound.
"""

from __future__ import annotations

# Each of these rooms adds its checks as it is loaded.
from dlog.testing.conformance import ledger_appends, ledger_ends, ledger_reads
from dlog.testing.conformance.ledger_tools import ALL, Check, Make

__all__ = ["ALL", "Check", "Make", "ledger_appends", "ledger_ends", "ledger_reads"]
