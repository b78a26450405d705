"""What single calls of a reader cost when something is away: their time, and what they ask."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from dlog.errors import ConfigError, Corrupt, NotFound, ReaderClosed, Unavailable
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.ledger.bookkeeper.tail_watch import LAC_TIMEOUT_MS, LOOK_AGAIN_MS, METADATA_GRACE_S
from dlog.meta.store import Watch
from tests.scenarios.test_bookkeeper_reading import ANY_BYTES, AT_ONCE_S, act, read_all, timed
from tests.sim.reading_world import LEDGER, Weather, World
from tests.sim.virtual_loop import pass_time


def test_a_crash_under_many_reads_is_one_crash() -> None:
    """A bookie that dies answers each batch on its way with the same loss. It is not taken for one
    that is older than batches, which would cost every reader ten minutes of single reads."""

    async def scene(world: World) -> None:
        world.fill(40)
        reader = world.reader()
        firsts = range(0, 40, 4)
        for lost in (False, True):
            world.bookies["b0"].batches = not lost
            reads = [reader.read(first, first + 3, bytes_max=ANY_BYTES) for first in firsts]
            assert [len(run) for run in await asyncio.gather(*reads)] == [4] * len(firsts)
        assert world.asked["batch_read b0"] > 4
        assert world.habits.reads_batches("b0", world.loop.time())

    act(scene)


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
def test_a_read_that_failed_waits_little_for_metadata(hangs: bool) -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        await reader.last_readable()
        world.nodes.away, world.nodes.hangs = True, hangs
        for bookie in world.bookies.values():
            bookie.is_up = False
        for grace_s in (METADATA_GRACE_S, 0.0):  # nobody waits for it twice
            begun_s = world.loop.time()
            with pytest.raises(Unavailable, match="entry 0"):
                await reader.read(0, 2, bytes_max=ANY_BYTES)
            assert world.loop.time() - begun_s <= grace_s + AT_ONCE_S
        assert reader.metadata_away
        await world.nodes.delete(LEDGER)
        world.nodes.away = world.nodes.hangs = False
        caught: type[Exception] = Unavailable
        async with asyncio.timeout(60):
            while caught is not NotFound:  # metadata is asked beside reads, so one of them knows
                with pytest.raises((Unavailable, NotFound)) as raised:
                    await reader.read(0, 2, bytes_max=ANY_BYTES)
                caught = raised.type
        assert not reader.metadata_away
        assert hangs or world.loop.time() < LOOK_AGAIN_MS / 1000, "not only by the way"

    act(scene)


def test_what_only_metadata_could_allow_waits_for_it() -> None:
    """A log's list may know of an end that the bookies asked have not heard of."""

    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        with pytest.raises(ConfigError, match="not readable"):
            await reader.read(0, 3, bytes_max=ANY_BYTES)
        world.nodes.away = True
        with pytest.raises(Unavailable, match="only metadata can tell"):
            await reader.read(0, 3, bytes_max=ANY_BYTES)

    act(scene)


def test_entries_that_are_damaged_where_they_were_are_read_where_they_are_now() -> None:
    """Replicators moved the ledger while its reader knew the old bookies."""

    async def scene(world: World) -> None:
        world.fill(3)
        await world.close()
        reader = world.reader()
        for place, bookie in enumerate(world.ensemble[:2]):
            world.bookies[f"b{3 + place}"].packets.update(bookie.packets)
        for bookie in world.ensemble:
            bookie.packets[0] = bookie.packets[0][:-1] + b"x"
        with pytest.raises(Corrupt):
            await reader.read(0, 2, bytes_max=ANY_BYTES)
        fragment = replace(world.metadata.fragments[0], ensemble=("b3", "b4", "b2"))
        await world.nodes.change_now(lambda metadata: replace(metadata, fragments=(fragment,)))
        await read_all(world, reader, 2)

    act(scene)


def test_a_damaged_copy_is_named_although_another_one_will_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        for bookie in world.ensemble[:2]:
            bookie.packets[1] = bookie.packets[1][:-1] + b"x"
        reader = world.reader()
        reader._entries._first_place = 0
        assert len(await reader.read(0, 2, bytes_max=ANY_BYTES)) == 1
        assert not caplog.messages
        await reader.read(1, 2, bytes_max=ANY_BYTES)
        assert sorted(caplog.messages) == [
            f"entry 1 of ledger {LEDGER} is damaged at bookie {bookie_id}"
            for bookie_id in ("b0", "b1")
        ]

    with caplog.at_level("WARNING", "dlog.ledger"):
        act(scene)


def test_a_metadata_store_that_refuses_is_asked_ever_more_rarely() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        world.nodes.away = True
        watch, watches = world.nodes.watch, []

        def counted(ledger_id: int) -> Watch:
            watches.append(world.loop.time())
            return watch(ledger_id)

        world.nodes.watch = counted  # type: ignore[method-assign]
        await world.reader().wait_past(2, 60_000.0)
        assert len(watches) <= 60 * 4, "a pause of half a second, as a rule"

    act(scene)


def test_a_question_that_metadata_answered_is_not_left_behind() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        await world.close()
        for bookie in world.bookies.values():
            bookie.hangs = True
        assert await reader.last_readable() == 2
        if reader._tail._tasks:
            await asyncio.wait(reader._tail._tasks)
        assert world.loop.time() < AT_ONCE_S

    act(scene)


def test_metadata_that_comes_back_says_whom_to_ask() -> None:
    """It was away when the question was put, and names other bookies before the old ones have
    answered: what those say is older than the question."""

    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        world.nodes.away = True
        assert await reader.last_readable() == 2
        was_away = reader.metadata_away
        assert was_away
        named = {bookie.bookie_id for bookie in world.ensemble}
        spares = [each for each in world.bookies if each not in named]
        for place, spare in enumerate(spares[:2]):
            await world.change_ensemble(place, spare)
        world.fill(2)
        world.ensemble[2].hangs = True  # the one that stands in both

        async def soon(ledger_id: int) -> StoredLedger:
            await pass_time(0.0001)
            return world.nodes.stored

        world.nodes.read_fresh = soon  # type: ignore[method-assign]
        assert await reader.last_readable() == 4
        assert not reader.metadata_away

    act(scene)


def test_a_wait_of_no_time_asks_once() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        assert await reader.wait_past(2, 0.0) == 2
        assert world.asked["read_lac"] <= 3
        assert world.nodes.reads == 1

    act(scene)


def test_a_wait_in_silence_asks_once_more_at_most() -> None:
    """A question that outlasted the wait is not put again."""

    async def scene(world: World) -> None:
        world.fill(3)
        for bookie in world.bookies.values():
            bookie.hangs = True
        reader = world.reader()
        for timeout_ms in (100.0, LAC_TIMEOUT_MS + 1_000.0):
            begun_s = world.loop.time()
            with pytest.raises(Unavailable):
                await reader.wait_past(2, timeout_ms)
            assert world.loop.time() - begun_s <= (timeout_ms + LAC_TIMEOUT_MS) / 1000 + AT_ONCE_S

    act(scene)


def test_a_reader_that_was_closed_asks_no_other_bookie() -> None:
    """The first try failed, metadata was asked, and then came the close."""

    async def scene(world: World) -> None:
        world.fill(3)
        await world.close()
        reader = world.reader()
        for bookie in world.ensemble:
            bookie.is_up = False
        fragment = replace(world.metadata.fragments[0], ensemble=("b3", "b4", "b2"))
        await world.nodes.change_now(lambda metadata: replace(metadata, fragments=(fragment,)))
        world.nodes.delay_s = METADATA_GRACE_S / 2
        reading = asyncio.ensure_future(reader.read(0, 2, bytes_max=1))
        await asyncio.wait({reading}, timeout=METADATA_GRACE_S / 4)
        await reader.close()
        _, took_s = await timed(world, asyncio.wait({reading}))
        assert isinstance(reading.exception(), ReaderClosed)
        assert took_s < AT_ONCE_S
        assert world.asked["batch_read"] == 0

    act(scene)


@pytest.mark.parametrize("ensemble", [3, 4], ids=["old bookies", "striped"])
def test_entries_that_do_not_fit_are_not_fetched_in_vain(ensemble: int) -> None:
    """Where there are no batches, nobody but us knows how much is wanted."""

    async def scene(world: World) -> None:
        world.fill(60, size=1_000)
        for bookie in world.bookies.values():
            bookie.batches = False
        reader = world.reader()
        await read_all(world, reader, 59, bytes_max=2_000)
        assert world.asked["read"] <= 60 + 2 * 4
        assert len(await reader.read(0, 59, bytes_max=ANY_BYTES)) == 32, "side by side"
        assert len(await reader.read(0, 59, bytes_max=0)) == 1

    act(scene, ensemble=ensemble)


def test_entries_of_no_bytes_are_entries() -> None:
    async def scene(world: World) -> None:
        for _ in range(40):
            world.add(b"")
        world.publish()
        for bookie in world.bookies.values():
            bookie.batches = False
        await read_all(world, world.reader(), 39, bytes_max=0)
        await read_all(world, world.reader(), 39)

    for ensemble in (3, 4):
        act(scene, ensemble=ensemble, weather=Weather(delay_ms=0.0))


def test_many_readers_of_one_ledger_are_told_apart() -> None:
    async def scene(world: World) -> None:
        world.fill(30)
        readers = [world.reader() for _ in range(5)]
        await asyncio.gather(*(read_all(world, each, 29, bytes_max=60) for each in readers))

    act(scene)


def test_waits_that_ended_leave_nothing_behind() -> None:
    """A reader waits at the tail for days: each wait is forgotten when it is over."""

    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        for _ in range(20):
            assert await reader.wait_past(2, 100.0) == 2
        waiting = asyncio.create_task(reader.wait_past(2, 60_000.0))
        await pass_time(1.0)
        assert len(reader._tail._waiters) == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not reader._tail._waiters

    act(scene)
