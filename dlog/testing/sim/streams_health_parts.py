"""What histories of health and routing are made of: what may go wrong, endpoints that come and go,
and the place that all of them write to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from dlog.streams.routing.arrivals import Arrivals
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import World


@dataclass(frozen=True, slots=True)
class HealthWeather:
    endpoints: int = 3
    clients: int = 1
    keys: int = 2
    messages: int = 6  # of a client
    span_s: float = 30.0
    pause_s: float = 2.0  # between two messages
    lost: float = 0.0  # of each thing that is sent
    late: float = 0.0
    twice: float = 0.0
    deaths: int = 0
    dead_s: float = 8.0
    storm: bool = False  # all die at once
    freezes: bool = False  # deaths are freezes: what arrives waits
    swaps: int = 0  # servers come and go, pins change
    proofs: int = 0  # a client hears that an endpoint is of no use
    sleeps: int = 0  # a client is stopped for a while
    slow_ms: float = 5.0  # between getting hold of a key and writing


def draw_weather(chance: Chance) -> HealthWeather:
    pick = chance.pick
    return HealthWeather(
        endpoints=pick((3, 2, 4, 5, 1), "endpoints"),
        clients=pick((1, 1, 2, 3), "clients"),
        keys=pick((1, 2, 3), "keys"),
        messages=pick((4, 6, 10), "messages"),
        pause_s=pick((2.0, 0.3, 5.0), "between messages"),
        lost=chance.rate(0.005, 0.3, on=0.4, what="things are lost"),
        late=chance.rate(0.01, 0.3, on=0.4, what="things are late"),
        twice=chance.rate(0.01, 0.3, on=0.3, what="things come twice"),
        deaths=pick((0, 1, 2, 4), "deaths"),
        dead_s=pick((8.0, 3.0, 20.0), "how long"),
        storm=chance.hits(0.2, "all die at once"),
        freezes=chance.hits(0.4, "they freeze"),
        swaps=pick((0, 0, 1, 3), "swaps"),
        proofs=pick((0, 0, 0, 1), "proofs"),
        sleeps=pick((0, 0, 0, 1), "sleeps"),
        slow_ms=pick((5.0, 5.0, 1_000.0), "writes take up to"),
    )


class Place:
    """What is kept of a key: who may write, what there is, and the last number of each client."""

    def __init__(self) -> None:
        self.holder = ""
        self.tenure = 0
        self.arrivals = Arrivals()
        self.numbers: defaultdict[int, list[int]] = defaultdict(list)

    def hold(self, endpoint: str) -> int:
        if self.holder != endpoint:
            self.holder = endpoint
            self.tenure += 1
        return self.tenure


class Endpoint:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.down_since_s: float | None = None
        self.is_frozen = False
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_up(self) -> bool:
        return self.down_since_s is None

    def go_down(self, freezes: bool) -> None:
        if self.down_since_s is None:
            self.down_since_s = self.world.now_ms / 1000
            self.is_frozen = freezes
            self.world.mark("frozen" if freezes else "dead")

    def come_up(self) -> None:
        self.down_since_s = None
        waiting, self._waiting = self._waiting, []
        for what in waiting:
            what()

    def receive(self, what: Callable[[], None]) -> None:
        if self.is_up:
            what()
        elif self.is_frozen:
            self._waiting.append(what)
