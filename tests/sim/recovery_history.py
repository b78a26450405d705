"""One history of ledger recovery from a seed: trouble, then calm, then everything must be right."""

from __future__ import annotations

from functools import partial
from typing import Any

from dlog.errors import Corrupt, Unavailable
from dlog.ledger.store import ClosedLedger
from dlog.wire.ledger_metadata import LedgerState
from tests.sim.recovery_actors import SimAppender, SimRecoverer, stored
from tests.sim.recovery_world import Violation, World

TROUBLE_MS = 60_000.0
CALM_MS = 200_000.0


def play(seed: int, *, audit: bool = True, **weather: Any) -> World:
    """Without the audit of what the cores give as evidence, only what comes of it is judged."""
    world = World(seed, **weather)
    world.audit = audit
    SimAppender(world)
    recoverers: list[SimRecoverer] = []

    def come(number: int) -> None:
        recoverers.append(SimRecoverer(world, f"recoverer {number}"))

    slow = world.weather.slow_ms
    for number in range(world.weather.recoverers):
        world.after(world.chance.uniform(0, 40 * slow), partial(come, number))
    world.run(
        TROUBLE_MS,
        done=lambda: (
            len(recoverers) == world.weather.recoverers and all(each.is_over for each in recoverers)
        ),
    )
    _calm_down(world)
    last = SimRecoverer(world, "the last recoverer", mortal=False)
    world.run(CALM_MS + world.now_ms, done=lambda: last.is_over)
    world.run(20_000 + world.now_ms)  # what is still on its way may not change anything
    if not last.ends:
        return _without_end(world, last)
    _check(world, [*recoverers, last])
    return world


def _calm_down(world: World) -> None:
    world.is_calm = True
    for bookie in world.bookies.values():
        bookie.frozen_until_ms = 0.0
        bookie.is_up = True


def _without_end(world: World, last: SimRecoverer) -> World:
    """Only where a bookie lost everything may nobody know the end any more."""
    excused = world.weather.wipes > world.wipes_left
    if not excused or not all(isinstance(each, (Unavailable, Corrupt)) for each in last.errors):
        raise Violation(f"I27: no end in calm weather: {last.errors}")
    world.mark("no end")
    return world


def _check(world: World, recoverers: list[SimRecoverer]) -> None:
    metadata = world.meta.stored
    if metadata.state is not LedgerState.CLOSED:
        raise Violation("an end was told and the ledger is not closed")
    end = ClosedLedger(metadata.last_entry_id, metadata.length_bytes)
    for each in recoverers:
        for told in each.ends:
            if told != end:
                raise Violation(f"I10: {each.name} says {told}, the metadata {end}")
    world.check_stands(metadata)
    for bookie in world.bookies.values():
        for raw in bookie.entries.values():
            if stored(raw).last_confirmed > end.last_entry:
                raise Violation("I3: a header confirms what the closed ledger does not have")
