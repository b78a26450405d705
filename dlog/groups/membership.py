"""A worker among others: it registers, renews, and knows until when nobody can have taken it for
dead; and it looks after a few neighbours, and buries those that renew no more.

Steady state costs a worker one write and `neighbours` reads per renewal, however many shards and
workers there are: each watches the next few in a ring, and all of them only when one of those
is late. Whoever is buried learns it by its next renewal; others learn it from the list of workers.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dlog import limits
from dlog.errors import DlogError
from dlog.groups.asks import Ask, Bury, LookAtWorker, Register, Renew
from dlog.groups.expiry import Expiry
from dlog.groups.presence import SeenWorker
from dlog.groups.view import WorkerId
from dlog.groups.workers import WorkerNode

TICK_S = 1e-6  # behind a time-out, not at it
REPLACED = "another process goes by the same name"  # why a worker leaves
ALL_DONE = "all shards are done"  # why one of a bounded job does
LATE_RENEWALS = 1.25  # after so many times the interval, a neighbour is late


class Phase(enum.Enum):
    JOINING = "joining"
    PROVING = "proving"  # registered; nothing is claimed before the first renewal
    MEMBER = "member"
    LOST = "lost"  # somebody took us for dead


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """`margin` is for clocks that run apart: of two, one may be faster by half of it. `force_s`:
    how long a victim may take to hand a shard over before it is fenced; None: as long as it
    lives. `weigh_s`: how often one of the workers weighs all shards; None: shards are counted.
    `prove_s`: how often a lease is renewed where nothing was saved, beside the worker's own node.
    `trusts_name`: no other process goes by our name, so whatever is left of it is dead."""

    timeout_s: float = limits.GROUP_TIMEOUT_MS_DEFAULT / 1000
    margin: float = 0.05
    flush_s: float = limits.GROUP_FLUSH_MS_DEFAULT / 1000
    force_s: float | None = limits.GROUP_TIMEOUT_MS_DEFAULT / 1000
    neighbours: int = limits.GROUP_NEIGHBOURS
    moves_at_once: int = limits.GROUP_MOVES_AT_ONCE
    weigh_s: float | None = None
    prove_s: float | None = None
    trusts_name: bool = False
    is_job: bool = False

    @property
    def renew_s(self) -> float:
        """In less than half a time-out, so that one renewal may get lost."""
        return self.timeout_s / 3

    @property
    def replan_s(self) -> float:
        return self.timeout_s * 2

    @property
    def gather_s(self) -> float:
        """For so long news is gathered before the next plan."""
        return self.timeout_s / 64

    @property
    def retry_s(self) -> float:
        return self.timeout_s / 16


@dataclass(slots=True)
class _Neighbour:
    look_s: float
    looked_s: float | None = None
    has_renewed: bool = False  # since we look
    is_hinted: bool = False  # while a look was under way, which may be older


@dataclass(slots=True)
class Membership:
    me: WorkerId
    options: GroupOptions
    now_s: float
    domain: str | None = None
    phase: Phase = Phase.JOINING
    seen: SeenWorker | None = None
    confirmed_s: float | None = None
    others: dict[WorkerId, WorkerNode] = field(default_factory=dict)
    is_stale: bool = False
    """Our node says something else than is so."""
    wanted: set[str] = field(default_factory=set)
    """What others asked us to look at, and we did not yet."""
    waits: Mapping[str, str] = field(default_factory=dict)
    """What does not get on here, for our node to tell."""
    _asked: set[str] = field(default_factory=set)
    _done: set[str] = field(default_factory=set)
    _rings: int = 0
    _counter: int = 0
    _renew_at_s: float = 0.0
    _neighbours: dict[WorkerId, _Neighbour] = field(default_factory=dict)
    _under_way: set[object] = field(default_factory=set)
    _expiry: Expiry = field(init=False)
    _is_anybody_late: bool = False

    def __post_init__(self) -> None:
        self._expiry = Expiry(self.options.timeout_s)
        self._renew_at_s = self.now_s

    @property
    def is_member(self) -> bool:
        return self.phase is Phase.MEMBER

    @property
    def deadline_s(self) -> float:
        """Until then nobody can have taken us for dead, by our own clock: it counts from when we
        sent the last renewal that was confirmed, and others count from when they saw it."""
        if self.confirmed_s is None or self.phase is Phase.LOST:
            return -math.inf
        return self.confirmed_s + self.options.timeout_s * (1 - self.options.margin)

    @property
    def is_renewing(self) -> bool:
        return "renew" in self._under_way

    # --- what is due

    def asks(self, now_s: float, holds: Iterable[str], coming: Iterable[str]) -> list[Ask]:
        found: list[Ask] = []
        if self.phase is Phase.LOST:
            return found
        if "renew" not in self._under_way and (now_s >= self._renew_at_s or self._is_due_early()):
            self._under_way.add("renew")
            if self.seen is None:
                found.append(Register(self.me, self.domain))
            else:
                self._counter += 1
                self.is_stale = False
                lists = tuple(sorted(holds)), tuple(sorted(coming)), tuple(sorted(self._done))
                told = self._rings, self.waits, now_s
                found.append(Renew(self.seen, self._counter, *lists, *told))
        if self.phase is Phase.MEMBER:
            found += self._looks(now_s)
        return found

    def _is_due_early(self) -> bool:
        return self.phase is Phase.PROVING or (self.is_member and self.is_stale)

    def _looks(self, now_s: float) -> list[Ask]:
        found: list[Ask] = []
        for worker, neighbour in self._neighbours.items():
            is_due = now_s >= neighbour.look_s
            if not is_due and now_s < self._buried_s(worker, neighbour):
                continue
            if worker in self._under_way:
                continue
            counter = self._expired(worker, neighbour, now_s)
            if counter is not None:
                found.append(Bury(worker, counter))
            elif is_due:
                found.append(LookAtWorker(worker))
            else:
                continue
            self._under_way.add(worker)
        return found

    def _expired(self, worker: WorkerId, neighbour: _Neighbour, now_s: float) -> int | None:
        """The counter that it did not renew for a whole time-out, in which we looked all along."""
        node = self.others.get(worker)
        if node is None or now_s < self._buried_s(worker, neighbour):
            return None
        return node.counter if self._expiry.is_expired(worker, now_s) else None

    def _buried_s(self, worker: WorkerId, neighbour: _Neighbour) -> float:
        """When it is dead if nothing changes; never, where it has to be looked at once more."""
        looked_s, expires_s = neighbour.looked_s, self._expiry.expires_s(worker)
        if looked_s is None or expires_s is None:
            return math.inf
        buried_s = expires_s + TICK_S
        return buried_s if buried_s - looked_s <= self.options.timeout_s / 2 else math.inf

    def due_s(self) -> float:
        if self.phase is Phase.LOST:
            return math.inf
        due = math.inf if "renew" in self._under_way else self._renew_at_s
        if self.phase is Phase.MEMBER:
            for worker, neighbour in self._neighbours.items():
                if worker not in self._under_way:
                    due = min(due, neighbour.look_s, self._buried_s(worker, neighbour))
        return due

    # --- facts

    def on_registered(self, seen: SeenWorker | None, now_s: float) -> None:
        """None: it failed, and is tried again."""
        self._under_way.discard("renew")
        if seen is None:
            self._renew_at_s = now_s + self.options.retry_s
            return
        self.seen, self._renew_at_s = seen, now_s
        self._counter = seen.node.counter
        self.phase = Phase.PROVING

    def on_renewed(self, ask: Renew, seen: SeenWorker, now_s: float) -> None:
        self._under_way.discard("renew")
        self.seen, self.confirmed_s = seen, ask.sent_s
        if seen.node.rings == ask.rings:
            self._done.difference_update(ask.done)
        self._hear(seen.node)
        self._renew_at_s = max(ask.sent_s + self.options.renew_s, now_s)
        if self.phase is Phase.PROVING:
            self.phase = Phase.MEMBER

    def on_not_renewed(self, error: DlogError, now_s: float, *, is_lost: bool) -> None:
        self._under_way.discard("renew")
        self._renew_at_s = now_s + self.options.retry_s
        self.is_stale = False  # it is said by the next try
        if is_lost:
            self.phase = Phase.LOST

    def looked_into(self, shard: str) -> None:
        """If at the bidding of others: they need not ask again."""
        self.wanted.discard(shard)
        if shard in self._asked:
            self._asked.discard(shard)
            self._done.add(shard)
            self.is_stale = True

    def see(self, seen: SeenWorker, now_s: float) -> None:
        worker = seen.node.id
        before = self.others.get(worker)
        self.others[worker] = seen.node
        neighbour = self._neighbours.get(worker)
        if neighbour is not None:
            gap_s = math.inf if neighbour.looked_s is None else now_s - neighbour.looked_s
            if gap_s > self.options.timeout_s / 2:
                self._expiry.forget(worker)  # while we did not look it may have been well
            elif before is not None and before.counter != seen.node.counter:
                neighbour.has_renewed = True
            neighbour.looked_s = now_s
            neighbour.look_s = now_s + (0.0 if neighbour.is_hinted else self.options.renew_s)
            neighbour.is_hinted = False
            self._expiry.see(worker, seen.node.counter, now_s)

    def on_looked(self, worker: WorkerId, seen: SeenWorker | None, now_s: float) -> bool:
        """Whether it is dead."""
        self._under_way.discard(worker)
        if seen is None:
            self._forget(worker)
            return True
        self.see(seen, now_s)
        self._choose_neighbours(now_s)
        return False

    def on_not_looked(self, worker: WorkerId, now_s: float) -> None:
        self._under_way.discard(worker)
        neighbour = self._neighbours.get(worker)
        if neighbour is not None:
            neighbour.look_s = now_s + self.options.retry_s

    def on_group(self, workers: dict[WorkerId, SeenWorker], now_s: float) -> None:
        for gone in self.others.keys() - workers.keys():
            self._forget(gone)
        for worker, seen in workers.items():
            if worker != self.me:
                self.see(seen, now_s)
        mine = workers.get(self.me)
        if mine is not None:
            self._hear(mine.node)
        self._choose_neighbours(now_s)

    def hint(self, worker: WorkerId, now_s: float) -> None:
        """Its node may have changed."""
        neighbour = self._neighbours.get(worker)
        if neighbour is not None:
            neighbour.look_s = min(neighbour.look_s, now_s)
            neighbour.is_hinted = worker in self._under_way

    def look_at_ours(self) -> list[Ask]:
        """Somebody may have rung. While we renew it is our own renewal that is heard, and that
        would tell."""
        if not self.is_member or self.is_renewing or self.me in self._under_way:
            return []
        self._under_way.add(self.me)
        return [LookAtWorker(self.me)]

    def on_looked_at_ours(self, seen: SeenWorker | None) -> None:
        self._under_way.discard(self.me)
        if seen is None:
            self.phase = Phase.LOST
        else:
            self._hear(seen.node)

    def _hear(self, node: WorkerNode) -> None:
        """What others want. Whoever rang again wants it again."""
        if node.rings > self._rings:
            self._rings = node.rings
            self._done.clear()
        news = set(node.wanted) - self._done
        self.wanted |= news
        self._asked |= news

    def _forget(self, worker: WorkerId) -> None:
        self.others.pop(worker, None)
        self._neighbours.pop(worker, None)
        self._expiry.forget(worker)

    def _choose_neighbours(self, now_s: float) -> None:
        """The next few in the ring; all, from when one of them is late until each is known to be
        alive, or dead."""
        late_s = LATE_RENEWALS * self.options.renew_s
        was_late = self._is_anybody_late
        self._is_anybody_late = any(
            each.looked_s is not None
            and (self._expiry.quiet_s(worker, now_s) > late_s or was_late > each.has_renewed)
            for worker, each in self._neighbours.items()
        )
        ring = sorted((*self.others, self.me), key=lambda each: each.incarnation)
        at = ring.index(self.me)
        count = len(ring) - 1
        if not self._is_anybody_late:
            count = min(count, self.options.neighbours)
        chosen = [ring[(at + 1 + step) % len(ring)] for step in range(count)]
        for worker in self._neighbours.keys() - set(chosen):
            del self._neighbours[worker]
        for worker in chosen:
            if worker not in self._neighbours:
                self._neighbours[worker] = _Neighbour(now_s)
                self._expiry.forget(worker)

    # --- questions

    def watched(self) -> tuple[WorkerId, ...]:
        """Whose nodes are worth a watch: a hint brings in sooner what a timer would."""
        return (self.me, *self._neighbours)

    def bury_namesakes(self) -> list[Ask]:
        """What is left of our name from before, where the name alone is proof enough."""
        if not self.options.trusts_name or self.seen is None:
            return []
        after = self.seen.node.after
        return [
            Bury(each, node.counter)
            for each, node in self.others.items()
            if each.name == self.me.name and each.incarnation in after
        ]

    @property
    def is_first(self) -> bool:
        """Of those that we know of. Two may think so, for a while."""
        return self.me <= min(self.others, default=self.me)

    def is_replaced(self) -> bool:
        """Another process goes by our name since."""
        mine = self.seen
        return mine is not None and any(
            _gives_way(mine.node, each) for each in self.others.values()
        )

    def replaced(self) -> set[WorkerId]:
        """Workers that came again under the same name: they take no new shards."""
        by_name: dict[str, list[WorkerNode]] = {}
        for node in (*self.others.values(), *(() if self.seen is None else (self.seen.node,))):
            by_name.setdefault(node.id.name, []).append(node)
        return {
            one.id
            for nodes in by_name.values()
            for one in nodes
            if any(_gives_way(one, each) for each in nodes)
        }

    def contested(self, ours: Iterable[str]) -> dict[str, None]:
        """What somebody else says to have as well: one of us was fenced, and was not told."""
        theirs = {shard for node in self.others.values() for shard in node.holds}
        return dict.fromkeys(sorted(theirs.intersection(ours)))


def _gives_way(one: WorkerNode, other: WorkerNode) -> bool:
    """Who goes by one name with another that came behind it. Two that came at once did not see each
    other: then one of them does."""
    if one.id.name != other.id.name or one.id == other.id:
        return False
    if other.id.incarnation in one.after:
        return False
    return one.id.incarnation in other.after or one.id.incarnation < other.id.incarnation
