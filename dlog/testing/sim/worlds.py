"""The worlds there are, by name: each runs one history out of chance, told or not, and raises
`Violation` at the event that breaks a promise. What else is given fixes options of its weather.

A world is imported when it is first asked for: who runs one does not load all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import World

RunHistory = Callable[..., World]


def _run(
    where: str, options: dict[str, Any], chance: Chance, told: bool = False, **fixed: Any
) -> World:
    module, function = where.split(":")
    run: RunHistory = getattr(import_module(module), function)
    return run(chance, told=told, **{**options, **fixed})


def bring(world: str) -> None:
    """Import it now. What it takes from the code when it is imported is what it judges by: so it
    comes before a bug is planted in that code."""
    import_module(WORLDS[world].args[0].partition(":")[0])


def _world(where: str, **options: Any) -> partial[World]:
    """`where` is module:function of `dlog.testing.sim`."""
    return partial(_run, f"dlog.testing.sim.{where}", options)


WORLDS: dict[str, partial[World]] = {
    "drivers": _world("driver_world:run_driver_history"),
    "groups": _world("groups_world:run_group_history"),
    "ledger": _world("ledger_world:run_ledger_history"),
    "ledger-bytes": _world("ledger_world:run_ledger_history", cuts=0.1),
    "log": _world("log_world:run_log_history", ledgers="bookies"),
    "log-abstract": _world("log_world:run_log_history", ledgers="abstract"),
    "log-cuts": _world("log_cuts:run_cut_history"),
    "log-fsck": _world(
        "log_world:run_log_history", ledgers="abstract", life=1.0, checkers=2, standbys=1
    ),
    "log-repair": _world("log_damage_world:run_repair_history"),
    "log-jobs": _world(
        "log_world:run_log_history", ledgers="abstract", publishers=2, incarnations=2
    ),
    "log-life": _world("log_world:run_log_history", ledgers="abstract", life=1.0),
    "streams": _world("stream_world:run_stream_history"),
    "log-life-bookies": _world("log_world:run_log_history", ledgers="bookies", life=1.0),
    "streams-life": _world("streams_life_world:run_life_history"),
    "streams-config": _world("streams_config:run_config_history"),
    "streams-health": _world("streams_health:run_health_history"),
    "workers": _world("workers_run:run_workers_history"),
}
