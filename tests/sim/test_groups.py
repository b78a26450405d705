"""No history of a group breaks a promise, each planted bug is noticed, and large groups are even in
three rounds: I19 to I22, LH-01, LH-11, LH-22, LH-28, LH-63."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.view import WorkerId
from dlog.ids import Position
from dlog.testing.sim.groups_crowd import Crowd
from dlog.testing.sim.groups_oracle import GroupOracle
from dlog.testing.sim.groups_world import SimShard
from dlog.testing.sim.planted import groups, groups_weights, planted
from dlog.testing.sim.runs import run_many
from dlog.testing.sim.tape import of_seed
from dlog.testing.sim.world import Violation, World
from tests.sim.histories import (
    Stretch,
    counts,
    names_what_no_longer_tells,
    noticed,
    play,
    stretches,
)

HISTORIES, HISTORIES_MAX = 150, 1500
PLANTS = {**groups.PLANTS, **groups_weights.PLANTS}
CAUGHT = sorted(name for name, plant in PLANTS.items() if plant.survives is None)
SURVIVORS = sorted(PLANTS.keys() - set(CAUGHT))
ANA, BOB = WorkerId("ana", "a"), WorkerId("bob", "b")


@stretches(HISTORIES, 9_000, per_minute=6_500)
@pytest.mark.parametrize("store", ["nodes", "logs"])
def test_no_history_of_a_group_breaks_a_promise(store: str, stretch: Stretch) -> None:
    """Each shard is consumed by one, checkpoints only grow, nothing is processed twice unless
    somebody died or slept, and when all is well everything is done, even, and at rest."""
    tally = play("groups", stretch, store=store)
    for what in ("a worker crashes", "a worker is lost", "split", "a shard stops: handed_over"):
        assert tally.marks[what] > 0, f"{what}: it never came to that"


@pytest.mark.tier("test")
@pytest.mark.timeout(240)
@names_what_no_longer_tells
@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_bug_is_noticed(name: str) -> None:
    noticed(PLANTS[name], count=HISTORIES_MAX)


@counts(80, 800, seconds=18)
def test_lh_62_one_owner_at_once_doubles_what_owner_and_consumer_do_not(count: int) -> None:
    """Head to head, in the same weather: where a thief consumes as soon as it has the lease, as
    with one owner per lease, a rebalance without any crash processes messages twice."""
    single = PLANTS["a_thief_does_not_wait"]
    run_many("groups", count=count, **single.fixed).check()
    found = noticed(single, count=HISTORIES_MAX)
    assert found.finding is not None
    assert found.finding.promise in ("I22", "LH-11", "LH-37")


@counts(30, 300, seconds=5)
@pytest.mark.parametrize("name", SURVIVORS)
def test_a_survivor_does_no_harm(name: str, count: int) -> None:
    plant = PLANTS[name]
    with planted(plant):
        run_many(plant.world, count=count, **plant.fixed).check()


@pytest.mark.timeout(120)
def test_lh_22_28_63_a_large_group_is_even_in_three_rounds_and_quiet_then() -> None:
    """A fifth of the size that `python -m benchmarks.groups converge` measures."""
    crowd = Crowd(200)
    assert crowd.begin(10).rounds <= 3
    assert crowd.join(3).rounds <= 3
    assert crowd.lose(3).rounds <= 3
    average, most = crowd.asked_per_second(60_000.0)
    assert average <= most <= 2.0


# --- the oracle itself: each bad history is rejected


def oracle() -> GroupOracle:
    found = GroupOracle(World(of_seed(0)), keeps_in_logs=False)
    found.shards = {"s": SimShard("s", total=9), "child": SimShard("child", ("s",), total=1)}
    return found


def at(seq: int) -> Checkpoint:
    return Checkpoint(Position("u", seq, None))


class Somebody:
    def __init__(self, worker: WorkerId, deadline_s: float) -> None:
        self.id = worker
        self.alive = True
        self.core: Any = self
        self.member: Any = self
        self.has_ended = False
        self.consumers = {"s": None}
        self.deadline_s = deadline_s

    def now_s(self) -> float:
        return 10.0


def begun() -> tuple[GroupOracle, Lease]:
    found = oracle()
    lease = Lease("s").taken(ANA, 0)
    found.on_node(lease)
    found.on_started(ANA, "s", 1, None)
    found.members[ANA] = Somebody(ANA, 11.0)
    return found, lease


def _an_epoch_twice() -> None:
    found, lease = begun()
    found.on_node(Lease("s", lease.epoch, BOB, BOB))


def _a_grant_below_another() -> None:
    found, _ = begun()
    found.on_started(BOB, "s", 1, None)


def _robbed_within_its_deadline() -> None:
    found, lease = begun()
    found.on_node(lease.taken(BOB, 0))


def _two_deliver() -> None:
    found, lease = begun()
    found.members[ANA].deadline_s = 9.0
    found.on_node(lease.taken(BOB, 0))
    found.on_delivered(found.members[ANA], "s", 1, 0, 1)


def _a_checkpoint_goes_back() -> None:
    found, lease = begun()
    found.on_delivered(found.members[ANA], "s", 1, 0, 5)
    found.on_node(lease.saved(ANA, 1, at(5), 0))
    found.on_node(Lease("s", 1, ANA, ANA, at(4)))


def _a_checkpoint_of_what_was_not_delivered() -> None:
    found, lease = begun()
    found.on_node(lease.saved(ANA, 1, at(3), 0))


def _a_shard_ends_too_early() -> None:
    found, lease = begun()
    found.on_node(lease.finished(ANA, 1, None, 0))


def _a_child_comes_first() -> None:
    found = oracle()
    found.on_node(Lease("child").taken(ANA, 0))
    found.on_started(ANA, "child", 1, None)
    found.on_delivered(Somebody(ANA, 11.0), "child", 1, 0, 1)


def _what_was_truncated_is_delivered() -> None:
    found, _ = begun()
    found.shards["s"].head = 2
    found.on_delivered(found.members[ANA], "s", 1, 0, 1)


def _a_flush_is_left_out() -> None:
    found, _ = begun()
    found.said["s", 1] = at(4)
    found.on_stopped(ANA, "s", 1, is_lost=False)


def _lost_to_nobody() -> None:
    found, _ = begun()
    found.on_stopped(ANA, "s", 1, is_lost=True)


def _twice_without_a_reason() -> None:
    found = oracle()
    found.shards = {"s": SimShard("s", total=1)}
    found.on_processed("s", 0, 1)
    found.on_processed("s", 0, 1)
    found.check_end()


def _never() -> None:
    found = oracle()
    found.check_end()


BAD = {name: each for name, each in globals().items() if name.startswith("_") and callable(each)}


@pytest.mark.parametrize("name", [name for name in BAD if not name.startswith("__")])
def test_a_bad_history_is_rejected(name: str) -> None:
    with pytest.raises(Violation):
        BAD[name]()
