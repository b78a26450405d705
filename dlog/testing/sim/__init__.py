"""The simulator: production cores in a world of simulated bookies, metadata, networks and clocks.

One number is one history. `tape` is chance, `world` is time; `bookie`, `server`, `network` and
`links` are a BookKeeper cluster, `metadata` is a metadata store. Everything the world does wrong it
draws from the tape, and `shrink` makes a tape that broke a promise small enough to be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlog.testing.sim.simulation import Simulation
    from dlog.testing.sim.users import simulate

__all__ = ["Simulation", "simulate"]


def __getattr__(name: str) -> Any:
    """Loaded by those who ask for it: worlds do not need it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no {name}")
    from dlog.testing.sim import users

    return getattr(users, name)
