"""One history of real workers, from its weather to its verdict."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from typing import Any

from dlog.groups.dead_letters import DeadLetters
from dlog.groups.lease_driver import LeaseDriver
from dlog.groups.leases import Lease
from dlog.testing.sim.driver_world import settings
from dlog.testing.sim.garbage import forget_frames
from dlog.testing.sim.loop_process import silence
from dlog.testing.sim.simulation import simulated_clients
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.workers_oracle import WorkersOracle
from dlog.testing.sim.workers_process import simulated_hearts
from dlog.testing.sim.workers_swarm import draw_workers_weather
from dlog.testing.sim.workers_world import WorkersHistory
from dlog.testing.sim.world import World, require

EVENTS_MAX = 1_500_000


def run_workers_history(chance: Chance, *, told: bool = False, **fixed: Any) -> World:
    """Raises `Violation` at the event that breaks a promise. `fixed` sets options of the weather
    instead of drawing them."""
    world = World(chance, told=told)
    world.events_max = EVENTS_MAX
    weather = draw_workers_weather(chance)
    weather.fix(**fixed)
    with settings(world) as unheard, simulated_clients(world), simulated_hearts():
        history = WorkersHistory(world, weather)
        try:
            with observed(history.oracle):
                history.run()
            gc.collect(0)
            require(not unheard, "I25", "a failure or a leak was told to nobody", *unheard[:5])
        finally:
            with silence():
                history.dispose()
                broken = sys.exc_info()[1]
                forget_frames(broken)
                del history
                # What a broken history leaves would be told in the middle of another one.
                gc.collect(1 if broken is None else 2)
    return world


@contextlib.contextmanager
def observed(oracle: WorkersOracle) -> Iterator[None]:
    """What is appended to lease logs and to the dead letters is told."""
    appending, opening, burying = LeaseDriver._append, LeaseDriver._open, DeadLetters.put

    async def append(self: LeaseDriver, shard: str, epoch: int, value: bytes, cuts: bool) -> None:
        lease = Lease.from_bytes(value, where="a lease log")
        oracle.on_append(lease)
        await appending(self, shard, epoch, value, cuts)
        oracle.on_appended(lease)

    async def open(self: LeaseDriver, shard: str) -> Any:
        oracle.on_opening(shard)
        opened = await opening(self, shard)
        oracle.on_opened(shard, opened.epoch)
        return opened

    async def put(
        self: DeadLetters, shard: str, uid: str, message: Any, *rest: Any, **how: Any
    ) -> None:
        await burying(self, shard, uid, message, *rest, **how)
        oracle.buried.add(message.value)

    LeaseDriver._append, LeaseDriver._open = append, open  # type: ignore[method-assign]
    DeadLetters.put = put  # type: ignore[method-assign]
    try:
        yield
    finally:
        LeaseDriver._append, LeaseDriver._open = appending, opening  # type: ignore[method-assign]
        DeadLetters.put = burying  # type: ignore[method-assign]
