"""One history of a group: workers that come, go, crash and sleep share the shards of a stream,
which may be split; then all is well, and everything has to be consumed, kept, and even.

The cores, the errands and both lease stores are those of production. Programs, logs of shards and
logs of leases are as simple as can be: a number of messages, and a list with an epoch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from dlog.effects import Effect, Procedure, ReadNode
from dlog.errors import DlogError, Fenced, Timeout
from dlog.groups.leases import Lease
from dlog.groups.log_leases import (
    AppendLeaseLog,
    CloseLeaseLog,
    LogLeases,
    OpenedLeaseLog,
    OpenLeaseLog,
    ReadLeaseLog,
)
from dlog.groups.membership import Phase
from dlog.groups.meta_leases import MetaLeases
from dlog.groups.places import GroupPlaces
from dlog.groups.shards import GroupShard
from dlog.groups.view import WorkerId
from dlog.groups.weights import AVERAGE, read_weights, slack_of, weights_of
from dlog.groups.workers import WorkerNode
from dlog.meta.layout import Layout
from dlog.meta.store import parent_of
from dlog.testing.sim.groups_oracle import GroupOracle
from dlog.testing.sim.groups_swarm import (
    SPAN_MS,
    TIMEOUT_S,
    GroupWeather,
    draw_group_weather,
)
from dlog.testing.sim.groups_worker import SimMember
from dlog.testing.sim.metadata import Answered, MetaManners, SimMeta
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import World, require

LIVE_MS = 25 * TIMEOUT_S * 1000
LOOK_MS = TIMEOUT_S * 1000 / 10
WEIGHED_QUIET = 3  # more times, where shards are weighed
NOISE = 0.05  # of what shards are weighed by
QUIET_MS = 2.6 * TIMEOUT_S * 1000  # longer than until the next plan that nobody asked for


class GroupMeta(SimMeta):
    """A list of children changes, too."""

    def __init__(self, world: World, manners: MetaManners) -> None:
        super().__init__(world, manners)

    def _set(self, path: str, value: bytes, owner: Any = None) -> int:
        is_new = path not in self._nodes
        version = super()._set(path, value, owner)
        if is_new:
            self._wake(parent_of(path))
        return version

    def _drop(self, path: str) -> None:
        super()._drop(path)
        self._wake(parent_of(path))


@dataclass(slots=True)
class SimShard:
    """A log, as far as a group is concerned."""

    name: str
    parents: tuple[str, ...] = ()
    weight: int = 1
    load: int = 0  # messages or bytes: what it is weighed by, where shards are
    total: int = 0
    is_sealed: bool = False
    hold: int = 0  # of the group: behind it no policy truncates
    head: int = 0  # what is before it is gone
    waiters: list[Callable[[], None]] = field(default_factory=list)

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for each in waiters:
            each()


class LeaseLogs:
    """Logs with one writer each, and nothing else; the way to them is as bad as to metadata."""

    def __init__(self, scene: GroupScene) -> None:
        self._scene = scene
        self._epochs: dict[str, int] = {}
        self._last: dict[str, bytes] = {}

    def perform(self, member: SimMember, effect: Effect, answer: Answered) -> None:
        world, scene = self._scene.world, self._scene

        def arrive() -> None:
            if world.strikes(scene.weather.append_fails, "a lease log: request lost"):
                member.after(1.0, lambda: answer(None, Timeout("no reply in time")))
                return
            value: Any = None
            error: DlogError | None = None
            try:
                if isinstance(effect, OpenLeaseLog):
                    scene.oracle.on_opening(member.id, effect.shard)
                value = self._apply(effect)
            except Fenced as fenced:
                error = fenced
            if world.strikes(scene.weather.append_fails, "a lease log: reply lost"):
                value, error = None, Timeout("no reply in time")
            world.after(
                world.chance.delay(member.meta_ms),
                lambda: member.receive(lambda: answer(value, error)),
            )

        world.after(0.05 + world.chance.delay(member.meta_ms), arrive)

    def _apply(self, effect: Effect) -> Any:
        match effect:
            case OpenLeaseLog(shard=shard):
                self._epochs[shard] = self._epochs.get(shard, 0) + 1
                return OpenedLeaseLog(self._epochs[shard], self._last.get(shard))
            case AppendLeaseLog(shard=shard, epoch=epoch, value=value):
                if self._epochs.get(shard) != epoch:
                    raise Fenced("another writer took the log over")
                self._last[shard] = value
                self._scene.oracle.on_appended(Lease.from_bytes(value, where="a lease log"))
                return None
            case CloseLeaseLog():
                return None
            case ReadLeaseLog(shard=shard):
                return self._last.get(shard)
        raise AssertionError(effect)


class GroupScene:
    def __init__(self, world: World, weather: GroupWeather) -> None:
        self.world = world
        self.weather = weather
        self.meta = GroupMeta(world, weather.meta)
        self.places = GroupPlaces(_LAYOUT, "g", "s")
        self.stream_path = _LAYOUT.stream("s")
        self.oracle = GroupOracle(world, weather.store == "logs")
        self.logs = LeaseLogs(self)
        self.shards: dict[str, SimShard] = {}
        self.numbers: dict[str, int] = {}
        self.members: list[SimMember] = []
        self.reviving = 0  # workers that are about to come back
        self.oracle.shards = self.shards
        self._names = 0
        self.calm_ms = math.inf  # since when
        self._leases = self.places.leases + "/"
        self.meta.audit = self._audit
        for number in range(weather.shards):
            weight = 1 + number % 3 if weather.weights else 1
            self.add(SimShard(f"s{number}", weight=weight, total=weather.messages))
        self.store_shards()

    def add(self, shard: SimShard) -> None:
        self.shards[shard.name] = shard
        self.numbers[shard.name] = len(self.numbers)

    def _audit(self, path: str, value: bytes) -> None:
        if path.startswith(self._leases):
            self.oracle.on_node(Lease.from_bytes(value, where=path))

    def store_shards(self) -> None:
        listed = [[s.name, list(s.parents), s.weight] for s in self.shards.values()]
        self.meta.store(self.stream_path, json.dumps(listed).encode())

    def read_shards(self) -> Procedure[list[GroupShard]]:
        value, _ = yield ReadNode(self.stream_path)
        listed = json.loads(value)
        if not self.weather.weighs:
            return [GroupShard(name, tuple(parents), weight) for name, parents, weight in listed]
        weights = yield from read_weights(self.places)
        return [
            GroupShard(name, tuple(parents), weights.get(self.numbers[name], AVERAGE))
            for name, parents, _ in listed
        ]

    def weigh(self) -> dict[str, int]:
        """As somebody measures it, who is never quite right."""
        chance = self.world.chance
        return {
            shard.name: round(shard.load * (1 + NOISE * (2 * chance.random() - 1)))
            for shard in self.shards.values()
        }

    def weights(self) -> dict[str, int]:
        """As they are in truth, and as everybody should plan with."""
        if self.weather.weighs:
            return weights_of({shard.name: shard.load for shard in self.shards.values()})
        return {shard.name: shard.weight for shard in self.shards.values()}

    def leases_of(self, member: SimMember) -> MetaLeases | LogLeases:
        kind = LogLeases if self.weather.store == "logs" else MetaLeases
        return kind(self.places, member, member.now_us)

    # --- who takes part

    def spawn(self, name: str | None = None) -> SimMember:
        if name is None:
            name = f"w{self._names}"
            self._names += 1
        domain = None
        if self.weather.domains:
            domain = "ab"[int(name[1:]) % self.weather.domains]
        member = SimMember(self, name, domain)
        self.members.append(member)
        return member

    def on_ended(self, member: SimMember) -> None:
        """Whoever died, or was taken for dead, may come back under its name."""
        world, core = self.world, member.core
        if core.member.phase is Phase.LOST:
            calm_ms = world.now_ms - self.calm_ms
            # Behind a slow link, one answer in ten thousand takes half a time-out.
            was_well = calm_ms > 2 * TIMEOUT_S * 1000 and member.meta_ms <= 1.0
            require(not was_well, "I27", f"{member} was well, and taken for dead")
        if core.has_ended and core.member.phase is not Phase.LOST:
            return
        if world.is_calm or world.chance.hits(self.weather.restarts, f"{member.name} comes back"):
            self.reviving += 1
            world.after(1.0 + world.chance.delay(50.0), lambda: self._revive(member.name))

    def _revive(self, name: str) -> None:
        self.reviving -= 1
        if not any(each.alive and each.name == name for each in self.members):
            self.spawn(name)

    def living(self) -> list[SimMember]:
        return [each for each in self.members if each.alive]


class GroupHistory:
    def __init__(self, scene: GroupScene) -> None:
        self.scene = scene
        self.world = scene.world
        self.weather = scene.weather

    def run(self) -> None:
        world, weather = self.world, self.weather
        at = self._some_time
        for _ in range(weather.workers):
            world.after(world.chance.delay(5.0), self._join)
        for _ in range(weather.joiners):
            world.after(at(), self._join)
        for _ in range(weather.leavers):
            world.after(at(), self._leave)
        for _ in range(weather.splits):
            world.after(at(), self._split)
        for _ in range(weather.more):
            world.after(at(), self._append)
        for _ in range(weather.cuts):
            world.after(at(), self._cut)
        for _ in range(weather.truncations):
            world.after(at(), self._truncate)
        if weather.seals:
            world.after(at(), self._seal)
        for _ in range(weather.weighs):
            world.after(at(), self._shift)
        world.run(until_ms=SPAN_MS)
        self._heal()
        self._live()

    def _some_time(self) -> float:
        return self.world.chance.random() * SPAN_MS

    # --- what happens

    def _join(self) -> None:
        self.scene.spawn()

    def _leave(self) -> None:
        living = self.scene.living()
        if len(living) > 1:
            self.world.chance.pick(living, "who leaves").leave()

    def _cut(self) -> None:
        living = self.scene.living()
        if living:
            self.world.chance.pick(living, "who is cut off").cut_off()

    def _append(self) -> None:
        open_ones = [each for each in self.scene.shards.values() if not each.is_sealed]
        if open_ones:
            shard = self.world.chance.pick(open_ones, "where a message comes")
            shard.total += 1
            shard.wake()

    def _shift(self) -> None:
        """More comes in one shard than in others, from here on."""
        names = list(self.scene.shards)
        name = self.world.chance.pick(names, "a shard that becomes heavy or light")
        self.scene.shards[name].load = self.world.chance.pick((1000, 0, 100), "its load")

    def _truncate(self) -> None:
        """By policy, all that the group lets go."""
        for shard in self.scene.shards.values():
            shard.head = shard.hold

    def _split(self) -> None:
        scene = self.scene
        open_ones = [each for each in scene.shards.values() if not each.is_sealed]
        if not open_ones:
            return
        parent = self.world.chance.pick(open_ones, "the shard that is split")
        self.world.mark("split")
        self.world.note(f"{parent.name} is split")
        parent.is_sealed = True
        for side in "ab":
            name = parent.name + side
            scene.add(SimShard(name, (parent.name,), total=self.weather.messages))
        scene.store_shards()
        parent.wake()

    def _seal(self) -> None:
        for shard in self.scene.shards.values():
            shard.is_sealed = True
            shard.wake()

    def _heal(self) -> None:
        scene, world = self.scene, self.world
        world.note("--- all is well from here on")
        world.is_calm = True
        scene.calm_ms = world.now_ms
        scene.meta.heal()
        for each in scene.members:
            each.thaw()
            each.is_cut = False
        if not scene.living() and not self._is_done_for():
            scene.spawn()

    # --- the end

    def _is_done_for(self) -> bool:
        """A job that is done needs nobody."""
        leases = self.scene.oracle.leases
        return all(s in leases and leases[s].is_finished for s in self.scene.shards)

    def _live(self) -> None:
        world, end_ms = self.world, self.world.now_ms + LIVE_MS
        while (missing := self._missing()) is not None:
            require(world.now_ms < end_ms, "I27", missing)
            world.run(until_ms=world.now_ms + LOOK_MS)
            if not self.scene.living() and not self._is_done_for():
                self.scene.spawn()
        self.scene.oracle.check_end()
        if self.weather.quiet and self.scene.living():
            self._be_quiet()

    def _missing(self) -> str | None:
        """What is not yet as it should be."""
        scene = self.scene
        if self._is_done_for():
            done = [each for each in scene.living() if each.core.options.is_job]
            return f"{done} are still there" if done else None
        living = scene.living()
        if not living:
            return "nobody is there"
        if scene.reviving:
            return f"{scene.reviving} workers are about to come back"
        for each in living:
            if not each.core.member.is_member or each.core.is_leaving:
                return f"{each} is no member"
        dead = set(scene.meta.below(scene.places.workers)) - {each.id.to_node() for each in living}
        if dead:
            return f"{sorted(dead)} are not buried"
        kept, leases, truth = scene.oracle.kept, scene.oracle.leases, scene.weights()
        weights: dict[WorkerId, list[int]] = {each.id: [] for each in living}
        for name, shard in scene.shards.items():
            lease = leases.get(name)
            if lease is not None and lease.is_finished:
                continue
            if any(p not in leases or not leases[p].is_finished for p in shard.parents):
                return f"{name} waits for its parents"
            if lease is None or lease.consumer not in weights:
                return f"nobody consumes {name}: {lease}"
            if lease.owner != lease.consumer and lease.owner in weights:
                return f"nobody consumes {name}: {lease}"
            if shard.is_sealed:
                return f"{name} is not finished"
            at = 0
            if (of_it := kept.get(name)) is not None and of_it.checkpoint is not None:
                at = of_it.checkpoint.next_seq
            if at != shard.total and not (self.weather.checkpoints == "late"):
                return f"{name} is kept at {at} of {shard.total}"
            for seq in range(shard.total):
                if not scene.oracle.processed[name, seq]:
                    return f"{name}: {seq} is not processed"
            consumer = next(each for each in living if each.id == lease.consumer)
            if name not in consumer.core.consumers:
                return f"{consumer} does not know that it has {name}"
            weights[lease.consumer].append(truth[name])
        if self.weather.weighs and any(each.core.moves for each in living):
            return "somebody moves shards still, by older weights"
        by_domain: dict[str | None, list[int]] = {}
        for each in living:
            by_domain.setdefault(each.core.member.domain, []).append(len(weights[each.id]))
        alike = len(set(truth.values())) == 1  # or domains count for nothing
        noise = NOISE if self.weather.weighs else 0.0
        return _unevenness(weights.values(), noise) or (_one_sided(by_domain) if alike else None)

    def _be_quiet(self) -> None:
        """Nothing moves any more, and nobody asks for much."""
        world, oracle = self.world, self.scene.oracle
        world.run(until_ms=world.now_ms + TIMEOUT_S * 1000)
        changes, asked = oracle.changes, {each: each.asked for each in self.scene.living()}
        world.run(until_ms=world.now_ms + QUIET_MS)
        for _ in range(WEIGHED_QUIET if self.weather.weighs else 0):
            if oracle.changes == changes and self._missing() is None:
                break
            # Noise may be what was missing for a move, once.
            changes, asked = oracle.changes, {each: each.asked for each in self.scene.living()}
            world.run(until_ms=world.now_ms + QUIET_MS)
        require(oracle.changes == changes, "LH flaw 3", "shards move without end")
        for each in self.scene.living():
            if each in asked and not self.weather.seals:
                self._check_rate(each, each.asked - asked[each])
        require(self._missing() is None, "I27", f"it did not stay so: {self._missing()}")

    def _check_rate(self, member: SimMember, asked: int) -> None:
        """A renewal, a look at ourselves, and the neighbours', each renewal; and now and then a
        plan."""
        count = len(self.scene.living())
        options = member.core.options
        renewals = QUIET_MS / 1000 / options.renew_s + 1
        looks = min(options.neighbours, count - 1)
        plans = 2 * (6 + count)  # with a sync before some of it
        most = renewals * (3 + 2 * looks) + plans
        if options.prove_s is not None and self.weather.store == "nodes":
            proofs = QUIET_MS / 1000 / options.prove_s + 1
            most += 2 * proofs * len(member.core.consumers)  # a sync and a read
        require(asked <= most, "LH-28", f"{member} asked {asked} times, {most:.0f} would do")


def _unevenness(weights: Collection[list[int]], noise: float) -> str | None:
    """The richest is above the poorest by no more than its lightest shard, or a quarter of what is
    usual: with equal weights, by no more than one. What is measured, with some `noise`, has to be
    worth the moves, too: then it is the heaviest shard, and the quarter comes on top."""
    loads = [sum(each) for each in weights]
    gap = max(loads) - min(loads)
    lightest = [min(each, default=0) for each in weights if sum(each) == max(loads)]
    alike = len({weight for each in weights for weight in each}) == 1
    slack = 0 if alike else slack_of([w for each in weights for w in each], len(loads))
    most = max(slack, min(lightest))
    if noise:
        heaviest = max(weight for each in weights for weight in each)
        most = max(slack, heaviest) + slack + round(2 * noise * max(loads))
    return None if gap <= most else f"it is not even: {sorted(weights)}"


def _one_sided(by_domain: dict[str | None, list[int]]) -> str | None:
    """Each domain has less than one shard more or less than is its part."""
    shards = sum(map(sum, by_domain.values()))
    workers = sum(map(len, by_domain.values()))
    for domain, counts in by_domain.items():
        if abs(sum(counts) * workers - shards * len(counts)) >= workers:
            return f"domain {domain} has {sum(counts)} of {shards}: {by_domain}"
    return None


_LAYOUT = Layout()


_node_once = functools.lru_cache(1 << 14)(WorkerNode.from_bytes)
_lease_once = functools.lru_cache(1 << 14)(Lease.from_bytes)


@contextlib.contextmanager
def decoded_once() -> Iterator[None]:
    """What was stored is decoded once, however many read it; values are frozen."""
    node, lease = WorkerNode.from_bytes, Lease.from_bytes
    WorkerNode.from_bytes = _node_once  # type: ignore[method-assign]
    Lease.from_bytes = _lease_once  # type: ignore[method-assign]
    try:
        yield
    finally:
        WorkerNode.from_bytes = node  # type: ignore[method-assign]
        Lease.from_bytes = lease  # type: ignore[method-assign]


def run_group_history(chance: Chance, *, told: bool = False, **fixed: Any) -> World:
    world = World(chance, told=told)
    weather = draw_group_weather(chance)
    if fixed:
        weather = weather.fixed(**fixed)
    with decoded_once():
        GroupHistory(GroupScene(world, weather)).run()
    return world
