"""A group in a world without faults, for tests of what workers do: virtual time, every delay the
shortest, and a record of what was asked and ordered."""

from __future__ import annotations

from typing import Any

from dlog.groups.asks import Ask, Order
from dlog.testing.sim import groups_worker
from dlog.testing.sim.groups_swarm import GroupWeather
from dlog.testing.sim.groups_world import GroupScene
from dlog.testing.sim.tape import of_tape
from dlog.testing.sim.world import World

TIMEOUT_MS = 200.0


class CalmGroup:
    def __init__(self, shards: int = 2, **weather: Any) -> None:
        self.world = World(of_tape([]), told=True)
        self.scene = GroupScene(self.world, GroupWeather(shards=shards, **weather))
        self.oracle = self.scene.oracle
        self.told: list[tuple[str, Any]] = []  # (worker, what it asked for or ordered)

    def start(self, name: str | None = None) -> groups_worker.SimMember:
        member = self.scene.spawn(name)
        ask, obey = member._ask, member._obey

        def asking(what: Ask) -> None:
            self.told.append((member.name, what))
            ask(what)

        def obeying(what: Order) -> None:
            self.told.append((member.name, what))
            obey(what)

        member._ask, member._obey = asking, obeying  # type: ignore[method-assign]
        return member

    def run(self, ms: float) -> None:
        self.world.run(until_ms=self.world.now_ms + ms)

    def owners(self) -> dict[str, str | None]:
        return {
            shard: None if lease.consumer is None else lease.consumer.name
            for shard, lease in sorted(self.oracle.leases.items())
        }

    def of(self, kind: type, worker: str | None = None) -> list[Any]:
        return [
            what for name, what in self.told if isinstance(what, kind) and worker in (None, name)
        ]
