"""Which bookies are left alone, for how long, who is not to blame, and that nobody is used again
before it was asked."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dlog.errors import Unavailable
from dlog.streams.health.bookies import (
    BOOKIE_HEALTH,
    ERRORS_MAX,
    INTERVAL_S,
    SUSPECTED_AGAIN_S,
    BookieQuarantine,
)
from dlog.streams.health.core import HealthOptions
from dlog.testing.sim import Simulation, simulate
from dlog.wire.bookie_codes import BLAMELESS, Answer
from tests.sim.virtual_loop import LoopClock, pass_time, run_virtually
from tests.unit.streams.health_tools import Fixed

BOOKIES = ["b1", "b2", "b3", "b4"]
FIRST_S = BOOKIE_HEALTH.isolation_s  # with a chance of ones


class Cluster:
    def __init__(self, fraction: float = 1.0, options: HealthOptions = BOOKIE_HEALTH) -> None:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.down: set[str] = set()
        self.asked: Counter[str] = Counter()
        self.health = BookieQuarantine(options=options, clock=self.clock, chance=Fixed(fraction))
        self.health.keep_only(BOOKIES)
        self.health.begin(self.ask)

    async def ask(self, bookie_id: str) -> None:
        self.asked[bookie_id] += 1
        if bookie_id in self.down:
            raise Unavailable(bookie_id)

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_s()

    def avoided(self) -> set[str]:
        return set(self.health.avoided(self.now_s))

    def err(self, bookie_id: str = "b1", times: int = ERRORS_MAX) -> None:
        for _ in range(times):
            self.health.note(bookie_id, Answer.TIMED_OUT, self.now_s)

    def refuse(self, bookie_id: str = "b1", times: int = ERRORS_MAX) -> None:
        for _ in range(times):
            self.health.note_unreachable(bookie_id, self.now_s)


def virtually(story: Callable[..., Any]) -> Callable[..., None]:
    def test() -> None:
        async def run() -> None:
            cluster = Cluster()
            try:
                await story(cluster)
            finally:
                await cluster.health.close()

        run_virtually(run())

    test.__doc__ = story.__doc__
    return test


@virtually
async def test_errors_up_to_a_threshold_are_borne(cluster: Cluster) -> None:
    cluster.err(times=ERRORS_MAX - 1)
    assert cluster.avoided() == set()
    cluster.err(times=1)
    assert cluster.avoided() == {"b1"}
    await pass_time(FIRST_S - 0.1)
    assert cluster.avoided() == {"b1"}
    await pass_time(0.2)
    assert cluster.avoided() == set()


@virtually
async def test_errors_of_another_interval_do_not_count(cluster: Cluster) -> None:
    cluster.err(times=ERRORS_MAX - 1)
    await pass_time(INTERVAL_S + 0.1)
    cluster.err(times=1)
    assert cluster.avoided() == set()


@pytest.mark.parametrize("answer", Answer)
def test_nobody_is_quarantined_for_what_he_is_not_to_blame_for(answer: Answer) -> None:
    @virtually
    async def story(cluster: Cluster) -> None:
        for _ in range(ERRORS_MAX):
            cluster.health.note("b1", answer, cluster.now_s)
        assert cluster.avoided() == (set() if answer in BLAMELESS else {"b1"})

    story()


@virtually
async def test_a_bookie_that_hangs_is_quarantined_at_once(cluster: Cluster) -> None:
    cluster.health.note_hung("b1", cluster.now_s)
    assert cluster.avoided() == {"b1"}


@virtually
async def test_cl11_nobody_is_used_again_who_does_not_answer(cluster: Cluster) -> None:
    """Its time is over, and it is down all the same."""
    cluster.down = {"b1"}
    cluster.err()
    await pass_time(10 * FIRST_S)
    assert cluster.avoided() == {"b1"}
    cluster.down = set()
    await pass_time(BOOKIE_HEALTH.interval_s)
    assert cluster.avoided() == set()


@virtually
async def test_failed_connections_are_a_suspicion_from_the_third_on(cluster: Cluster) -> None:
    cluster.down = {"b1"}
    cluster.refuse(times=ERRORS_MAX - 1)
    assert cluster.avoided() == set()
    assert not cluster.asked
    cluster.refuse(times=1)
    assert cluster.avoided() == {"b1"}  # at once, before anybody was asked
    await pass_time(BOOKIE_HEALTH.interval_s)
    assert cluster.avoided() == {"b1"}
    assert cluster.health._core.isolated == {"b1"}
    assert cluster.asked["b1"] == BOOKIE_HEALTH.quick_pings


@virtually
async def test_flaw_a_suspect_that_answers_is_not_isolated(cluster: Cluster) -> None:
    """It was the network, for a moment."""
    cluster.refuse()
    await pass_time(0.1)
    assert cluster.avoided() == set()
    assert cluster.asked == {"b1": 1}


@virtually
async def test_flaw_one_that_comes_and_goes_is_isolated_whatever_it_answers(
    cluster: Cluster,
) -> None:
    cluster.refuse()
    await pass_time(SUSPECTED_AGAIN_S - 1)
    assert cluster.avoided() == set()
    cluster.refuse()
    await pass_time(1)
    assert cluster.avoided() == {"b1"}
    await pass_time(FIRST_S)
    assert cluster.avoided() == set()


@virtually
async def test_connections_lost_together_count_once(cluster: Cluster) -> None:
    cluster.down = {"b1"}
    for _ in range(ERRORS_MAX):
        cluster.health.note_lost("b1", cluster.now_s)
    assert cluster.avoided() == set()
    for _ in range(ERRORS_MAX - 1):
        await pass_time(2)
        cluster.health.note_lost("b1", cluster.now_s)
    assert cluster.avoided() == {"b1"}


def test_quarantine_is_jittered() -> None:
    async def run() -> None:
        cluster = Cluster(fraction=0.0)
        cluster.err()
        await pass_time(FIRST_S / 2 - 0.1)
        assert cluster.avoided() == {"b1"}
        await pass_time(0.2)
        assert cluster.avoided() == set()
        await cluster.health.close()

    run_virtually(run())


@virtually
async def test_quarantine_grows_for_those_who_never_learn_up_to_a_bound(cluster: Cluster) -> None:
    lengths = []
    for _ in range(7):
        cluster.err()
        begin_s = cluster.now_s
        while cluster.avoided():
            await pass_time(1.0)
        lengths.append(cluster.now_s - begin_s)
    assert lengths[:3] == pytest.approx([FIRST_S * factor for factor in (1, 2, 4)], abs=1)
    assert lengths[-1] == pytest.approx(BOOKIE_HEALTH.isolation_s_max, abs=1)
    await pass_time(1000)  # it behaved
    cluster.err()
    await pass_time(FIRST_S + 0.1)
    assert cluster.avoided() == set()


@virtually
async def test_errors_in_quarantine_do_not_prolong_it(cluster: Cluster) -> None:
    cluster.err()
    await pass_time(FIRST_S - 1)
    cluster.err()
    cluster.refuse()
    await pass_time(1.1)
    assert cluster.avoided() == set()


@virtually
async def test_flaw_at_most_half_of_the_bookies_are_avoided(cluster: Cluster) -> None:
    cluster.down = set(BOOKIES)
    for bookie_id in BOOKIES:
        cluster.refuse(bookie_id)
        assert len(cluster.avoided()) <= 2
    await pass_time(60)
    assert len(cluster.avoided()) == 2
    for bookie_id in BOOKIES:
        cluster.err(bookie_id)
    assert len(cluster.avoided()) == 2


@virtually
async def test_an_operator_releases_all(cluster: Cluster) -> None:
    cluster.err()
    cluster.health.enable(False)
    cluster.err()
    cluster.refuse()
    cluster.health.note_lost("b1", cluster.now_s)
    cluster.health.note_hung("b1", cluster.now_s)
    assert cluster.avoided() == set()
    cluster.health.enable(True)
    assert cluster.avoided() == set()
    cluster.err()
    assert cluster.avoided() == {"b1"}


@virtually
async def test_who_left_is_forgotten(cluster: Cluster) -> None:
    cluster.err()
    cluster.err("b2", times=ERRORS_MAX - 1)
    cluster.health.keep_only(["b1", "b3", "b4"])
    assert cluster.avoided() == {"b1"}
    cluster.health.keep_only(["b3", "b4"])
    cluster.health.keep_only(BOOKIES)
    cluster.err("b2", times=1)
    assert cluster.avoided() == set()


@virtually
async def test_bookies_that_nobody_has_trouble_with_are_never_asked(cluster: Cluster) -> None:
    await pass_time(3600)
    assert not cluster.asked
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_nobody_is_used_again_before_anybody_can_be_asked() -> None:
    """Before the client has begun, and after it ended."""

    async def story() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        health = BookieQuarantine(clock=clock, chance=Fixed(1.0))
        health.keep_only(BOOKIES)
        asked: list[str] = []

        async def ask(bookie_id: str) -> None:
            asked.append(bookie_id)

        health.note_hung("b1", clock.monotonic_s())
        await pass_time(10 * FIRST_S)
        assert health.avoided(clock.monotonic_s()) == {"b1"}
        health.begin(ask)
        await pass_time(10 * FIRST_S)
        assert health.avoided(clock.monotonic_s()) == set()
        assert asked == ["b1"]
        await health.close()
        health.note_hung("b2", clock.monotonic_s())
        await pass_time(10 * FIRST_S)
        assert health.avoided(clock.monotonic_s()) == {"b2"}
        assert asked == ["b1"]

    run_virtually(story())


@simulate(histories=1, troubles="none")
async def test_a_bookie_of_a_cluster_is_asked_before_it_is_used_again(sim: Simulation) -> None:
    """By a real request, over the client as it is: it is down until long after its time is over."""
    client = sim.connect()
    log = await client.open_writer("orders")
    await log.append(b"first")
    health = log._engine._stores.ledgers._health
    bookie_id = sorted(sim.cluster.servers)[0]
    server = sim.cluster.servers[bookie_id]
    health.note_hung(bookie_id, sim.world.now_ms / 1000)
    server.stop()
    for _ in range(3):
        await sim.pass_time(FIRST_S)
        assert bookie_id in health._core.isolated
    sim.heal()
    await sim.pass_time(BOOKIE_HEALTH.interval_s)
    assert not health._core.isolated
    await log.append(b"second")
    await log.close()
    await client.close()


def test_importing_dlog_loads_nothing_of_it() -> None:
    command = (
        "import sys, dlog; sys.exit(any(name.startswith('dlog.streams') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", command], timeout=50).returncode == 0
