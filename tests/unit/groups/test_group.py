"""What a group looks like from outside, and how far it is behind: leases and workers are written as
they may stand, and read by `client.group`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dlog import aio
from dlog.errors import ConfigError, Conflict, LeaseLost, NotFound, Unavailable
from dlog.groups import presence
from dlog.groups.charter import Charter, Mark, agree
from dlog.groups.group_driver import GroupDriver
from dlog.groups.lags import Scales, lags_of, leases_of
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.meta_leases import MetaLeases
from dlog.groups.places import GroupPlaces
from dlog.groups.view import Move, WorkerId
from dlog.groups.weights import write_weights
from dlog.ids import Position
from dlog.reader.lag import Lag

ANA, BOB = WorkerId("ana", "a" * 32), WorkerId("bob", "b" * 32)
VALUE = b"x" * 100

_worlds = itertools.count()


class Scene:
    """A stream whose shards have 10, 20, 30, … messages, and a group that a test writes."""

    def __init__(self, client: Any, stream: Any, writer: Any) -> None:
        self.client, self.stream, self.writer = client, stream, writer
        self.keys: dict[int, bytes] = {}

    async def begin(self, charter: dict[str, Any]) -> None:
        self.stores = await self.client._stores(True)
        self.places = GroupPlaces(self.stores.layout, "billing", "orders")
        self.driver = GroupDriver(self.stores, self.places, self.client)
        meta = await self.stream.describe()
        self.uid = meta.uid
        self.charter = Charter(meta.uid, "nodes", 1000, **charter)
        await self.driver.run(agree(self.places, self.charter))
        self.leases = MetaLeases(self.places, self.stores.chance, lambda: 7)
        self.group = self.client.group("billing", "orders")

    async def send(self, shard: int, many: int) -> None:
        if shard not in self.keys:
            of = self.writer.shard_of
            self.keys[shard] = next(k for n in itertools.count() if of(k := b"%d" % n) == shard)
        await self.writer.append_many([VALUE] * many, keys=[self.keys[shard]] * many)

    async def at(self, shard: int, seq: int) -> Checkpoint:
        uid = (await self.client.admin.describe(f"orders/{shard}")).uid
        return Checkpoint(Position(uid, seq, None))

    async def take(self, shard: int, worker: WorkerId, seq: int | None = None) -> Any:
        held = await self.driver.run(self.leases.claim(f"orders/{shard}", worker))
        if seq is not None:
            checkpoint = await self.at(shard, seq)
            held = await self.driver.run(self.leases.save(held, worker, checkpoint))
        return held

    async def register(self, worker: WorkerId, **more: Any) -> None:
        await self.driver.run(presence.register(self.places, worker, more.get("domain")))

    async def plan(self, **what: Any) -> set[Move]:
        return set(await self.group.plan(**what))

    async def lags(self, **charter: Any) -> dict[str, Lag]:
        """Behind the leases as they are, as a group with such a charter sees it."""
        numbers = {f"orders/{n}": n for n in range(3)}
        leases = await leases_of(self.driver, self.leases, numbers)
        return await lags_of(
            self.stores, Charter(self.uid, "nodes", 1000, **charter), leases, numbers
        )


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with aio.connect(f"memory:groups-{next(_worlds)}") as client:
        stream = await client.create_stream("orders", shards=3)
        async with stream.open_writer() as writer:
            found = Scene(client, stream, writer)
            for shard in range(3):
                await found.send(shard, 10 * (shard + 1))
            yield found


async def test_a_description_says_of_each_shard_what_its_lease_says(scene: Scene) -> None:
    """One shard in each state, with its lag, its weight, and where it came from."""
    await scene.begin({"weigh": "lag"})
    await scene.stream.split(0)  # into 3 and 4
    await scene.stream.split(1)  # into 5 and 6
    for worker in (BOB, ANA):
        await scene.register(worker, domain=f"rack of {worker.name}")
    held = await scene.take(0, ANA, 4)
    await scene.driver.run(scene.leases.finish(held, ANA, await scene.at(0, 10)))
    await scene.take(1, ANA, 5)
    await scene.take(2, ANA, 12)
    await scene.driver.run(scene.leases.announce("orders/2", BOB))
    await scene.driver.run(write_weights(scene.places, {1: 40, 2: 260}))

    told = await scene.group.describe()
    assert (told.group, told.stream, told.leases) == ("billing", "orders", "nodes")
    assert (told.timeout_ms, told.is_job, told.weigh) == (1000, False, "lag")
    assert [(each.id, each.domain) for each in told.members] == [
        (ANA, "rack of ana"),
        (BOB, "rack of bob"),
    ]
    rows = {
        each.number: (each.state, each.owner, each.consumer, each.epoch, each.weight)
        for each in told.shards
    }
    assert rows == {
        0: ("finished", None, None, 1, 100),
        1: ("consumed", ANA, ANA, 1, 40),
        2: ("handed_over", BOB, ANA, 1, 260),
        3: ("free", None, None, 0, 100),
        4: ("free", None, None, 0, 100),
        5: ("waiting", None, None, 0, 100),
        6: ("waiting", None, None, 0, 100),
    }
    assert all(each.log == f"orders/{each.number}" for each in told.shards)
    seqs = [each.checkpoint and each.checkpoint.next_seq for each in told.shards]
    assert seqs == [10, 5, 12, None, None, None, None]
    behind = [None if each.lag is None else each.lag.messages for each in told.shards]
    assert behind == [0, 15, 18, None, None, None, None]
    assert told.lag_messages == 33
    assert [each.updated_us for each in told.shards] == [7, 7, 7, 0, 0, 0, 0]
    parents = {each.number: each.parents for each in told.shards}
    assert parents[3] == parents[4] == ("orders/0",)
    assert parents[5] == parents[6] == ("orders/1",)
    assert parents[1] == ()
    assert all(each.lag is None for each in (await scene.group.describe(lag=False)).shards)


async def test_lag_is_what_is_behind_the_checkpoint(scene: Scene) -> None:
    """In messages, in bytes, and in seconds since the oldest of them was written."""
    await scene.begin({})
    whole = await scene.lags()
    assert [each.messages for each in whole.values()] == [10, 20, 30]
    for number, seq in ((0, 0), (1, 19), (2, 20)):
        await scene.take(number, ANA, seq)
    parts = await scene.lags()
    assert [each.messages for each in parts.values()] == [10, 1, 10]
    for log, part in parts.items():
        of_whole = whole[log].bytes * part.messages / whole[log].messages
        assert abs(part.bytes - of_whole) <= 1
        assert part.bytes >= part.messages * len(VALUE)
        assert 0 <= part.seconds < 3600
    await scene.take(0, ANA, 10)
    assert (await scene.lags())["orders/0"] == Lag(0, 0, 0.0)


async def test_a_group_without_a_checkpoint_is_behind_its_own_beginning(scene: Scene) -> None:
    """A shard that is not in the list of beginnings begins at its first message."""
    begin = {0: Mark(3, is_final=False), 1: Mark(20, is_final=False)}
    await scene.begin({"begin": begin})
    assert [each.messages for each in (await scene.lags(begin=begin)).values()] == [7, 0, 30]
    await scene.take(0, ANA, 9)
    await scene.take(1, ANA, 2)  # put back by somebody
    assert [each.messages for each in (await scene.lags(begin=begin)).values()] == [1, 18, 30]


async def test_the_lag_of_a_job_ends_where_the_job_does(scene: Scene) -> None:
    """Also in bytes, in their part; what is behind the end by now is at its end."""
    end = {0: Mark(8, is_final=False), 1: Mark(20, is_final=False), 2: Mark(4, is_final=False)}
    await scene.begin({"end": end})
    whole = await scene.lags()
    job = await scene.lags(end=end)
    assert [each.messages for each in job.values()] == [8, 20, 4]
    for log, of_job in job.items():
        assert of_job.bytes == whole[log].bytes * of_job.messages // whole[log].messages
    for number, seq in ((0, 6), (1, 20), (2, 9)):
        await scene.take(number, ANA, seq)
    after = await scene.lags(end=end)
    assert [each.messages for each in after.values()] == [2, 0, 0]
    assert after["orders/1"] == after["orders/2"] == Lag(0, 0, 0.0)


@pytest.mark.parametrize("weigh", ["lag", "bytes"])
async def test_shards_are_weighed_by_what_is_open_and_by_what_came(
    scene: Scene, weigh: str
) -> None:
    """By lag: messages behind each checkpoint, without shards that are finished. By bytes: what
    came to each since the last time, so nothing the first time."""
    await scene.begin({"weigh": weigh})
    numbers = {f"orders/{n}": n for n in range(3)}
    numbers["orders/9"] = 9  # its log is not made yet
    scales = Scales(scene.stores, scene.driver, scene.leases, scene.charter, numbers)
    await scene.take(1, ANA, 15)
    held = await scene.take(0, ANA, 10)
    await scene.driver.run(scene.leases.finish(held, ANA, None))
    first = await scales.weigh()
    await scene.send(2, 7)
    await scene.send(1, 1)
    second = await scales.weigh()
    third = await scales.weigh()
    if weigh == "lag":
        assert first == {"orders/1": 5, "orders/2": 30}
        assert second == third == {"orders/1": 6, "orders/2": 37}
        return
    assert first == {}
    assert second.keys() == {"orders/0", "orders/1", "orders/2"}
    assert second["orders/0"] == 0
    assert second["orders/2"] > 4 * second["orders/1"] > 4 * len(VALUE)
    assert third == {"orders/0": 0, "orders/1": 0, "orders/2": 0}


async def test_one_shard_alone_is_not_weighed_by_bytes(scene: Scene) -> None:
    await scene.begin({"weigh": "bytes"})
    numbers = {"orders/0": 0}
    scales = Scales(scene.stores, scene.driver, scene.leases, scene.charter, numbers)
    assert [await scales.weigh() for _ in range(3)] == [{}, {}, {}]


async def test_what_would_move_is_told_for_workers_that_come_or_go(scene: Scene) -> None:
    await scene.begin({})
    for worker in (ANA, BOB):
        await scene.register(worker)
    for shard, worker in ((0, ANA), (1, ANA), (2, BOB)):
        await scene.take(shard, worker)
    assert await scene.plan() == set()
    for move in await scene.plan(without=["bob"]):
        assert move == Move("orders/2", ANA, None)
    (one,) = await scene.plan(add=1)
    assert (one.taker.name, one.victim) == ("new-1", ANA)
    (named,) = await scene.plan(add=["cyd"])
    assert (named.taker.name, named.victim) == ("cyd", ANA)
    assert len(await scene.plan(add=2, without=["ana", "bob"])) == 3
    assert {m.taker.name for m in await scene.plan(add=2, without=["ana"])} == {"new-1", "new-2"}
    with pytest.raises(NotFound, match="'eve'"):
        await scene.group.plan(without=["eve", "ana"])


async def test_what_is_handed_over_is_planned_as_the_taker_s(scene: Scene) -> None:
    await scene.begin({})
    for worker in (ANA, BOB):
        await scene.register(worker)
    for shard in range(3):
        await scene.take(shard, ANA)
    assert len(await scene.plan()) == 1
    await scene.driver.run(scene.leases.announce("orders/2", BOB))
    assert await scene.plan() == set()
    assert await scene.plan(without=["bob"]) == set(), "who is at it has it still"


async def test_what_is_finished_or_waits_is_planned_for_nobody(scene: Scene) -> None:
    await scene.begin({})
    await scene.register(ANA)
    await scene.stream.split(1)  # into 3 and 4, which wait
    held = await scene.take(0, ANA)
    await scene.driver.run(scene.leases.finish(held, ANA, None))
    assert {move.shard for move in await scene.plan()} == {"orders/1", "orders/2"}


async def test_a_group_of_another_stream_of_this_name_is_refused(scene: Scene) -> None:
    await scene.begin({})
    other = Charter("another", "nodes", 1000)
    for wanted in (
        other,
        Charter(scene.uid, "logs", 1000),
        Charter(scene.uid, "nodes", 1001),
        Charter(scene.uid, "nodes", 1000, weigh="lag"),
        Charter(scene.uid, "nodes", 1000, end={}),
    ):
        with pytest.raises(ConfigError):
            scene.charter.check_agrees(wanted, "billing")
    scene.charter.check_agrees(Charter(scene.uid, "nodes", 1000, begin={}), "billing")


async def test_a_lease_that_nobody_wrote_is_free_from_the_beginning(scene: Scene) -> None:
    await scene.begin({})
    leases = await leases_of(scene.driver, scene.leases, ["orders/2", "orders/0"])
    assert leases == {"orders/2": Lease("orders/2"), "orders/0": Lease("orders/0")}


# --- putting it elsewhere


async def standing(scene: Scene) -> dict[int, int | None]:
    """Where each shard goes on."""
    shards = (await scene.group.describe(lag=False)).shards
    return {s.number: None if s.checkpoint is None else s.checkpoint.next_seq for s in shards}


async def held_at(scene: Scene, shard: int) -> list[int]:
    return [each.seq for each in await scene.client.admin.holds(f"orders/{shard}")]


async def test_all_shards_are_put_elsewhere_and_held_there(scene: Scene) -> None:
    """Each at its own: what the program kept with the old checkpoint is gone."""
    await scene.begin({})
    held = await scene.take(1, ANA, 15)
    await scene.driver.run(scene.leases.release(held, ANA, None))
    told = await scene.group.reset("latest")
    assert [(t.log, t.before and t.before.next_seq, t.after.next_seq, t.refused) for t in told] == [
        ("orders/0", None, 10, None),
        ("orders/1", 15, 20, None),
        ("orders/2", None, 30, None),
    ]
    assert await standing(scene) == {0: 10, 1: 20, 2: 30}
    await scene.group.reset("earliest", shards=[1, 2])
    assert await standing(scene) == {0: 10, 1: 0, 2: 0}
    assert [await held_at(scene, n) for n in range(3)] == [[10], [0], [0]]
    await scene.group.reset(7, shards=[0])
    await scene.group.reset(8, shards=[0])
    assert await held_at(scene, 0) == [8]


async def test_a_shard_that_is_consumed_is_put_elsewhere_by_force_alone(scene: Scene) -> None:
    """Its worker is fenced, and asked to look."""
    await scene.begin({})
    await scene.register(ANA)
    held = await scene.take(1, ANA, 15)
    for dry_run in (True, False):
        first, second = await scene.group.reset(5, shards=[0, 1], dry_run=dry_run)
        assert (first.refused, second.after) == (None, None)
        assert "consumed by ana" in second.refused
        assert second.before.next_seq == 15
    (told,) = await scene.group.reset(5, shards=[1], force=True, dry_run=True)
    assert (told.refused, told.after.next_seq) == (None, 5)
    assert await standing(scene) == {0: 5, 1: 15, 2: None}
    (told,) = await scene.group.reset(5, shards=[1], force=True)
    assert (told.refused, told.before.next_seq, told.after.next_seq) == (None, 15, 5)
    assert await standing(scene) == {0: 5, 1: 5, 2: None}
    with pytest.raises(LeaseLost):
        await scene.driver.run(scene.leases.save(held, ANA, await scene.at(1, 16)))
    seen = await scene.driver.run(presence.read_workers(scene.places, BOB))
    assert seen[ANA].node.wanted == ("orders/1",)


async def test_what_would_be_done_is_told_and_not_done(scene: Scene) -> None:
    await scene.begin({})
    told = await scene.group.reset("latest", dry_run=True)
    assert [each.after.next_seq for each in told] == [10, 20, 30]
    assert await standing(scene) == {0: None, 1: None, 2: None}
    assert [await held_at(scene, n) for n in range(3)] == [[], [], []]


async def test_a_shard_is_put_no_further_than_where_it_ends_so_far(scene: Scene) -> None:
    """What comes then would be passed over."""
    await scene.begin({})
    (told,) = await scene.group.reset(10, shards=[0])
    assert told.refused is None
    (told,) = await scene.group.reset(11, shards=[0])
    assert told.refused is not None
    assert "ends at seq 10" in told.refused
    assert await standing(scene) == {0: 10, 1: None, 2: None}


async def test_a_shard_that_is_finished_stays_so(scene: Scene) -> None:
    await scene.begin({})
    held = await scene.take(0, ANA, 10)
    await scene.driver.run(scene.leases.finish(held, ANA, None))
    for force in (False, True):
        (told,) = await scene.group.reset("earliest", shards=[0], force=force)
        assert (told.after, told.before.next_seq) == (None, 10)
        assert "at its end" in told.refused
    assert (await scene.group.describe()).shards[0].state == "finished"


async def test_a_shard_whose_log_is_not_made_yet_is_put_nowhere(scene: Scene) -> None:
    await scene.begin({})
    await scene.writer.close()
    first, _ = await scene.stream.split(1)
    (told,) = await scene.group.reset("earliest", shards=[first.number])
    assert (told.before, told.after) == (None, None)
    assert "not made yet" in told.refused


async def test_one_shard_is_put_somewhere_with_what_its_program_finds_there(scene: Scene) -> None:
    await scene.begin({})
    told = await scene.group.set_checkpoint(1, 4, app=b"state")
    assert told.after.next_seq == 4
    found = (await scene.group.describe()).shards[1].checkpoint
    assert (found.next_seq, found.app) == (4, b"state")
    await scene.take(1, ANA)
    with pytest.raises(Conflict, match="consumed by ana"):
        await scene.group.set_checkpoint(1, 5)
    await scene.group.set_checkpoint(1, 5, force=True)
    found = (await scene.group.describe()).shards[1].checkpoint
    assert (found.next_seq, found.app) == (5, b"")


async def test_what_failed_behind_shards_that_were_put_elsewhere_is_told(scene: Scene) -> None:
    """One that fails before any is somewhere else is raised: nothing happened."""
    await scene.begin({})
    group, place = scene.group, scene.group._place
    bad = {"orders/1"}

    async def placed(stores: Any, log: str, to: Any) -> Any:
        if log in bad:
            raise Unavailable("no bookie")
        return await place(stores, log, to)

    group._place = placed
    with pytest.raises(Unavailable):
        await group.reset("latest", dry_run=True)
    told = await group.reset("latest")
    assert [each.log for each in told] == ["orders/0", "orders/1", "orders/2"]
    assert [each.after and each.after.next_seq for each in told] == [10, None, None]
    assert "no bookie" in told[1].refused
    assert "not tried: shard 'orders/1' failed before it" in told[2].refused
    bad.add("orders/0")
    with pytest.raises(Unavailable):
        await group.reset("earliest")
    assert await standing(scene) == {0: 10, 1: None, 2: None}


# --- and away


async def test_a_group_with_workers_is_not_removed(scene: Scene) -> None:
    await scene.begin({})
    await scene.group.reset("latest")
    await scene.register(ANA)

    async def renew() -> None:
        node, seen = 0, (await scene.driver.run(presence.read_worker(scene.places, ANA)))
        while True:
            node += 1
            seen = await scene.driver.run(
                presence.beat(scene.places, seen, node, (), (), (), 0, {})
            )
            await asyncio.sleep(0)

    renewing = asyncio.create_task(renew())
    with pytest.raises(Conflict, match="has workers: ana"):
        await scene.group.remove()
    renewing.cancel()
    assert await scene.client.groups() == [("billing", "orders")]


async def test_a_worker_that_is_dead_keeps_no_group_from_being_removed(scene: Scene) -> None:
    await scene.begin({})
    await scene.register(ANA)
    await scene.group.remove()
    assert await scene.client.groups() == []


async def test_of_a_group_that_is_removed_nothing_is_left(scene: Scene) -> None:
    await scene.begin({})
    await scene.group.reset("latest")
    await scene.group.remove()
    with pytest.raises(NotFound):
        await scene.group.describe()
    assert [await held_at(scene, n) for n in range(3)] == [[], [], []]
    assert await scene.client.groups() == []
    await scene.begin({})
    assert await standing(scene) == {0: None, 1: None, 2: None}, "as one that was never there"


async def test_logs_of_leases_go_with_their_group(scene: Scene) -> None:
    """Also where some of them were never made."""
    await scene.begin({})
    charter = Charter(scene.uid, "logs", 1000)
    places = GroupPlaces(scene.stores.layout, "logged", "orders")
    await scene.driver.run(agree(places, charter))
    await scene.client.admin.create(places.lease_log("orders/0"))
    await scene.client.group("logged", "orders").remove()
    with pytest.raises(NotFound):
        await scene.client.admin.describe(places.lease_log("orders/0"))
    assert await scene.client.groups() == [("billing", "orders")]


async def test_groups_are_listed_by_name_and_for_one_stream(scene: Scene) -> None:
    await scene.begin({})
    places = GroupPlaces(scene.stores.layout, "audit", "others")
    await scene.driver.run(agree(places, scene.charter))
    assert await scene.client.groups() == [("audit", "others"), ("billing", "orders")]
    assert await scene.client.groups("others") == [("audit", "others")]
    assert await scene.client.groups("nobody's") == []
