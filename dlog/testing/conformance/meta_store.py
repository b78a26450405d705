"""The MetaStore contract as checks. `CHECKS` is all of them; `LOSS_CHECKS` need a way to lose a
session behind its owner's back.

A check gets `make`, which returns a new store, a session of its own, on one tree that is empty when
the check begins; whoever runs the check closes what it made. Backends may deliver late, so what
needs time is waited for, up to `PATIENCE_S`. Importing the modules registers their checks.
"""

from __future__ import annotations

from dlog.testing.conformance import meta_nodes, meta_races, meta_sessions, meta_watches
from dlog.testing.conformance.meta_tools import (
    CHECKS,
    LOSS_CHECKS,
    PATIENCE_S,
    Check,
    Lose,
    LossCheck,
    Make,
)

MODULES = (meta_nodes, meta_races, meta_sessions, meta_watches)

__all__ = ["CHECKS", "LOSS_CHECKS", "MODULES", "PATIENCE_S", "Check", "Lose", "LossCheck", "Make"]
