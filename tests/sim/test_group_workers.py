"""Real workers in virtual time, over simulated bookies and metadata: histories, what
planted bugs tell of them, the stories of bugs that they had, and the judge itself."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from dlog import uri
from dlog.client import Client
from dlog.errors import DlogError, LeaseLost, NotFound, Unavailable
from dlog.groups import presence
from dlog.groups.consumer import StopReason
from dlog.groups.holding import GroupHolds
from dlog.groups.leases import Lease
from dlog.groups.view import WorkerId
from dlog.testing.sim import Simulation, simulate
from dlog.testing.sim.planted import planted, workers, workers_heart
from dlog.testing.sim.runs import run_many
from dlog.testing.sim.tape import of_seed
from dlog.testing.sim.workers_oracle import Database, Life, Visit, WorkersOracle
from dlog.testing.sim.workers_swarm import WorkersWeather
from dlog.testing.sim.world import Violation, World
from tests.sim.histories import (
    Stretch,
    counts,
    fails_as_it_is,
    names_what_no_longer_tells,
    noticed,
    play,
    stretches,
)

HISTORIES_MAX = 60
PLANTS = {**workers.PLANTS, **workers_heart.PLANTS}
CAUGHT = sorted(name for name, plant in PLANTS.items() if plant.survives is None)
SURVIVORS = sorted(PLANTS.keys() - set(CAUGHT))


@stretches(4, 150, per_minute=88)
def test_no_history_of_workers_breaks_a_promise(stretch: Stretch) -> None:
    """I19 to I22, I25, I27, LH-11, LH-28, LH-51, LH-57, LH-58: see `WorkersOracle`."""
    play("workers", stretch)


@pytest.mark.tier("test")
@pytest.mark.timeout(180)
@names_what_no_longer_tells
@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_bug_is_noticed(name: str) -> None:
    noticed(PLANTS[name], count=HISTORIES_MAX)


@counts(2, 30, seconds=10)
@pytest.mark.parametrize("name", SURVIVORS)
def test_a_survivor_does_no_harm(name: str, count: int) -> None:
    """If one of these is noticed one day, it belongs to the others."""
    plant = PLANTS[name]
    with planted(plant):
        run_many(plant.world, count=count, **plant.fixed).check()


# --- stories

MESSAGES, SHARDS = 60, 3
WAYS: dict[str, Any] = {"heart": "loop", "threads": 0, "timeout_ms": 500, "flush_ms": 50}


class Guarded:
    """What a database would be: it refuses smaller tokens, and knows how far it is."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}
        self.next_seq: dict[str, int] = {}
        self.values: list[bytes] = []
        self.refused = 0

    def begin(self, log: str, token: int) -> None:
        assert token not in (0, self.tokens.get(log)), "I20: a token is given twice"
        if token < self.tokens.get(log, 0):
            raise LeaseLost("somebody else was here")
        self.tokens[log] = token

    def add(self, log: str, token: int, batch: Any) -> None:
        if token < self.tokens.get(log, 0):
            self.refused += 1
            raise LeaseLost("somebody else was here")
        for message in batch.to_pylist():
            at = self.next_seq.get(log, 0)
            assert message.seq <= at, "nothing is left out"
            if message.seq == at:
                self.values.append(message.value)
                self.next_seq[log] = at + 1


class Program:
    def __init__(self, sim: Simulation, database: Guarded) -> None:
        self._sim = sim
        self._database = database

    async def initialize(self, shard: Any) -> None:
        self._shard = shard
        self._database.begin(shard.log, shard.token)

    async def process(self, batch: Any, tracker: Any) -> None:
        await self._sim.pass_time(0.02)
        self._database.add(self._shard.log, self._shard.token, batch)
        tracker.checkpoint()


async def _work(sim: Simulation, database: Guarded, seconds: float) -> None:
    """As long as it is told, and again when it fails."""
    async with Client(uri.parse(sim.url)) as client:
        while True:
            with contextlib.suppress(DlogError):
                async with client.open_worker("g", "s", lambda: Program(sim, database), **WAYS):
                    await sim.pass_time(seconds)
                return


@simulate(histories=3, troubles="bookies")
async def test_effects_come_once_whatever_becomes_of_workers(sim: Simulation) -> None:
    """LH-01, LH-02, LH-12, LH-14, LH-52, I20, I22."""
    client = sim.connect()
    database = Guarded()
    with contextlib.suppress(DlogError):
        await client.create_stream("s", shards=SHARDS)
    sent: list[bytes] = []

    async def write() -> None:
        async with Client(uri.parse(sim.url)) as own:
            async with own.stream("s").open_writer() as writer:
                for number in range(MESSAGES):
                    await writer.append(b"%d" % number, key=b"%d" % (number % 9))
                    sent.append(b"%d" % number)

    sim.heal()
    await sim.start(write(), name="writer").result()
    workers = [sim.start(_work(sim, database, 6.0), name=f"w{n}") for n in range(2)]
    await sim.pass_time(0.3 + sim.chance.random())
    workers[0].kill()
    await sim.pass_time(0.3 + sim.chance.random())
    workers[1].freeze(1.0)
    third = sim.start(_work(sim, database, 4.0), name="w2")
    await third.result()
    for _ in range(400):
        if len(database.values) >= MESSAGES:
            break
        await sim.pass_time(0.1)
    assert sorted(database.values) == sorted(sent)
    await workers[1].result()


# --- stories of bugs that the histories found


@simulate(histories=1, troubles="none")
async def test_a_program_that_hears_of_the_loss_first_is_let_go(sim: Simulation) -> None:
    """LH-52: its database refuses it, and nothing else ever would tell the worker: it has nothing
    to save, and nobody asks for the shard."""
    client = sim.connect()
    stream = await client.create_stream("s", shards=1)
    async with stream.open_writer() as writer:
        await writer.append(b"1")
    tokens: list[int] = []

    class Refused:
        async def process(self, batch: Any, tracker: Any) -> None:
            tokens.append(tracker.token)
            if len(tokens) == 1:
                await _reset_in_silence(client)
                raise LeaseLost("somebody else was here")
            tracker.checkpoint()

    async with client.open_worker("g", "s", Refused, **WAYS):
        await sim.pass_time(3.0)
    assert tokens == [1, 3]


async def _reset_in_silence(client: Client) -> None:
    """Whoever has the shard would be asked to look, and the request is lost."""

    def lost(*_: Any) -> Any:
        raise Unavailable("no answer")

    ring = presence.ring
    presence.ring = lost
    try:
        await client.group("g", "s").reset("earliest", force=True)
    finally:
        presence.ring = ring


@simulate(histories=1, troubles="none")
async def test_what_came_before_is_not_held_for_ever(sim: Simulation) -> None:
    """I19: who did the last of a shard died before it let go of it."""
    client = sim.connect()
    stream = await client.create_stream("s", shards=1)
    async with stream.open_writer() as writer:
        await writer.append(b"1")
        await stream.split(0)
        await writer.append(b"2")

    async def nothing(batch: Any) -> None:
        pass

    async def dies(self: GroupHolds, log: str) -> None:
        kept = self._kept.get(log)
        if kept is not None:
            kept.wanted = None

    dropped = GroupHolds._finish
    GroupHolds._finish = dies  # type: ignore[method-assign]
    try:
        async with client.open_worker("g", "s", nothing, **WAYS):
            await sim.pass_time(3.0)
    finally:
        GroupHolds._finish = dropped  # type: ignore[method-assign]
    assert (await client.admin.truncate("s/0", "latest")).held_by == ()
    assert len(await client.admin.holds("s/1")) == 1


@simulate(histories=1, troubles="none")
async def test_the_last_holds_of_a_job_are_dropped(sim: Simulation) -> None:
    """I19: its worker ends right behind."""
    client = sim.connect()
    stream = await client.create_stream("s", shards=2)
    async with stream.open_writer() as writer:
        await writer.append(b"1", key=b"1")

    async def nothing(batch: Any) -> None:
        pass

    async with client.open_worker("g", "s", nothing, stop_at_end=True, **WAYS) as worker:
        assert await worker.wait() == "all shards are done"
    for log in ("s/0", "s/1"):
        with contextlib.suppress(NotFound):
            assert await client.admin.holds(log) == ()


@pytest.mark.parametrize(
    ("name", "story"),
    [
        (
            "nobody_looks_when_a_program_doubts",
            test_a_program_that_hears_of_the_loss_first_is_let_go,
        ),
        ("holds_of_parents_are_left", test_what_came_before_is_not_held_for_ever),
    ],
)
def test_a_story_notices_what_histories_do_not(name: str, story: Any) -> None:
    with planted(PLANTS[name]), fails_as_it_is():
        story()


# --- the judge itself: each bad history is rejected

ANA, BOB = WorkerId("ana", "a"), WorkerId("bob", "b")


class Shard:
    log, token, app, start = "s/0", 1, b"", None

    def still_owner(self) -> bool:
        return True


class Batch(list[int]):
    first_seq, last_seq = 0, 0


def begun(**weather: Any) -> tuple[WorkersOracle, Visit]:
    oracle = WorkersOracle(World(of_seed(0)), WorkersWeather(**weather))
    oracle._on_lease(Lease("s/0").taken(ANA, 0))
    visit = Visit(Life("ana", None), "s/0", 1, ANA, 1, Shard(), 0, 0, 0)  # type: ignore[arg-type]
    visit.is_initialized = True
    oracle.visits["s/0", 1] = oracle._by_turn["s/0", 1] = visit
    return oracle, visit


def _taken_from_the_living() -> None:
    oracle, _ = begun()
    oracle._on_lease(oracle.leases["s/0"].taken(BOB, 0))


def _taken_too_early() -> None:
    oracle, _ = begun(hand_over_ms=400)
    oracle._on_lease(oracle.leases["s/0"].announced(BOB, 0))
    oracle._on_lease(oracle.leases["s/0"].taken(BOB, 0))


def _delivered_by_who_lost_it() -> None:
    oracle, visit = begun()
    oracle.dead.add(ANA)
    oracle._on_lease(oracle.leases["s/0"].taken(BOB, 0))
    oracle.on_process(visit, Batch())  # type: ignore[arg-type]


def _told_to_be_the_owner_by_mistake() -> None:
    oracle, visit = begun()
    oracle.dead.add(ANA)
    oracle._on_lease(oracle.leases["s/0"].taken(BOB, 0))
    oracle.on_effect(visit)


def _released_at_a_call() -> None:
    oracle, visit = begun()
    oracle.on_process(visit, Batch())  # type: ignore[arg-type]
    oracle._on_lease(oracle.leases["s/0"].released(ANA, 1, None, 0))


def _released_without_a_word() -> None:
    oracle, _ = begun()
    oracle._on_lease(oracle.leases["s/0"].released(ANA, 1, None, 0))


def _released_without_a_flush() -> None:
    oracle, visit = begun()
    visit.said, visit.is_over = 3, True
    oracle._on_lease(oracle.leases["s/0"].released(ANA, 1, None, 0))


def _told_for_no_reason() -> None:
    oracle, visit = begun()
    oracle.on_shutdown(visit, StopReason.HANDED_OVER)


def _lost_to_nobody() -> None:
    oracle, visit = begun()
    oracle.on_shutdown(visit, StopReason.LOST)


def _delivered_behind_the_end() -> None:
    oracle, visit = begun(job=True)
    oracle.on_shutdown(visit, StopReason.CLOSING)
    oracle.on_process(visit, Batch())  # type: ignore[arg-type]


def _left_out() -> None:
    oracle, visit = begun()
    batch = Batch()
    batch.first_seq = 1  # type: ignore[misc]
    oracle.on_process(visit, batch)  # type: ignore[arg-type]


def _kept_and_not() -> None:
    oracle, visit = begun()
    oracle.on_saved(visit, 1)


def _finished_before_its_end() -> None:
    oracle, visit = begun()
    visit.is_over = True
    oracle._on_lease(oracle.leases["s/0"].finished(ANA, 1, None, 0))


def _never_told() -> None:
    oracle, visit = begun()
    visit.life.is_hurried = False
    visit.life.worker = _Closed()  # type: ignore[assignment]
    oracle.leases.clear()
    oracle.on_closed(visit.life)


class _Closed:
    class _heart:  # noqa: N801
        class _core:  # noqa: N801
            me = ANA


BAD = [
    _taken_from_the_living,
    _taken_too_early,
    _delivered_by_who_lost_it,
    _told_to_be_the_owner_by_mistake,
    _released_at_a_call,
    _released_without_a_word,
    _released_without_a_flush,
    _told_for_no_reason,
    _lost_to_nobody,
    _delivered_behind_the_end,
    _left_out,
    _kept_and_not,
    _finished_before_its_end,
    _never_told,
]


@pytest.mark.parametrize("history", BAD)
def test_a_bad_history_is_rejected(history: Callable[[], None]) -> None:
    with pytest.raises(Violation):
        history()


def test_the_database_refuses_smaller_tokens() -> None:
    database = Database()
    database.begin("s/0", 2)
    with pytest.raises(LeaseLost):
        database.add("s/0", 1, None)  # type: ignore[arg-type]
