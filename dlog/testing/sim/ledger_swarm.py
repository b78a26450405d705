"""What one history of ledgers is like, drawn once, at its start.

Faults average out when all of them are always on. So each history switches whole classes of them on
or off and draws their rates from wide laws; the first of several options is the benign one, and all
zeros are three bookies in fine weather.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.ledger.bookkeeper.core.append_effects import AppendOptions
from dlog.testing.sim.bookies import SimBookies, Troubles, new_bookies
from dlog.testing.sim.ledger_nodes import NodeManners
from dlog.testing.sim.network import Roads
from dlog.testing.sim.server import Manners
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import World

ON = 0.3  # of the histories have a class of faults
QUORUMS = (
    (3, 3, 2),
    (3, 3, 2),
    (3, 3, 2),
    (3, 3, 3),
    (2, 2, 2),
    (2, 2, 1),
    (1, 1, 1),
    (4, 4, 3),
    (5, 5, 3),
)
STRIPED = ((3, 2, 2), (4, 3, 2), (5, 3, 2), (3, 2, 1))  # written by others, read and recovered


@dataclass(slots=True)
class ClusterSwarm:
    """Bookies, network and metadata store."""

    quorums: tuple[int, int, int] = (3, 3, 2)
    spares: int = 1
    manners: Manners = None  # type: ignore[assignment]
    roads: Roads = None  # type: ignore[assignment]
    troubles: Troubles = None  # type: ignore[assignment]
    nodes: NodeManners = None  # type: ignore[assignment]
    slow: float = 0.0  # this part of the bookies …
    slow_factor: float = 1.0
    window_entries: int = 2_000
    window_bytes: int = 1 << 20
    policy_errs: float = 0.0
    fences_ahead: bool = True
    cuts: float | None = None
    """Of byte strings, if it is these that connect clients and bookies."""

    @property
    def count(self) -> int:
        return self.quorums[0] + self.spares

    def bookies(self, world: World) -> SimBookies:
        return new_bookies(
            world,
            self.count,
            manners=self.manners,
            roads=self.roads,
            troubles=self.troubles,
            slow=self.slow,
            slow_factor=self.slow_factor,
        )

    def options(self) -> AppendOptions:
        return AppendOptions(window_entries=self.window_entries, window_bytes=self.window_bytes)

    @property
    def is_mild(self) -> bool:
        """Nothing keeps a bookie or the metadata store from answering within seconds."""
        manners, troubles, roads, nodes = self.manners, self.troubles, self.roads, self.nodes
        rates = (
            (manners.busy, manners.io_failed, manners.never, manners.late),
            (troubles.kills, troubles.ends, troubles.stops, troubles.read_only),
            (troubles.resets, troubles.cuts, troubles.all_at_once),
            (roads.refused, roads.breaks, nodes.away, nodes.lost),
        )
        is_slow = (roads.far_factor if roads.far > 0 else 1.0) * roads.travel_ms > 100
        return not any(any(each) for each in rates) and not is_slow and self.slow_factor < 50


def draw_cluster(
    chance: Chance, *, quorums: tuple[tuple[int, int, int], ...] = QUORUMS
) -> ClusterSwarm:
    def rate(high: float, what: str, *, low: float = 0.003, on: float = ON) -> float:
        return chance.rate(low, high, on=on, what=what)

    chosen = chance.pick(quorums, "ensemble, write and ack quorum")
    spares = chance.pick((1, 0, 1, 2, 3), "spare bookies")
    manners = Manners(
        serve_ms=chance.pick((0.2, 0.2, 0.05, 2.0), "ms to serve"),
        journal_ms=chance.pick((2.0, 2.0, 0.2, 20.0), "ms to sync"),
        busy=rate(0.5, "refused requests"),
        io_failed=rate(0.1, "bad disks"),
        read_failed=rate(0.3, "failing reads"),
        never=rate(0.05, "acks that are not sent"),
        twice=rate(0.3, "acks that come twice"),
        late=rate(0.3, "late answers"),
        disordered=rate(0.5, "disordered acks"),
        broken=rate(0.2, "damaged entries"),
        short=rate(0.9, "short batches"),
        low=rate(0.9, "wrong last entries"),
        watch_lost=rate(0.5, "forgotten polls"),
        wrong=rate(0.1, "wrong entries"),
        lies=rate(0.3, "LACs made up"),
    )
    roads = Roads(
        travel_ms=chance.pick((0.2, 0.2, 1.0, 10.0), "ms on the way"),
        far=rate(0.5, "long ways", low=0.1),
        far_factor=chance.pick((10.0, 10.0, 100.0, 1000.0), "how far"),
        refused=rate(0.5, "refused connections"),
        breaks=rate(0.05, "broken connections", low=0.001),
    )
    wipes = chance.hits(0.15, "disks are lost") and chosen[2] > 1
    troubles = Troubles(
        kills=rate(0.5, "kills"),
        ends=rate(0.2, "shutdowns"),
        stops=rate(0.3, "stops"),
        read_only=rate(0.1, "read-only bookies"),
        resets=rate(0.3, "resets"),
        cuts=rate(0.2, "cuts"),
        flushes=rate(0.5, "flushed caches"),
        away_ms=chance.pick((100.0, 100.0, 5.0, 1_000.0, 6_000.0), "ms away"),
        wipes=int(wipes),
        all_at_once=rate(0.05, "kills of all at once", on=0.15),
    )
    nodes = NodeManners(
        travel_ms=chance.pick((0.3, 0.3, 3.0, 30.0), "ms to metadata"),
        away=rate(0.5, "metadata away"),
        lost=rate(0.5, "lost replies of metadata"),
        stale=rate(0.9, "old metadata"),
        stale_by=chance.pick((1, 2, 5), "versions behind"),
        slow=rate(0.3, "slow metadata"),
        slow_ms=chance.pick((50.0, 300.0, 1_500.0), "ms of slow metadata"),
        watch_lost=rate(0.9, "lost watches"),
        tries_max=chance.pick((30, 30, 5, 3), "tries of one call"),
    )
    return ClusterSwarm(
        chosen,
        spares,
        manners,
        roads,
        troubles,
        nodes,
        slow=rate(0.6, "slow bookies", low=0.1),
        slow_factor=chance.pick((10.0, 10.0, 100.0, 1000.0), "how slow"),
        window_entries=chance.pick((2_000, 2_000, 64, 8, 2, 1), "entries in flight"),
        window_bytes=chance.pick((1 << 20, 1 << 20, 100, 10), "bytes in flight"),
        policy_errs=rate(0.5, "bad advice"),
        fences_ahead=not chance.hits(0.5, "no fence ahead"),
    )


@dataclass(slots=True)
class LedgerSwarm:
    """And who lives there."""

    cluster: ClusterSwarm
    is_striped: bool = False
    appends: int = 5
    burst: int = 1
    birth: bool = True
    idle_troubles: int = 0  # moments of trouble before there is an entry
    publishing: float = 0.0  # after a confirmation
    closes: bool = False
    crash: float = 0.0  # of clients, per crash point
    freeze: float = 0.0
    writer_dies: bool = False
    java_closes: bool = (
        False  # the writer also closes over IN_RECOVERY, when it is fenced (striped)
    )
    readers: int = 0
    recoverers: int = 0
    recovery_from: float = 0.0  # when they come, in parts of the trouble's time
    rising_lacs: bool = False
    audits: bool = True  # of the evidence for an end
    rewrites: float = 0.0  # of older fragments, by a foreign actor
    rests_ms: float = 5.0  # between bursts
    faults_ms: float = 2_000.0


def draw_ledger_swarm(chance: Chance) -> LedgerSwarm:
    is_striped = chance.hits(0.2, "a striped ledger")
    cluster = draw_cluster(chance, quorums=STRIPED if is_striped else QUORUMS)
    return LedgerSwarm(
        cluster,
        is_striped=is_striped,
        appends=chance.pick((3, 1, 5, 8, 12, 20, 50), "entries"),
        burst=chance.pick((1, 1, 3, 8, 30), "entries at once"),
        birth=not chance.hits(0.4, "no birth"),
        idle_troubles=chance.pick((0, 0, 0, 5), "troubles before the first entry"),
        publishing=chance.pick((1.0, 0.3, 0.0), "publishing"),
        closes=chance.hits(0.4, "its writer closes it"),
        crash=chance.rate(0.001, 0.03, on=0.3, what="deaths of clients"),
        freeze=chance.rate(0.001, 0.03, on=0.3, what="frozen clients"),
        writer_dies=chance.hits(0.2, "its writer dies"),
        java_closes=chance.hits(0.2, "it closes as the stock client does"),
        readers=chance.pick((0, 1, 0, 1, 2, 3), "readers"),
        recoverers=chance.pick((0, 1, 0, 1, 2, 3), "recoverers"),
        recovery_from=chance.fraction(),
        rising_lacs=chance.hits(0.1, "a stock recoverer"),
        rewrites=chance.rate(0.01, 0.5, on=0.15, what="rewritten fragments"),
        rests_ms=chance.pick((5.0, 1.0, 20.0, 100.0), "ms between bursts"),
    )
