"""Large groups in a calm world: in how many rounds they are even, and what they ask of metadata
when they are. A round is over when every worker has planned once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dlog import limits
from dlog.groups.view import WorkerId
from dlog.testing.sim.groups_swarm import GroupWeather
from dlog.testing.sim.groups_worker import SimMember
from dlog.testing.sim.groups_world import GroupScene, decoded_once
from dlog.testing.sim.tape import of_seed
from dlog.testing.sim.world import World

PATIENCE_MS = 600_000.0
LOOK_MS = 5.0
STEADY_MS = 120_000.0


@dataclass(frozen=True, slots=True)
class Evened:
    """How a group came to be even, from when something happened to it."""

    rounds: int
    plans_most: int  # of one worker
    moves: int
    took_ms: float


class Crowd:
    def __init__(self, shards: int, *, seed: int = 0, store: str = "nodes") -> None:
        self.world = World(of_seed(seed))
        self.world.events_max = 50_000_000
        self.world.is_calm = True
        weather = GroupWeather(
            shards=shards,
            messages=0,
            store=store,
            timeout_s=limits.GROUP_TIMEOUT_MS_DEFAULT / 1000,
        )
        self.scene = GroupScene(self.world, weather)
        self._began: dict[WorkerId, int] = {}
        self._changes = 0
        self._began_ms = 0.0

    def _note(self) -> None:
        self._began = {each.id: each.core.agenda.plans for each in self.scene.living()}
        self._changes, self._began_ms = self.scene.oracle.changes, self.world.now_ms

    # --- what happens to it

    def begin(self, workers: int, within_ms: float = 1_000.0) -> Evened:
        """All of them start."""
        return self._after(lambda: self._spawn(workers, within_ms))

    def join(self, workers: int, within_ms: float = 1_000.0) -> Evened:
        return self._after(lambda: self._spawn(workers, within_ms))

    def lose(self, workers: int) -> Evened:
        """At one moment. How long it takes counts from there."""

        def lose() -> None:
            for each in self.scene.living()[:workers]:
                self.scene.weather.restarts = 0.0
                each.alive = False
                each.processors.clear()

        return self._after(lose)

    def leave(self, workers: int) -> Evened:
        def leave() -> None:
            for each in self.scene.living()[:workers]:
                each.leave()

        return self._after(leave)

    def _spawn(self, workers: int, within_ms: float) -> None:
        for number in range(workers):
            self.world.after(within_ms * number / workers, self._one)

    def _one(self) -> None:
        self.scene.spawn()

    # --- how it goes

    def _after(self, what: Callable[[], None]) -> Evened:
        with decoded_once():
            self._note()
            what()
            self.world.run(until_ms=self.world.now_ms + 1_001.0)
            end_ms = self.world.now_ms + PATIENCE_MS
            while not self._is_even():
                assert self.world.now_ms < end_ms, "it does not become even"
                self.world.run(until_ms=self.world.now_ms + LOOK_MS)
        plans = [
            each.core.agenda.plans - self._began.get(each.id, 0) for each in self.scene.living()
        ]
        moves = self.scene.oracle.changes - self._changes
        took_ms = self.world.now_ms - self._began_ms
        return Evened(min(plans) + (min(plans) < max(plans)), max(plans), moves, took_ms)

    def _is_even(self) -> bool:
        living = [each for each in self.scene.living() if not each.core.is_leaving]
        counts = {each.id: 0 for each in living}
        leases = self.scene.oracle.leases
        if len(leases) < len(self.scene.shards):
            return False
        for lease in leases.values():
            if lease.consumer not in counts or lease.owner != lease.consumer:
                return False
            counts[lease.consumer] += 1
        return max(counts.values()) - min(counts.values()) <= 1

    def asked_per_second(self, span_ms: float = STEADY_MS) -> tuple[float, float]:
        """Metadata operations of a worker while nothing happens: on average, and of the busiest."""
        with decoded_once():
            # What came late by its own timer is over by then.
            self.world.run(until_ms=self.world.now_ms + span_ms / 2)
            before = {each: each.asked for each in self.scene.living()}
            self.world.run(until_ms=self.world.now_ms + span_ms)
        asked = [1000 * (each.asked - count) / span_ms for each, count in before.items()]
        return sum(asked) / len(asked), max(asked)

    def members(self) -> list[SimMember]:
        return self.scene.living()
