"""Connections between simulated clients and bookies.

TCP loses nothing: in each direction bytes arrive in their order, later or sooner, or the connection
breaks, and the two ends learn of that at different times. A direction may be cut without either of
them noticing (half-open), until it heals or somebody gives up. Every pair of client and bookie has
a distance of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from dlog.testing.sim.server import Server
from dlog.testing.sim.world import World


class Client(Protocol):
    """A process."""

    name: str

    def receive(self, what: Callable[[], None]) -> None:
        """Something reached it: lost when it is dead, kept while it is frozen."""
        ...


# What is on its way when the world heals arrives soon enough for an append to get through then.
TRAVEL_MS_MAX = 12_000.0


@dataclass(slots=True)
class Roads:
    """How the network of one history behaves."""

    travel_ms: float = 0.2
    far: float = 0.0  # in this part of the pairs everything takes `far_factor` times as long
    far_factor: float = 100.0
    refused: float = 0.0  # connections, per attempt
    breaks: float = 0.0  # per message


@dataclass(slots=True, eq=False)
class Road:
    """Between one client and one bookie."""

    client: Client
    server: Server
    travel_ms: float
    is_cut_there: bool = False  # towards the bookie
    is_cut_back: bool = False

    def travel(self, world: World) -> float:
        return min(world.chance.delay(self.travel_ms), TRAVEL_MS_MAX)


@dataclass(slots=True, eq=False)
class Connection:
    """One TCP connection: the client's end, and as `Caller` the server's."""

    world: World
    road: Road
    breaks: float
    on_down: Callable[[], None]
    is_up: bool = True  # as the server knows
    is_open: bool = True  # as the client knows
    _there_at_ms: float = 0.0
    _back_at_ms: float = 0.0
    _held: list[Callable[[], None]] = field(default_factory=list)  # behind a cut, in their order

    def send(self, request: Callable[[], None]) -> None:
        """The client's: `request` is done at the server."""
        if not self.is_open:
            return
        if self.world.strikes(self.breaks, "a connection breaks"):
            self.reset()
            return
        if self.road.is_cut_there:
            self._held.append(lambda: self.send(request))
            return
        server = self.road.server
        self._there_at_ms = self._in_order(self._there_at_ms)
        self.world.at(self._there_at_ms, lambda: server.hear(self, request))

    def answer(self, what: Callable[[], None]) -> None:
        """The server's."""
        if not self.is_up:
            return
        if self.road.is_cut_back:
            self._held.append(lambda: self.answer(what))
            return
        self._back_at_ms = self._in_order(self._back_at_ms)

        def arrive() -> None:
            if self.is_open:
                what()

        self.world.at(self._back_at_ms, lambda: self.road.client.receive(arrive))

    def reset(self) -> None:
        """It breaks; the client hears of it a little later."""
        if not self.is_up:
            return
        self._leave()
        self.world.after(
            self.road.travel(self.world),
            lambda: self.road.client.receive(self._lost),
        )

    def close(self) -> None:
        """By the client, who hears no more of it. What was sent may still arrive."""
        self.is_open = False
        self._held.clear()

    def release(self) -> None:
        """The cut is over."""
        held, self._held = self._held, []
        for each in held:
            each()

    def _leave(self) -> None:
        self.is_up = False
        callers = self.road.server.callers
        if self in callers:
            callers.remove(self)

    def _lost(self) -> None:
        if self.is_open:
            self.is_open = False
            self.on_down()

    def _in_order(self, last_at_ms: float) -> float:
        world = self.world
        return max(last_at_ms, world.now_ms + self.road.travel(world))


class Network:
    def __init__(self, world: World, servers: Mapping[str, Server], roads: Roads) -> None:
        self.world = world
        self.servers = servers
        self._roads = roads
        self._known: dict[tuple[str, str], Road] = {}
        self._connections: list[Connection] = []

    def road(self, client: Client, bookie_id: str) -> Road:
        road = self._known.get((client.name, bookie_id))
        if road is None:
            roads, travel_ms = self._roads, self._roads.travel_ms
            if (
                roads.far > 0.0
                and not self.world.is_calm
                and self.world.chance.hits(roads.far, f"{client.name} is far from {bookie_id}")
            ):
                travel_ms *= roads.far_factor
            road = Road(client, self.servers[bookie_id], travel_ms)
            self._known[client.name, bookie_id] = road
        elif road.client is not client:  # started again, at the same place
            road = replace(road, client=client)
            self._known[client.name, bookie_id] = road
        return road

    def connect(
        self,
        client: Client,
        bookie_id: str,
        *,
        on_down: Callable[[], None],
        connected: Callable[[Connection | None], None],
    ) -> None:
        """None: nobody listens there, or the network does not let it through. A server that has
        only just started accepts, and resets."""
        world, road = self.world, self.road(client, bookie_id)

        def arrive() -> None:
            refused = world.strikes(self._roads.refused, "a connection is refused")
            if refused or road.is_cut_there or road.is_cut_back or not road.server.bookie.is_up:
                back(None)
                return
            if not world.is_calm and road.server.is_stopped:
                pass  # the kernel accepts for it
            connection = Connection(world, road, self._roads.breaks, on_down)
            road.server.callers.append(connection)
            self._connections.append(connection)
            back(connection)

        def back(connection: Connection | None) -> None:
            world.after(road.travel(world), lambda: client.receive(lambda: connected(connection)))

        world.after(road.travel(world), arrive)

    # --- what may befall it

    def cut(self, client: Client, bookie_id: str, *, there: bool, back: bool) -> None:
        road = self.road(client, bookie_id)
        road.is_cut_there, road.is_cut_back = there, back
        self.world.note(f"{client.name} and {bookie_id} are cut off: {there=} {back=}")

    def mend(self, client: Client, bookie_id: str) -> None:
        road = self.road(client, bookie_id)
        road.is_cut_there = road.is_cut_back = False
        for connection in self._connections:
            if connection.road is road:
                connection.release()

    def reset(self, client: Client, bookie_id: str) -> None:
        road = self.road(client, bookie_id)
        for connection in [each for each in self._connections if each.road is road]:
            connection.reset()

    def heal(self) -> None:
        for road in self._known.values():
            road.travel_ms = self._roads.travel_ms
            road.is_cut_there = road.is_cut_back = False
        for connection in self._connections:
            connection.release()
