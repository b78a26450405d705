"""Bugs of ledgers on bookies, in the cores of appenders, readers and recoveries: each named after
the rule that it breaks, and after the bug that somebody really had, where there was one."""

from __future__ import annotations

from dlog.testing.sim.planted import ledger_appends, ledger_reads, ledger_recoveries
from dlog.testing.sim.planted.ledger_weather import plants

ROOMS = (ledger_appends, ledger_recoveries, ledger_reads)
PLANTS = plants.by_name
