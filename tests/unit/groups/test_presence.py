"""LH-17, LH-23, LH-46, flaw 10: the nodes of workers, and what others may do to them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dlog.drive import Driver
from dlog.errors import Conflict, LeaseLost, NotFound, Outcome, Unavailable
from dlog.groups import presence
from dlog.groups.places import GroupPlaces
from dlog.groups.view import WorkerId
from dlog.groups.workers import WorkerNode
from dlog.ledger.store import LedgerStore
from dlog.meta.layout import Layout
from dlog.meta.memory import MemoryMetaStore, MemoryTree

PLACES = GroupPlaces(Layout(), "readers", "orders")
ANA, BOB = WorkerId("ana", "a1"), WorkerId("bob", "b1")


class Metadata:
    def __init__(self) -> None:
        self.store = MemoryMetaStore(MemoryTree())
        self.driver = Driver(self.store, cast(LedgerStore, None))

    async def register(self, worker: WorkerId) -> presence.SeenWorker:
        return await self.driver.run(presence.register(PLACES, worker, "zone"))

    async def beat(self, seen: presence.SeenWorker, counter: int, **more: Any) -> Any:
        given = {"holds": (), "coming": (), "done": (), "rings": 0, "waits": {}, **more}
        return await self.driver.run(presence.beat(PLACES, seen, counter, **given))

    async def bury(self, worker: WorkerId, counter: int) -> Any:
        return await self.driver.run(presence.bury(PLACES, worker, counter))

    async def ring(self, worker: WorkerId, *shards: str) -> presence.Rung:
        return await self.driver.run(presence.ring(PLACES, worker, shards))

    async def workers(self, me: WorkerId) -> dict[WorkerId, presence.SeenWorker]:
        return await self.driver.run(presence.read_workers(PLACES, me))


@pytest.fixture
async def meta() -> Metadata:
    return Metadata()


async def test_lh_17_23_registering_twice_is_registering_once(meta: Metadata) -> None:
    first = await meta.register(ANA)
    again = await meta.register(ANA)
    assert again == first
    assert set(await meta.workers(ANA)) == {ANA}
    assert first.node.domain == "zone"


async def test_lh_20_24_one_list_tells_who_is_there_and_what_they_have(meta: Metadata) -> None:
    seen = await meta.register(ANA)
    for number in range(20):
        await meta.register(WorkerId("w", f"{number}"))
    await meta.beat(seen, 1, holds=("s1",), coming=("s2",))
    found = await meta.workers(BOB)
    assert len(found) == 21
    assert (found[ANA].node.holds, found[ANA].node.coming) == (("s1",), ("s2",))


async def test_lh_flaw_10_a_worker_knows_who_was_there_under_its_name(meta: Metadata) -> None:
    await meta.register(ANA)
    await meta.register(BOB)
    again = await meta.register(WorkerId("ana", "a2"))
    assert again.node.after == ("a1",)


async def test_lh_46_only_who_did_not_renew_is_buried(meta: Metadata) -> None:
    seen = await meta.register(ANA)
    seen = await meta.beat(seen, 1)
    found = await meta.bury(ANA, 0)
    assert found.node.counter == 1, "it renewed"
    assert await meta.bury(ANA, 1) is None
    assert await meta.bury(ANA, 1) is None, "whoever comes late finds it so"
    with pytest.raises(LeaseLost):
        await meta.beat(seen, 2)


async def test_a_ring_hurts_no_renewal_and_is_heard_by_it(meta: Metadata) -> None:
    seen = await meta.register(ANA)
    assert await meta.ring(ANA, "s1", "s2") is presence.Rung.HEARD
    seen = await meta.beat(seen, 1)
    assert (seen.node.wanted, seen.node.rings) == (("s1", "s2"), 1)
    assert await meta.ring(ANA, "s3") is presence.Rung.HEARD
    seen = await meta.beat(seen, 2, done=("s1", "s2"), rings=1)
    assert seen.node.wanted == ("s1", "s2", "s3"), "somebody rang since"
    seen = await meta.beat(seen, 3, done=("s1", "s2"), rings=2)
    assert seen.node.wanted == ("s3",)
    gone = await meta.ring(BOB, "s1")
    assert gone is presence.Rung.GONE, "who is not there hears nothing"


async def test_whoever_was_asked_is_not_kept_from_renewing(meta: Metadata) -> None:
    """Each ring costs a renewal that is under way another try."""
    seen = await meta.register(ANA)
    await meta.ring(ANA, "s1")
    for _ in range(100):
        assert await meta.ring(ANA, "s1") is presence.Rung.ASKED
    seen = await meta.beat(seen, 1)
    assert seen.node.rings == 1


async def test_a_ring_does_not_keep_a_dead_worker_alive(meta: Metadata) -> None:
    await meta.register(ANA)
    await meta.ring(ANA, "s1")
    assert await meta.bury(ANA, 0) is None


async def test_lh_46_a_node_that_is_not_the_one_we_renewed_last_is_not_ours(
    meta: Metadata,
) -> None:
    """As when a create that was lost comes late, behind a burial."""
    seen = await meta.register(ANA)
    seen = await meta.beat(seen, 1)
    await meta.bury(ANA, 1)
    await meta.register(ANA)  # counter 0
    with pytest.raises(LeaseLost):
        await meta.beat(seen, 2)


async def test_who_leaves_is_gone_and_leaving_again_is_nothing(meta: Metadata) -> None:
    await meta.register(ANA)
    for _ in range(2):
        await meta.driver.run(presence.leave(PLACES, ANA))
    assert await meta.workers(BOB) == {}


async def test_nodes_that_are_no_workers_are_passed_over(meta: Metadata) -> None:
    await meta.store.create(f"{PLACES.workers}/something", b"")
    await meta.register(ANA)
    assert set(await meta.workers(ANA)) == {ANA}


# --- answers that get lost


def played(work: Any, answers: list[Any]) -> Any:
    """To its end, or until the answers are over: the last of them goes on and on."""
    answer: Any = None
    for number in range(100):
        try:
            effect = work.throw(answer) if isinstance(answer, Exception) else work.send(answer)
        except StopIteration as stop:
            return stop.value
        assert effect is not None
        answer = answers[min(number, len(answers) - 1)]
    raise AssertionError("it does not end")


LOST = Unavailable("no answer", outcome=Outcome.UNKNOWN)
AWAY = Unavailable("nobody is there", outcome=Outcome.NOT_HAPPENED)


def node_of(worker: WorkerId, **more: Any) -> tuple[bytes, int]:
    return WorkerNode(worker, **more).to_bytes(), 3


def test_a_worker_that_gets_no_answer_registers_no_longer_than_it_tries() -> None:
    nothing = [LOST, NotFound("no node")]
    with pytest.raises(Unavailable, match="no answer"):
        played(presence.register(PLACES, ANA, None), [[], *nothing * 20])
    with pytest.raises(Unavailable, match="nobody is there"):
        played(presence.register(PLACES, ANA, None), [[], AWAY])
    found = played(presence.register(PLACES, ANA, None), [[], LOST, node_of(ANA)])
    assert (found.node.id, found.version) == (ANA, 3), "it had been taken"


def test_a_ring_that_gets_no_answer_is_tried_again_and_no_longer_than_that() -> None:
    seen = node_of(BOB)
    ring = presence.ring
    assert played(ring(PLACES, BOB, ["s"]), [seen, LOST, seen, 4]) is presence.Rung.HEARD
    asked = node_of(BOB, wanted=("s",))
    assert played(ring(PLACES, BOB, ["s"]), [seen, LOST, asked]) is presence.Rung.ASKED
    for gone in (NotFound("no node"), Conflict("it renewed")):
        with pytest.raises(type(gone)):
            played(ring(PLACES, BOB, ["s"]), [seen, gone] * 40)
    with pytest.raises(Unavailable, match="no answer"):
        played(ring(PLACES, BOB, ["s"]), [seen, LOST] * 40)
    with pytest.raises(Unavailable, match="nobody is there"):
        played(ring(PLACES, BOB, ["s"]), [seen, AWAY, seen, 4])


def test_a_worker_leaves_until_its_node_is_gone() -> None:
    seen, gone = node_of(ANA), NotFound("no node")
    for answers in ([gone], [seen, None], [seen, gone], [seen, LOST, gone]):
        assert played(presence.leave(PLACES, ANA), answers) is None
    assert played(presence.leave(PLACES, ANA), [seen, Conflict("rung"), seen, None]) is None
    with pytest.raises(Unavailable, match="nobody is there"):
        played(presence.leave(PLACES, ANA), [seen, AWAY, seen, None])
