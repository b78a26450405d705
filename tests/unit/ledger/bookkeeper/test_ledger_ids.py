"""Ids only grow: from the short counter, over its end, from one upper half to the next."""

from __future__ import annotations

import asyncio
import itertools
import logging

import pytest

from dlog.errors import TooLarge, Unsupported
from dlog.ledger.bookkeeper.ledger_ids import LedgerIds
from dlog.meta.memory import MemoryTree
from dlog.meta.store import parent_of
from dlog.wire.ledger_paths import Manager
from tests.unit.ledger.bookkeeper.meddling import Meddling

SHORT, LONG = "/ledgers/idgen", "/ledgers/idgen-long"
LAST_SHORT = 2**31 - 2


@pytest.fixture
def meta() -> Meddling:
    return Meddling(MemoryTree())


def ids_on(meta: Meddling, manager: Manager = Manager.HIERARCHICAL) -> LedgerIds:
    return LedgerIds(meta, "/ledgers", manager)


def drawn_below(meta: Meddling, parent: str) -> int:
    return sum(name == "draw" and parent_of(path) == parent for name, path in meta.calls)


def count_from(meta: Meddling, parent: str, number: int) -> None:
    meta.counters[parent] = itertools.count(number)


async def test_two_clients_draw_from_one_counter(meta: Meddling) -> None:
    ours, theirs = ids_on(meta), ids_on(meta)
    assert [await each.draw() for each in (ours, theirs, ours, ours, theirs)] == [0, 1, 2, 3, 4]


async def test_drawn_nodes_are_ephemeral_and_deleted_in_the_background(meta: Meddling) -> None:
    ids = ids_on(meta)
    drawn = await asyncio.gather(*(ids.draw() for _ in range(20)))
    assert sorted(drawn) == list(range(20))
    await ids.close()
    assert await meta.children(SHORT) == []
    assert meta.count_of("delete") == 20


async def test_nothing_runs_on_for_what_is_drawn_during_a_close(meta: Meddling) -> None:
    ids = ids_on(meta)
    await ids.close()
    assert await ids.draw() == 0  # it was on its way
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_drawn_node_that_cannot_be_deleted_goes_with_the_session(meta: Meddling) -> None:
    ids = ids_on(meta)
    meta.away.add("delete")
    await ids.draw()
    await ids.close()
    other = Meddling(meta._tree)
    assert await other.children(SHORT) == ["ID-0000000000"]
    await meta.close()
    assert await other.children(SHORT) == []


async def test_a_drawn_node_that_is_gone_already_is_nothing_to_tell(
    meta: Meddling, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    other = Meddling(meta._tree)

    async def be_faster() -> None:
        path = f"{SHORT}/ID-0000000000"
        await other.delete(path, (await other.get(path)).version)

    meta.before["delete"].append(be_faster)
    ids = ids_on(meta)
    await ids.draw()
    await ids.close()
    assert await meta.children(SHORT) == []
    assert caplog.text == ""


async def test_no_more_than_so_many_nodes_wait_to_be_deleted(meta: Meddling) -> None:
    ids = ids_on(meta)
    gate = asyncio.Event()
    meta.before["delete"].append(gate.wait)
    for _ in range(65):  # one is being deleted and 64 wait
        await ids.draw()
    late = asyncio.create_task(ids.draw())
    await meta.sync()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not late.done()
    gate.set()
    assert await late == 65


async def test_a_lost_session_is_no_end_of_drawing(meta: Meddling) -> None:
    ids = ids_on(meta)
    await ids.draw()
    meta.session_is_lost = True
    assert [await ids.draw(), await ids.draw()] == [1, 2]
    await ids.close()
    assert await meta.children(SHORT) == [], "what no session takes along is deleted all the same"


async def test_where_the_short_counter_ends_the_long_one_goes_on(meta: Meddling) -> None:
    count_from(meta, SHORT, LAST_SHORT)
    ours, theirs = ids_on(meta), ids_on(meta)
    drawn = [await each.draw() for each in (ours, ours, theirs, ours, theirs)]
    first_long = 1 << 32
    assert drawn == [LAST_SHORT, *range(first_long, first_long + 4)]
    assert drawn_below(meta, SHORT) == 2, "a counter that ended is asked no more"
    assert await meta.children(LONG) == ["HOB-0000000001"]


async def test_long_ids_that_others_began_are_gone_on_with(meta: Meddling) -> None:
    await meta.create(f"{LONG}/HOB-0000000007", b"")
    await meta.create(f"{LONG}/HOB-0000000009", b"")
    assert await ids_on(meta).draw() == 9 << 32
    assert drawn_below(meta, SHORT) == 0


async def test_an_empty_directory_of_long_ids_is_begun(meta: Meddling) -> None:
    await meta.create(LONG, b"")
    assert await ids_on(meta).draw() == 1 << 32


async def test_each_upper_half_that_ends_is_followed_by_the_next(meta: Meddling) -> None:
    await meta.create(f"{LONG}/HOB-0000000001", b"")
    ours, theirs = ids_on(meta), ids_on(meta)
    assert await theirs.draw() == 1 << 32
    for upper in range(1, 6):
        count_from(meta, f"{LONG}/HOB-{upper:010d}", LAST_SHORT)
        assert await ours.draw() == (upper << 32) + LAST_SHORT
        assert await ours.draw() == (upper + 1) << 32
        assert await theirs.draw() == ((upper + 1) << 32) + 1, "it met the end by itself"
        for ids in (ours, theirs):
            if ids._deleting is not None:
                await asyncio.wait([ids._deleting])
    # Those who ended first are gone; the numbers that are still to be deleted kept some longer.
    assert await meta.children(LONG) == ["HOB-0000000004", "HOB-0000000005", "HOB-0000000006"]


async def test_flat_ids_stand_below_the_root_and_are_short(meta: Meddling) -> None:
    ids = ids_on(meta, Manager.FLAT)
    assert await ids.draw() == 0
    assert ("draw", "/ledgers/ID-") in meta.calls
    count_from(meta, "/ledgers", LAST_SHORT + 1)
    with pytest.raises(Unsupported):
        await ids.draw()


async def test_a_quota_is_not_taken_for_the_end_of_the_counter(meta: Meddling) -> None:
    ids = ids_on(meta)

    async def refuse() -> None:
        raise TooLarge("a quota is used up")

    await ids.draw()
    meta.before["draw"].append(refuse)
    with pytest.raises(TooLarge):
        await ids.draw()
    assert await ids.draw() == 1

    # The counter went on below zero: whoever met its end made the other one.
    await meta.create(LONG, b"")
    meta.before["draw"].append(refuse)
    assert await ids.draw() == 1 << 32


async def test_names_that_are_no_upper_half_are_nobodys_business(meta: Meddling) -> None:
    await meta.create(f"{LONG}/notes", b"")
    await meta.create(f"{LONG}/HOB-0000000002", b"")
    assert await ids_on(meta).draw() == 2 << 32
