"""A cluster of simulated bookies, and what may befall it: the network between, and each of them.

`SimBookies.trouble` is one moment in which things may go wrong, at the rates of `Troubles`; whoever
plays a history calls it now and then. What it does heals by itself after a while, and `heal` ends
all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dlog.testing.sim.bookie import Mode, SimBookie
from dlog.testing.sim.network import Network, Roads
from dlog.testing.sim.process import Machine
from dlog.testing.sim.server import Manners, Server
from dlog.testing.sim.world import World
from dlog.wire.bookie_codes import Answer


@dataclass(slots=True)
class Troubles:
    """Rates per moment of trouble; 0 is off."""

    kills: float = 0.0
    ends: float = 0.0  # by SIGTERM
    stops: float = 0.0  # by SIGSTOP
    read_only: float = 0.0
    resets: float = 0.0
    cuts: float = 0.0
    flushes: float = 0.0
    away_ms: float = 200.0  # about so long a bookie is away
    wipes: int = 0  # kills that take the disks along, of the whole history
    wipes_are_noticed: bool = True
    all_at_once: float = 0.0


@dataclass(slots=True)
class SimBookies:
    world: World
    servers: dict[str, Server]
    network: Network
    troubles: Troubles = field(default_factory=Troubles)
    wiped: set[str] = field(default_factory=set)
    wiped_unnoticed: bool = False

    @property
    def names(self) -> Sequence[str]:
        return list(self.servers)

    def __getitem__(self, bookie_id: str) -> SimBookie:
        return self.servers[bookie_id].bookie

    def writable(self) -> list[str]:
        """As they registered themselves."""
        return [name for name, each in self.servers.items() if each.bookie.mode is Mode.WRITABLE]

    def copy(self, ledger_id: int, entry_id: int, source: str, target: str) -> bool:
        """As a replicator does: for good, if the source has it for good."""
        held = self[source].durable.get(ledger_id)
        entry = None if held is None else held.entries.get(entry_id)
        if held is None or entry is None or held.key is None or not self[target].is_up:
            return False
        answer = self[target].add(ledger_id, entry_id, entry.raw, key=held.key, is_recovery=True)
        self[target].sync()
        return answer is Answer.OK

    # --- what may befall them

    def trouble(self, clients: Sequence[Machine], last_ledger: int) -> None:
        """`clients` that may be cut off; a bookie that loses its disks notices for the ledgers up
        to the last one that there is."""
        world, troubles = self.world, self.troubles
        if world.is_calm:
            return
        if world.strikes(troubles.kills, "a bookie is killed"):
            self._kill(self._one(), last_ledger)
        if world.strikes(troubles.all_at_once, "all bookies are killed"):
            for server in self.servers.values():
                self._kill(server, last_ledger)
        if world.strikes(troubles.ends, "a bookie is shut down"):
            server = self._one()
            server.terminate()
            self._back_later(server)
        if world.strikes(troubles.stops, "a bookie is stopped"):
            server = self._one()
            server.stop()
            world.after(self._away_ms(), server.go_on)
        if world.strikes(troubles.read_only, "a bookie takes no writes"):
            server = self._one()
            server.turn(Mode.READ_ONLY)
            world.after(self._away_ms(), lambda: server.turn(Mode.WRITABLE))
        if world.strikes(troubles.flushes, "a write cache is flushed"):
            self._one().bookie.flush_cache()
        if clients and world.strikes(troubles.resets, "connections are reset"):
            self.network.reset(world.chance.pick(clients, "of"), self._one().bookie_id)
        if clients and world.strikes(troubles.cuts, "a client and a bookie are cut off"):
            self._cut(world.chance.pick(clients, "of"), self._one().bookie_id)

    def heal(self) -> None:
        for server in self.servers.values():
            server.heal()
        self.network.heal()

    def _one(self) -> Server:
        return self.world.chance.pick(list(self.servers.values()), "which bookie")

    def _away_ms(self) -> float:
        return self.world.chance.delay(self.troubles.away_ms, "coming back")

    def _back_later(self, server: Server) -> None:
        self.world.after(self._away_ms(), server.start)

    def _kill(self, server: Server, last_ledger: int) -> None:
        troubles, world = self.troubles, self.world
        may_wipe = len(self.wiped) < troubles.wipes and server.bookie.is_up
        if may_wipe and world.strikes(0.5, "its disks are lost"):
            self.wiped.add(server.bookie_id)
            self.wiped_unnoticed |= not troubles.wipes_are_noticed
            server.lose_disks(is_noticed=troubles.wipes_are_noticed, last_ledger=last_ledger)
        else:
            server.kill()
        self._back_later(server)

    def _cut(self, client: Machine, bookie_id: str) -> None:
        there = self.world.chance.hits(0.7, "no way there")
        back = not there or self.world.chance.hits(0.5, "no way back")
        self.network.cut(client, bookie_id, there=there, back=back)
        self.world.after(self._away_ms(), lambda: self.network.mend(client, bookie_id))


def new_bookies(
    world: World,
    count: int,
    *,
    manners: Manners,
    roads: Roads,
    troubles: Troubles,
    slow: float = 0.0,
    slow_factor: float = 1.0,
) -> SimBookies:
    """Of so many bookies this part is slower than the others."""
    servers = {}
    for number in range(count):
        name = f"b{number}"
        is_slow = slow > 0.0 and world.chance.hits(slow, f"{name} is slow")
        servers[name] = Server(
            world, SimBookie(name), manners, slow=slow_factor if is_slow else 1.0
        )
    return SimBookies(world, servers, Network(world, servers, roads), troubles)
