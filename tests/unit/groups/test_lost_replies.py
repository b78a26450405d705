"""Each procedure of a group, with the reply to each of its writes lost: once, or again and again.
What stands there afterwards, and what is told, is what would have been without."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dlog import aio
from dlog.effects import CreateNode, DeleteNode, Effect, Pause, Procedure, ReadNode, ReplaceNode
from dlog.errors import Conflict, DlogError, LeaseLost, NotFound, Outcome, Unavailable
from dlog.groups import presence
from dlog.groups.charter import Charter, agree, read_charter
from dlog.groups.group_driver import GroupDriver, lease_store
from dlog.groups.leases import Checkpoint
from dlog.groups.places import GroupPlaces
from dlog.groups.presence import Rung
from dlog.groups.store import LeaseStore, take
from dlog.groups.view import WorkerId
from dlog.ids import Position

ME, OLD, BOB = WorkerId("me", "5" * 32), WorkerId("me", "4" * 32), WorkerId("bob", "2" * 32)
WRITES = (CreateNode, ReplaceNode, DeleteNode)

_worlds = itertools.count()


def at(seq: int) -> Checkpoint:
    return Checkpoint(Position("u", seq, None))


class Wire:
    """To a metadata store in memory. `fault` of a write by its number: `lost` (done, and nobody
    tells), `dropped` (not done, and nobody knows), `refused` (not done, for certain)."""

    def __init__(self, client: Any, stores: Any) -> None:
        self.places = GroupPlaces(stores.layout, "billing", "orders")
        self.driver = GroupDriver(stores, self.places, client)
        self.stores = stores
        self.fault: Callable[[int], str | None] = lambda number: None
        self.before: Callable[[int], Any] | None = None
        self.writes = 0

    def leases(self, kind: str) -> LeaseStore:
        found = lease_store(kind, self.places, self.stores)
        found._now_us = lambda: 7  # type: ignore[attr-defined]
        return found

    async def run(self, procedure: Procedure[Any]) -> Any:
        told: Any = None
        error: DlogError | None = None
        while True:
            try:
                effect = procedure.send(told) if error is None else procedure.throw(error)
            except StopIteration as stop:
                return stop.value
            told = error = None
            try:
                told = await self._perform(effect)
            except DlogError as failure:
                error = failure

    async def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Pause):
            return None
        if not isinstance(effect, WRITES):
            return await self.driver.perform(effect)
        self.writes += 1
        if self.before is not None:
            await self.before(self.writes)
        fault = self.fault(self.writes)
        if fault == "refused":
            raise Unavailable("busy", outcome=Outcome.NOT_HAPPENED)
        if fault != "dropped":
            answer = await self.driver.perform(effect)
            if fault is None:
                return answer
        raise Unavailable("no reply", outcome=Outcome.UNKNOWN)

    async def close(self) -> None:
        await self.driver.close()

    async def nodes(self) -> dict[str, bytes]:
        """All that stands there of the group."""
        found = {}
        for below in (self.places.workers, self.places.leases):
            try:
                names = await self.stores.meta.children(below)
            except NotFound:
                continue
            for name in names:
                value, _ = await self.driver.perform(ReadNode(f"{below}/{name}"))
                found[f"{below}/{name}"] = value
        return found


@pytest.fixture
async def make_wire() -> AsyncIterator[Callable[[], Any]]:
    clients: list[Any] = []
    wires: list[Wire] = []

    async def make() -> Wire:
        client = aio.connect(f"memory:lost-{next(_worlds)}")
        clients.append(client)
        wires.append(Wire(client, await client._stores(True)))
        return wires[-1]

    yield make
    for wire in wires:
        await wire.close()
    for client in clients:
        await client.close()


Prepare = Callable[[Wire], Any]


async def _registered(wire: Wire) -> Any:
    await wire.run(presence.register(wire.places, OLD, None))
    return await wire.run(presence.register(wire.places, ME, "rack"))


async def register(wire: Wire) -> Any:
    await wire.run(presence.register(wire.places, OLD, None))
    return presence.register(wire.places, ME, "rack")


async def beat(wire: Wire) -> Any:
    seen = await _registered(wire)
    return presence.beat(wire.places, seen, 1, ("a",), ("b",), (), 0, {"a": "slow"})


async def bury(wire: Wire) -> Any:
    await _registered(wire)
    return presence.bury(wire.places, OLD, 0)


async def leave(wire: Wire) -> Any:
    await _registered(wire)
    return presence.leave(wire.places, ME)


async def chartered(wire: Wire) -> Any:
    return agree(wire.places, Charter("uid", "nodes", 1000))


async def _held(wire: Wire, kind: str) -> tuple[LeaseStore, Any]:
    await _registered(wire)
    await wire.run(presence.register(wire.places, BOB, None))
    store = wire.leases(kind)
    return store, await wire.run(store.claim("a", ME))


def of_lease(verb: str, kind: str) -> Prepare:
    async def prepare(wire: Wire) -> Any:
        store, held = await _held(wire, kind)
        match verb:
            case "claim":
                return store.claim("b", ME)
            case "save":
                return store.save(held, ME, at(5))
            case "release":
                return store.release(held, ME, at(6))
            case "finish":
                return store.finish(held, ME, at(7))
            case "announce":
                return store.announce("a", BOB)
            case "renounce":
                await wire.run(store.announce("a", BOB))
                return store.renounce("a", BOB)
            case "drop":
                return store.drop(held, ME)
            case "take":
                return take(store, "a", BOB, victim=ME)
        return store.reset("a", at(2), forced=True)

    prepare.__name__ = f"{verb}-{kind}"
    return prepare


VERBS = ("claim", "save", "release", "finish", "announce", "renounce", "drop", "take", "reset")
OF_LEASES = [of_lease(verb, kind) for kind in ("nodes", "logs") for verb in VERBS]
ALL: list[Prepare] = [register, beat, bury, leave, chartered, *OF_LEASES]


def _name(prepare: Prepare) -> str:
    return prepare.__name__


@pytest.mark.parametrize("fault", ["lost", "dropped"])
@pytest.mark.parametrize("prepare", ALL, ids=_name)
async def test_a_reply_that_is_lost_changes_nothing_of_what_comes_about(
    make_wire: Any, prepare: Prepare, fault: str
) -> None:
    calm = await make_wire()
    procedure = await prepare(calm)
    calm.writes = 0
    expected = await calm.run(procedure)
    writes, nodes = calm.writes, await calm.nodes()
    for number in range(1, writes + 1):
        wire = await make_wire()
        procedure = await prepare(wire)
        wire.writes = 0
        wire.fault = lambda at, number=number: fault if at == number else None
        assert await wire.run(procedure) == expected
        assert await wire.nodes() == nodes
        assert wire.writes == writes + (fault == "dropped")


@pytest.mark.parametrize("prepare", [each for each in ALL if each is not leave], ids=_name)
async def test_replies_that_never_come_are_told_as_unknown(
    make_wire: Any, prepare: Prepare
) -> None:
    """After a few tries, and nothing was changed: each of the writes was lost on its way."""
    wire = await make_wire()
    procedure = await prepare(wire)
    before = await wire.nodes()
    wire.writes = 0
    wire.fault = lambda number: "dropped"
    if prepare is bury:
        assert (await wire.run(procedure)).node.id == OLD, "alive, as far as anybody knows"
        assert 2 <= wire.writes <= 10
    elif _name(prepare) == "save-logs":
        await wire.run(procedure)  # asks the metadata store nothing
    else:
        with pytest.raises(Unavailable) as told:
            await wire.run(procedure)
        assert told.value.outcome is Outcome.UNKNOWN
        assert 2 <= wire.writes <= 20
    assert await wire.nodes() == before


@pytest.mark.parametrize("prepare", [register, beat, bury, leave, chartered], ids=_name)
async def test_what_certainly_did_not_happen_is_raised_at_once(
    make_wire: Any, prepare: Prepare
) -> None:
    """Whoever asked tries again by its own clock."""
    wire = await make_wire()
    procedure = await prepare(wire)
    before = await wire.nodes()
    wire.writes = 0
    wire.fault = lambda number: "refused"
    with pytest.raises(Unavailable) as told:
        await wire.run(procedure)
    assert (told.value.outcome, wire.writes) == (Outcome.NOT_HAPPENED, 1)
    assert await wire.nodes() == before


# --- others write at the same time


async def test_who_rings_during_a_renewal_is_heard(make_wire: Any) -> None:
    """And what was answered before it rang is asked for once more."""
    wire = await make_wire()
    seen = await _registered(wire)
    assert await wire.run(presence.ring(wire.places, ME, ["a"])) is Rung.HEARD
    assert await wire.run(presence.ring(wire.places, ME, ["a"])) is Rung.ASKED
    seen = await wire.run(presence.read_worker(wire.places, ME))
    other = await wire.run(presence.read_worker(wire.places, ME))

    async def rings(number: int) -> None:
        wire.before = None
        assert await wire.run(presence.ring(wire.places, ME, ["b"])) is Rung.HEARD

    wire.before = rings
    found = await wire.run(presence.beat(wire.places, seen, 1, (), (), ("a",), 1, {}))
    assert (found.node.wanted, found.node.rings, found.node.counter) == (("a", "b"), 2, 1)
    again = presence.beat(wire.places, found, 2, (), (), ("a",), 2, {})
    assert (await wire.run(again)).node.wanted == ("b",)
    with pytest.raises(LeaseLost):  # somebody else renews the same node, further on
        await wire.run(presence.beat(wire.places, other, 1, (), (), (), 1, {}))


async def test_who_was_buried_hears_it_by_each_way(make_wire: Any) -> None:
    wire = await make_wire()
    seen = await _registered(wire)
    await wire.run(presence.beat(wire.places, seen, 1, (), (), (), 0, {}))
    alive = await wire.run(presence.bury(wire.places, ME, 0))
    assert alive.node.counter == 1, "it renewed"
    assert await wire.run(presence.bury(wire.places, ME, 1)) is None
    assert await wire.run(presence.bury(wire.places, ME, 1)) is None
    assert await wire.run(presence.ring(wire.places, ME, ["a"])) is Rung.GONE
    assert await wire.run(presence.read_worker(wire.places, ME)) is None
    with pytest.raises(LeaseLost):
        await wire.run(presence.beat(wire.places, seen, 2, (), (), (), 0, {}))
    await wire.run(presence.leave(wire.places, ME))


async def test_who_is_dead_is_asked_behind_all_that_was_written(make_wire: Any) -> None:
    """A server that is behind still has, or does not have yet, the node of a worker: what is
    decided by that asks for a fresh look."""
    wire = await make_wire()
    store, held = await _held(wire, "nodes")
    await wire.run(store.announce("a", BOB))
    perform, reads = wire.driver.perform, []

    async def noted(effect: Effect) -> Any:
        if isinstance(effect, ReadNode):
            reads.append((effect.path, effect.fresh))
        return await perform(effect)

    wire.driver.perform = noted  # type: ignore[method-assign]
    with pytest.raises(Conflict):
        await wire.run(store.claim("a", BOB))
    await wire.run(presence.bury(wire.places, ME, 0))
    taken = await wire.run(store.claim("a", BOB))
    assert (taken.lease.consumer, taken.lease.epoch) == (BOB, 2)
    with pytest.raises(LeaseLost):
        await wire.run(store.save(held, ME, at(9)))
    assert [fresh for path, fresh in reads if path == wire.places.worker(ME)] == [True] * 3


@pytest.mark.parametrize("kind", ["nodes", "logs"])
async def test_a_finished_shard_is_put_nowhere_and_taken_by_nobody(
    make_wire: Any, kind: str
) -> None:
    wire = await make_wire()
    store, held = await _held(wire, kind)
    await wire.run(store.finish(held, ME, at(3)))
    for verb in (
        store.reset("a", at(1), forced=True),
        store.claim("a", BOB),
        store.announce("a", BOB),
    ):
        with pytest.raises(Conflict):
            await wire.run(verb)
    for again in (False, True):
        lease = await wire.run(take(store, "a", BOB, victim=ME, again=again))
        assert lease.is_finished
    read = await wire.run(store.read("a"))
    assert (read.is_finished, read.checkpoint, read.consumer) == (True, at(3), None)


@pytest.mark.parametrize("kind", ["nodes", "logs"])
async def test_a_shard_that_is_released_between_two_looks_is_taken_at_once(
    make_wire: Any, kind: str
) -> None:
    """The claim found somebody at it, the look behind it nobody."""
    wire = await make_wire()
    store, held = await _held(wire, kind)
    perform, reads = wire.driver.perform, 0

    async def released_meanwhile(effect: Effect) -> Any:
        nonlocal reads
        if isinstance(effect, ReadNode) and effect.path == wire.places.lease("a"):
            reads += 1
            if reads == 2:
                wire.driver.perform = perform  # type: ignore[method-assign]
                await wire.run(store.release(held, ME, at(9)))
        return await perform(effect)

    wire.driver.perform = released_meanwhile  # type: ignore[method-assign]
    taken = await wire.run(take(store, "a", BOB, victim=ME))
    assert (taken.lease.consumer, taken.lease.checkpoint) == (BOB, at(9))


async def test_workers_of_one_group_have_the_charter_of_whoever_came_first(make_wire: Any) -> None:
    wire = await make_wire()
    first = Charter("uid", "nodes", 1000, begin={})
    second = Charter("uid", "nodes", 1000)
    assert await wire.run(agree(wire.places, first)) == first
    assert await wire.run(agree(wire.places, second)) == first
    assert await wire.run(read_charter(wire.places)) == first
    with pytest.raises(NotFound, match="no group 'other'"):
        await wire.run(read_charter(GroupPlaces(wire.stores.layout, "other", "orders")))
