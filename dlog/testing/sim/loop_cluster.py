"""A cluster for real drivers: simulated bookies and metadata, and processes that are clients of it.

Bookies keep in the metadata store what real ones keep there: a node below `available`, or below
`readonly`, with their endpoint, which goes away a session after they died and is made anew when
they serve again. Trouble comes by itself: `Trouble` says which and how often.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from dlog.testing.sim.bookie import Mode, SimBookie
from dlog.testing.sim.loop_process import LoopProcess
from dlog.testing.sim.meta_store import MetaTree
from dlog.testing.sim.metadata import MetaManners
from dlog.testing.sim.network import Network, Roads
from dlog.testing.sim.server import Manners, Server
from dlog.testing.sim.tcp import Streams, TcpStack
from dlog.testing.sim.world import World
from dlog.wire.bookie_service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from dlog.wire.ledger_paths import (
    AVAILABLE_NODE,
    LAYOUT_NODE,
    READ_ONLY_NODE,
    Manager,
    pack_layout,
)

ROOT = "/ledgers"
_PORT = 3181


@dataclass(slots=True)
class Trouble:
    """What befalls bookies and roads: the mean pause between two strokes of a kind, in ms; `inf` is
    off."""

    kill_ms: float = math.inf
    stop_ms: float = math.inf
    read_only_ms: float = math.inf
    wipe_ms: float = math.inf
    cut_ms: float = math.inf
    reset_ms: float = math.inf
    lasts_ms: float = 2_000.0
    session_ms: float = 1_000.0  # how late the metadata store notices a death
    one_at_a_time: bool = False  # no stroke while anything is away, a road included
    down_max: int = 1  # bookies at a time that are killed, stopped or read-only
    amnesia: bool = False  # disks are lost and nobody knows: outside what is assumed


@dataclass(slots=True)
class Climate:
    """How everything of one history behaves."""

    bookies: Manners = field(default_factory=Manners)
    roads: Roads = field(default_factory=Roads)
    streams: Streams = field(default_factory=Streams)
    meta: MetaManners = field(default_factory=MetaManners)
    trouble: Trouble = field(default_factory=Trouble)
    busy: float = 0.0
    shuffled: float = 0.0
    meta_ms: float = 0.5


class LoopCluster:
    def __init__(self, world: World, bookies: int, climate: Climate | None = None) -> None:
        self.world = world
        self.climate = climate or Climate()
        self.tree = MetaTree(world, self.climate.meta)
        self.servers = {
            name: Server(world, SimBookie(name), self.climate.bookies)
            for name in (f"b{number}" for number in range(bookies))
        }
        self.network = Network(world, self.servers, self.climate.roads)
        self.processes: list[LoopProcess] = []  # one that died may have a successor of its name
        self._cuts = 0
        self._addresses = {(name, _PORT): name for name in self.servers}
        self._begin_tree()
        for server in self.servers.values():
            self._register(server)
        self._let_trouble_come()

    def process(self, name: str, *, kind: type[LoopProcess] = LoopProcess) -> LoopProcess:
        """A new one."""
        climate = self.climate
        process = kind(self.world, name, busy=climate.busy, shuffled=climate.shuffled)
        process.tree = self.tree
        process.meta_ms = climate.meta_ms
        process.stack = TcpStack(
            self.world,
            process.loop,
            process,
            self.network,
            self._addresses,
            climate.streams,
        )
        self.processes.append(process)
        return process

    def dispose(self) -> None:
        for process in self.processes:
            process.dispose()

    # --- what bookies keep in the metadata store

    def _begin_tree(self) -> None:
        tree = self.tree
        for path in (ROOT, f"{ROOT}/{AVAILABLE_NODE}", f"{ROOT}/{AVAILABLE_NODE}/{READ_ONLY_NODE}"):
            tree.make(path, b"", owner=None, sequential=False)
        layout = pack_layout(Manager.HIERARCHICAL)
        tree.make(f"{ROOT}/{LAYOUT_NODE}", layout, owner=None, sequential=False)

    def _place(self, server: Server) -> str:
        above = f"{ROOT}/{AVAILABLE_NODE}"
        if server.bookie.mode is Mode.READ_ONLY:
            above += f"/{READ_ONLY_NODE}"
        return f"{above}/{server.bookie_id}"

    def _register(self, server: Server) -> None:
        """Anew: a node that is there is of an earlier session."""
        self._unregister(server)
        endpoint = Endpoint("bookie", server.bookie_id, _PORT, BOOKIE_RPC)
        self.tree.store(self._place(server), BookieServiceInfo((endpoint,)).to_bytes())

    def _unregister(self, server: Server) -> None:
        above = f"{ROOT}/{AVAILABLE_NODE}"
        for place in (above, f"{above}/{READ_ONLY_NODE}"):
            self.tree.forget(f"{place}/{server.bookie_id}")

    # --- what may befall them

    def kill(self, server: Server) -> None:
        server.kill()
        self._gone(server)

    def wipe(self, server: Server) -> None:
        server.lose_disks(
            is_noticed=not self.climate.trouble.amnesia, last_ledger=self.tree.ids_drawn - 1
        )
        self._gone(server)

    def _gone(self, server: Server) -> None:
        incarnation = server.bookie.incarnation

        def notice() -> None:
            if server.bookie.incarnation == incarnation and not server.bookie.is_up:
                self._unregister(server)

        self.world.after(self.world.chance.delay(self.climate.trouble.session_ms), notice)

    def start(self, server: Server) -> None:
        if not server.bookie.is_up:
            server.start()
            self._register(server)

    def turn(self, server: Server, mode: Mode) -> None:
        server.turn(mode)
        if server.bookie.is_up:
            self._register(server)

    def heal(self) -> None:
        """From now on all is well, and stays so."""
        self.world.note("all is well from here on")
        self.world.is_calm = True
        self.tree.heal()
        self.network.heal()
        for server in self.servers.values():
            server.go_on()
            self.turn(server, Mode.WRITABLE)
            self.start(server)
        for process in self.processes:
            process.thaw()

    def _let_trouble_come(self) -> None:
        trouble = self.climate.trouble
        self._again(trouble.kill_ms, self._strike_kill)
        self._again(trouble.stop_ms, self._strike_stop)
        self._again(trouble.read_only_ms, self._strike_read_only)
        self._again(trouble.wipe_ms, self._strike_wipe)
        self._again(trouble.cut_ms, self._strike_cut)
        self._again(trouble.reset_ms, self._strike_reset)

    def _again(self, pause_ms: float, strike: Callable[[], None]) -> None:
        if pause_ms == math.inf:
            return

        def due() -> None:
            if not self.world.is_calm:
                if not self.climate.trouble.one_at_a_time or self.is_well:
                    strike()
                self._again(pause_ms, strike)

        # A zero on the tape is the end of it, not a stroke without a pause.
        if self.world.chance.hits(0.95):
            self.world.after(1.0 + self.world.chance.delay(pause_ms), due)

    def _victim(self) -> Server | None:
        """A bookie that is well, if another one may go."""
        well = [each for each in self.servers.values() if self._is_well(each)]
        if not well or len(self.servers) - len(well) >= self.climate.trouble.down_max:
            return None
        return self.world.chance.pick(well, "a bookie")

    @property
    def is_well(self) -> bool:
        """Nothing is away, for anybody."""
        return not self._cuts and all(map(self._is_well, self.servers.values()))

    @staticmethod
    def _is_well(server: Server) -> bool:
        bookie = server.bookie
        return bookie.is_up and not server.is_stopped and bookie.mode is Mode.WRITABLE

    def _for_a_while(self, end: Callable[[], None]) -> None:
        lasts_ms = self.climate.trouble.lasts_ms
        self.world.after(1.0 + self.world.chance.delay(lasts_ms, "it"), end)

    def _strike_kill(self) -> None:
        if (server := self._victim()) is not None:
            self.world.mark("a bookie is killed")
            self.kill(server)
            self._for_a_while(lambda: self.start(server))

    def _strike_stop(self) -> None:
        if (server := self._victim()) is not None:
            self.world.mark("a bookie is stopped")
            server.stop()
            self._for_a_while(server.go_on)

    def _strike_read_only(self) -> None:
        if (server := self._victim()) is not None:
            self.world.mark("a bookie is read-only")
            self.turn(server, Mode.READ_ONLY)
            self._for_a_while(lambda: self.turn(server, Mode.WRITABLE))

    def _strike_wipe(self) -> None:
        if (server := self._victim()) is not None:
            self.world.mark("a bookie loses its disks")
            self.wipe(server)
            self._for_a_while(lambda: self.start(server))

    def _road(self) -> tuple[LoopProcess, str] | None:
        alive = [each for each in self.processes if each.is_alive]
        if not alive:
            return None
        process = self.world.chance.pick(alive, "a process")
        return process, self.world.chance.pick(list(self.servers), "a bookie")

    def _strike_cut(self) -> None:
        if (road := self._road()) is not None:
            there, back = self.world.chance.pick(
                [(True, True), (True, False), (False, True)], "which way"
            )
            self.world.mark("a road is cut")
            self.network.cut(*road, there=there, back=back)
            self._cuts += 1

            def mend() -> None:
                self.network.mend(*road)
                self._cuts -= 1

            self._for_a_while(mend)

    def _strike_reset(self) -> None:
        if (road := self._road()) is not None:
            self.world.mark("connections are reset")
            self.network.reset(*road)
