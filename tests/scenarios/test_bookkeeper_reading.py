"""Known ways to read a ledger wrongly, each acted out on simulated bookies. Time is virtual, so
"at once" and "not before" are facts here and not a matter of the machine."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from dlog.errors import AuthError, ConfigError, Corrupt, NotFound, ReaderClosed, Unavailable
from dlog.ledger.bookkeeper.core.entry_read import HEDGE_MS_FIRST, TROUBLED_S
from dlog.ledger.bookkeeper.core.tail_read import PAUSE_MS_MAX, POLL_MS
from dlog.ledger.bookkeeper.tail_watch import LOOK_AGAIN_MS, METADATA_GRACE_S
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v3_replies import Body
from dlog.wire.ledger_metadata import LedgerState
from tests.sim.reading_world import LEDGER, SimBookie, SimLink, World
from tests.sim.virtual_loop import pass_time, run_virtually

AT_ONCE_S = 0.05
LONG_MS = 60_000.0
ANY_BYTES = 1 << 20

Scene = Callable[[World], Awaitable[None]]


def act(scene: Scene, **options: Any) -> None:
    async def played() -> None:
        world = World(**options)
        try:
            await scene(world)
        finally:
            await world.end_readers()

    run_virtually(played())


async def timed(world: World, work: Coroutine[Any, Any, Any]) -> tuple[Any, float]:
    begun_s = world.loop.time()
    return await work, world.loop.time() - begun_s


async def read_all(world: World, reader: Any, last: int, bytes_max: int = ANY_BYTES) -> None:
    got: list[bytes] = []
    while len(got) <= last:
        got += map(bytes, await reader.read(len(got), last, bytes_max=bytes_max))
    assert got == world.payloads[: last + 1]


# --- entries: which bookie


def test_batch_read_hang() -> None:
    """A bookie that takes a request and never answers costs one hedge, and then is asked last."""

    async def scene(world: World) -> None:
        world.fill(10)
        hung = world.bookies["b0"]
        hung.hangs = True
        reader = world.reader()
        reader._entries._first_place = 0
        _, first_s = await timed(world, reader.read(0, 4, bytes_max=ANY_BYTES))
        assert HEDGE_MS_FIRST / 1000 <= first_s <= HEDGE_MS_FIRST / 1000 + AT_ONCE_S
        assert reader.hedges == 1
        _, second_s = await timed(world, reader.read(5, 9, bytes_max=ANY_BYTES))
        assert second_s < AT_ONCE_S
        # Other readers know it, too, for a while.
        other = world.reader()
        other._entries._first_place = 0
        _, third_s = await timed(world, other.read(0, 9, bytes_max=ANY_BYTES))
        assert third_s < AT_ONCE_S
        assert world.asked["batch_read b0"] == 1
        await pass_time(TROUBLED_S + 5)  # counted from when the silent request was given up
        hung.hangs = False
        third = world.reader()
        third._entries._first_place = 0
        await third.read(0, 9, bytes_max=ANY_BYTES)
        assert world.asked["batch_read b0"] == 2

    act(scene)


def test_every_bookie_is_silent_and_the_read_still_ends() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        for bookie in world.bookies.values():
            bookie.hangs = True
        with pytest.raises(Unavailable) as caught:
            await world.reader().read(0, 2, bytes_max=ANY_BYTES)
        assert sorted(caught.value.missing) == ["b0", "b1", "b2"]
        assert caught.value.entry_id == 0
        assert world.loop.time() < 11

    # What is readable is known from metadata: bookies would not say.
    async def closed(world: World) -> None:
        world.fill(3)
        await world.close()
        await scene(world)

    act(closed)


def test_a_reader_that_reads_on_stays_on_its_bookie() -> None:
    async def scene(world: World) -> None:
        world.fill(60)
        reader = world.reader()
        await read_all(world, reader, 59, bytes_max=200)
        asked = {bookie_id for bookie_id, *_ in world.batches}
        assert len(world.batches) > 10
        assert len(asked) == 1

    act(scene)


def test_reads_side_by_side_spread_over_the_bookies() -> None:
    async def scene(world: World) -> None:
        world.fill(60)
        reader = world.reader()
        await reader.read(0, 9, bytes_max=ANY_BYTES)
        await asyncio.gather(
            *(reader.read(first, first + 9, bytes_max=ANY_BYTES) for first in (10, 20, 30))
        )
        assert {bookie_id for bookie_id, *_ in world.batches[1:]} == {"b0", "b1", "b2"}

    act(scene)


def test_a_bookie_that_lost_everything_is_passed_by() -> None:
    async def scene(world: World) -> None:
        world.fill(10)
        world.bookies["b0"].wipe()
        reader = world.reader()
        reader._entries._first_place = 0
        await read_all(world, reader, 9, bytes_max=60)
        assert world.asked["batch_read b0"] == 1, "who has nothing is not asked each time"

    act(scene)


def test_a_bookie_with_holes_gives_what_is_before_them() -> None:
    """DL-14: a missing entry is read from another bookie, and never skipped."""

    async def scene(world: World) -> None:
        world.fill(10)
        del world.bookies["b0"].packets[4]
        reader = world.reader()
        reader._entries._first_place = 0
        assert len(await reader.read(0, 9, bytes_max=ANY_BYTES)) == 4
        await read_all(world, reader, 9)

    act(scene)


def test_a_damaged_entry_is_read_elsewhere_and_what_is_before_it_is_kept() -> None:
    async def scene(world: World) -> None:
        world.fill(10)
        packets = world.bookies["b0"].packets
        packets[4] = packets[4][:-1] + b"x"
        reader = world.reader()
        reader._entries._first_place = 0
        assert len(await reader.read(0, 9, bytes_max=ANY_BYTES)) == 4
        assert [bytes(each) for each in await reader.read(4, 9, bytes_max=ANY_BYTES)] == (
            world.payloads[4:]
        )

    act(scene)


def test_an_entry_that_is_damaged_everywhere_is_corrupt() -> None:
    """DL-24: an entry with a wrong digest is never handed out."""

    async def scene(world: World) -> None:
        world.fill(10)
        for bookie in world.ensemble[:2]:
            bookie.packets[4] = bookie.packets[4][:-1] + b"x"
        del world.ensemble[2].packets[4]
        reader = world.reader()
        with pytest.raises(Corrupt, match=r"entry 4 .*b[01]: bad digest") as c:
            await reader.read(4, 9, bytes_max=ANY_BYTES)
        assert (c.value.ledger_id, c.value.entry_id) == (LEDGER, 4)
        world.ensemble[2].is_up = False  # it may be right there: nobody can tell
        with pytest.raises(Unavailable):
            await reader.read(4, 9, bytes_max=ANY_BYTES)

    act(scene)


def test_nobody_has_it_is_not_the_same_as_deleted() -> None:
    async def scene(world: World) -> None:
        world.fill(10)
        reader = world.reader()
        await reader.last_readable()
        for bookie in world.bookies.values():
            bookie.wipe()
        with pytest.raises(Unavailable, match="no ledger"):
            await reader.read(0, 9, bytes_max=ANY_BYTES)
        await world.nodes.delete(LEDGER)
        with pytest.raises(NotFound):
            await reader.read(0, 9, bytes_max=ANY_BYTES)

    act(scene)


def test_bookies_without_batch_reads_are_read_all_the_same() -> None:
    async def scene(world: World) -> None:
        world.fill(50)
        for bookie in world.bookies.values():
            bookie.batches = False
        reader = world.reader()
        await read_all(world, reader, 49, bytes_max=100)
        assert world.asked["batch_read"] == 3, "each bookie loses one connection, once"
        world.bookies["b0"].batches = True
        assert len(await reader.read(0, 49, bytes_max=1)) == 1
        assert len(await reader.read(0, 49, bytes_max=ANY_BYTES)) == 32, "side by side"

    act(scene)


def test_a_bookie_that_was_killed_is_not_taken_for_an_old_one() -> None:
    async def scene(world: World) -> None:
        world.fill(10)
        reader = world.reader()
        reader._entries._first_place = 0
        await reader.read(0, 9, bytes_max=ANY_BYTES)
        world.bookies["b0"].batches = False  # the connection is lost with the batch on its way
        await reader.read(0, 9, bytes_max=ANY_BYTES)
        world.bookies["b0"].batches = True
        assert world.habits.reads_batches("b0", world.loop.time())
        world.bookies["b1"].is_up = world.bookies["b2"].is_up = False
        await reader.read(0, 9, bytes_max=ANY_BYTES)
        assert world.asked["read"] == 0
        world.bookies["b0"].is_up = False
        with pytest.raises(Unavailable):
            await reader.read(0, 9, bytes_max=ANY_BYTES)
        assert all(world.habits.reads_batches(id, world.loop.time()) for id in ("b0", "b1", "b2"))

    act(scene)


def test_striped_ledgers_are_read_in_order() -> None:
    async def scene(world: World) -> None:
        world.fill(40)
        world.bookies["b1"].is_up = False
        reader = world.reader()
        await read_all(world, reader, 39)
        assert world.asked["batch_read"] == 0
        assert len(await reader.read(0, 39, bytes_max=20)) <= 3
        # An entry that cannot be had ends the run before it, and is met by the next read.
        for bookie in world.bookies.values():
            bookie.packets.pop(7, None)
        assert len(await reader.read(5, 39, bytes_max=ANY_BYTES)) <= 2
        with pytest.raises(Unavailable) as caught:
            await reader.read(7, 39, bytes_max=ANY_BYTES)
        assert caught.value.entry_id == 7

    act(scene, ensemble=5, write_quorum=3)


def test_a_batch_ends_with_its_fragment_and_with_what_is_readable() -> None:
    async def scene(world: World) -> None:
        world.fill(10)
        await world.change_ensemble(1, "b3")
        world.fill(10)
        world.add()  # never published
        await pass_time(1)
        reader = world.reader()
        assert len(await reader.read(0, 19, bytes_max=ANY_BYTES)) == 10
        assert len(await reader.read(10, 19, bytes_max=ANY_BYTES)) == 10
        assert [(first, count) for _, first, count, _ in world.batches] == [(0, 10), (10, 10)]
        with pytest.raises(ConfigError):
            await reader.read(0, 20, bytes_max=ANY_BYTES)
        for first, last in ((-1, 3), (3, 2), (-1, -1)):  # C12: there is no batch from -1 on
            with pytest.raises(ConfigError):
                await reader.read(first, last, bytes_max=ANY_BYTES)

    act(scene)


def test_bytes_bound_a_read_and_one_entry_may_exceed_them() -> None:
    async def scene(world: World) -> None:
        world.fill(10, size=1000)
        reader = world.reader()
        assert len(await reader.read(0, 9, bytes_max=1)) == 1
        assert len(await reader.read(0, 9, bytes_max=1000)) == 1
        assert len(await reader.read(0, 9, bytes_max=3500)) == 3
        assert len(await reader.read(0, 9, bytes_max=64 << 20)) == 10

    act(scene)


def test_a_closed_ledger_that_moved_to_other_bookies_is_found_there() -> None:
    async def scene(world: World) -> None:
        world.fill(10)
        await world.close()
        reader = world.reader()
        old = world.ensemble
        for place, (bookie, spare) in enumerate(zip(old[:2], ("b3", "b4"), strict=True)):
            world.bookies[spare].packets.update(bookie.packets)
            bookie.is_up = False
            moved = world.metadata.fragments[0].ensemble
            ensemble = (*moved[:place], spare, *moved[place + 1 :])
            fragment = replace(world.metadata.fragments[0], ensemble=ensemble)
            await world.nodes.change_now(partial(replace, fragments=(fragment,)))
        old[2].is_up = False
        await read_all(world, reader, 9)

    act(scene)


# --- the tail: what may be read


def test_lac_is_a_hint() -> None:
    """A bookie that was wiped knows less than was published; enough others are asked."""

    async def scene(world: World) -> None:
        world.fill(10)
        world.bookies["b0"].wipe()
        assert await world.reader().last_readable() == 9
        for bookie in ("b1", "b2"):
            world.bookies[bookie].is_up = False
        with pytest.raises(Unavailable) as caught:
            await world.reader().last_readable()
        assert sorted(caught.value.missing) == ["b1", "b2"]
        assert caught.value.needed == 1

    act(scene)


def test_two_of_three_answers_are_waited_for_and_not_the_third() -> None:
    async def scene(world: World) -> None:
        world.fill(10)
        world.bookies["b2"].hangs = True
        readable, took_s = await timed(world, world.reader().last_readable())
        assert readable == 9
        assert took_s < AT_ONCE_S

    act(scene)


def test_a_damaged_answer_covers_nothing() -> None:
    async def scene(world: World) -> None:
        world.fill(10)
        for bookie in ("b0", "b1"):
            world.bookies[bookie].proof = b"\0" * 20
        with pytest.raises(Unavailable, match="bad digest"):
            await world.reader().last_readable()

    act(scene)


def test_a_proof_without_an_entry_is_a_proof() -> None:
    """A bookie says "io failed" then, with the proof beside it."""

    async def scene(world: World) -> None:
        world.fill(3)
        for bookie in world.ensemble:
            bookie.packets.clear()
        assert await world.reader().last_readable() == 2

    act(scene)


def test_a_refusal_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(world: World) -> None:
        world.fill(3)

        def refuse(bookie: SimBookie) -> tuple[Answer, Body | None]:
            return Answer.UNAUTHORIZED, None

        monkeypatch.setattr(SimBookie, "read_lac", refuse)
        with pytest.raises(AuthError):
            await world.reader().last_readable()

    act(scene)


def test_the_floor_of_the_last_fragment() -> None:
    """Every bookie that knew the published LAC was replaced since; what they showed stays shown."""

    async def scene(world: World) -> None:
        world.fill(3)
        for place, spare in enumerate(("b3", "b4", "b5")):
            await world.change_ensemble(place, spare)
        assert world.metadata.fragments[-1].first_entry_id == 3
        assert await world.reader().last_readable() == 2

    act(scene, spares=3)


def test_entry_zero_is_falsy() -> None:
    async def scene(world: World) -> None:
        reader = world.reader()
        assert await reader.last_readable() == -1
        waiting = asyncio.ensure_future(reader.wait_past(-1, LONG_MS))
        await pass_time(2.5)
        world.fill(1)
        published_s = world.loop.time()
        assert await waiting == 0
        assert world.loop.time() - published_s < POLL_MS / 1000
        assert [bytes(each) for each in await reader.read(0, 0, bytes_max=1)] == world.payloads
        await world.close()
        assert await reader.last_readable() == 0
        assert await reader.wait_past(-1, 0) == 0

    act(scene)


def test_an_empty_ledger_closes_at_minus_one() -> None:
    async def scene(world: World) -> None:
        reader = world.reader()
        await world.close()
        assert await reader.last_readable() == -1
        assert await reader.wait_past(-1, LONG_MS) == -1
        assert world.loop.time() < AT_ONCE_S

    act(scene)


def test_the_bare_word_of_a_bookie_is_no_proof() -> None:
    """A header that confirms more than there is drives the LAC that bookies tell up for ever (C13);
    the digest of such an entry may even be right. Nobody may believe it, and news is still
    heard, within a second."""

    async def scene(world: World) -> None:
        world.fill(5)
        world.add()
        await pass_time(AT_ONCE_S)
        assert world.confirmed == 5
        numbers = struct.pack(">qqqq", LEDGER, 6, 1000, world.ledger_bytes + 3)
        poison = numbers + world.digest._sum(numbers, [b"bad"]) + b"bad"
        for bookie in world.ensemble:
            bookie.add(6, poison)
            del bookie.packets[6]  # what counts is the number that stays
        reader = world.reader()
        assert await reader.last_readable() == 4
        assert await reader.wait_past(4, 3_000.0) == 4
        assert world.asked["read_lac"] < 50, "asked in vain, but not all the time"
        with pytest.raises(ConfigError):
            await reader.read(5, 5, bytes_max=1)
        waiting = asyncio.ensure_future(reader.wait_past(4, LONG_MS))
        await pass_time(0.5)
        world.publish()
        published_s = world.loop.time()
        assert await waiting == 5
        assert world.loop.time() - published_s <= POLL_MS / 1000 + AT_ONCE_S

    act(scene)


def test_a_poisoned_last_entry_says_nothing() -> None:
    async def scene(world: World) -> None:
        world.fill(5)
        numbers = struct.pack(">qqqq", LEDGER, 5, 1000, world.ledger_bytes + 3)
        poison = numbers + world.digest._sum(numbers, [b"bad"]) + b"bad"
        for bookie in world.ensemble[:2]:
            bookie.packets[5] = poison
        with pytest.raises(Unavailable, match="bad digest"):
            await world.reader().last_readable()

    act(scene)


def test_stale_metadata_would_hide_the_end() -> None:
    """Another store closed the ledger before the call: its end is the answer, although no bookie
    knows that LAC."""

    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        assert await reader.last_readable() == 2
        world.add()
        await pass_time(AT_ONCE_S)
        await world.close()
        assert await reader.last_readable() == 3
        assert await reader.wait_past(2, 0) == 3

    act(scene)


def test_the_ensemble_changed_before_the_question() -> None:
    """The old bookies answer well, and know nothing of what the new ones were told."""

    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        await reader.last_readable()
        for place, spare in enumerate(("b3", "b4", "b5")):
            await world.change_ensemble(place, spare)
        world.fill(2)
        assert await reader.last_readable() == 4

    act(scene, spares=3)


# --- the tail: how news is heard


def test_news_is_heard_at_once_and_brings_its_entry() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        assert await reader.wait_past(1, LONG_MS) == 2
        for entry_id in range(3, 20):
            waiting = asyncio.ensure_future(reader.wait_past(entry_id - 1, LONG_MS))
            await pass_time(0.7)
            world.add()
            await pass_time(AT_ONCE_S)
            assert not waiting.done(), "confirmed and not published"
            world.publish()
            found, took_s = await timed(world, waiting)  # type: ignore[arg-type]
            assert found == entry_id
            assert took_s < 0.003
            (entry,) = await reader.read(entry_id, entry_id, bytes_max=1)
            assert entry == world.payloads[entry_id]
        assert world.asked["batch_read"] == 0, "each entry came with the poll"

    act(scene)


def test_one_shot_watches_are_not_wasted() -> None:
    """C2: a bookie that is behind would spend its watch on what we know already, and then sleep
    through the news. So it is asked for more than itself has told."""

    async def scene(world: World) -> None:
        world.fill(3)
        world.add()
        await pass_time(AT_ONCE_S)
        proof = world.digest.pack_lac(LEDGER, 3)
        world.word = 3
        ahead, behind = world.ensemble[0], world.ensemble[1:]
        ahead.keep_lac(3, proof)
        reader = world.reader()
        assert await reader.wait_past(2, LONG_MS) == 3
        waiting = asyncio.ensure_future(reader.wait_past(3, LONG_MS))
        await pass_time(0.3)
        ahead.is_up = False  # only those that are behind can tell
        for bookie in behind:
            bookie.keep_lac(3, proof)
        world.add()
        await pass_time(AT_ONCE_S)
        world.publish()
        _, took_s = await timed(world, waiting)  # type: ignore[arg-type]
        assert took_s < AT_ONCE_S

    act(scene)


def test_a_silent_bookie_delays_no_news() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        await reader.last_readable()
        for silent in ("b0", "b1", "b2"):
            waiting = asyncio.ensure_future(reader.wait_past(world.confirmed, LONG_MS))
            await pass_time(0.1)
            world.bookies[silent].hangs = True
            world.add()
            await pass_time(AT_ONCE_S)
            world.publish()
            _, took_s = await timed(world, waiting)  # type: ignore[arg-type]
            assert took_s < AT_ONCE_S
            world.bookies[silent].hangs = False
            await pass_time(3.0)  # its lost poll is given up

    act(scene)


def test_a_fence_wakes_a_wait_although_no_watch_fired() -> None:
    """C10. Fenced, a ledger answers every poll at once: it is polled no faster for that."""

    async def scene(world: World) -> None:
        world.fill(3)
        world.weather.watch_lost = 1.0
        reader = world.reader()
        waiting = asyncio.ensure_future(reader.wait_past(2, LONG_MS))
        await pass_time(0.5)
        recovering = asyncio.ensure_future(world.recover(30.0))
        _, took_s = await timed(world, waiting)  # type: ignore[arg-type]
        assert took_s < AT_ONCE_S
        before = world.asked["poll"]
        _, took_s = await timed(world, reader.wait_past(2, 20_000.0))
        assert took_s >= 20.0, "it was fenced before already: only the end is news"
        assert world.asked["poll"] - before < 3 * 30
        _, took_s = await timed(world, reader.wait_past(2, LONG_MS))
        assert took_s < 11.0, "the end is found without any watch"
        await recovering

    act(scene)


def test_a_wait_ends_with_the_ledger() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader, other = world.reader(), world.reader()
        waits = [
            asyncio.ensure_future(reader.wait_past(2, LONG_MS)),
            asyncio.ensure_future(other.wait_past(2, LONG_MS)),
        ]
        await pass_time(3.0)
        world.add()
        await pass_time(AT_ONCE_S)
        await world.close()
        assert await asyncio.gather(*waits) == [3, 3]
        assert world.loop.time() < 3.2
        await world.nodes.delete(LEDGER)
        with pytest.raises(NotFound):
            await reader.last_readable()

    act(scene)


def test_a_lost_watch_delays_the_end_and_does_not_lose_it() -> None:
    """A writer's close fences nobody, so no bookie tells."""

    async def scene(world: World) -> None:
        world.fill(3)
        world.weather.watch_lost = 1.0
        reader = world.reader()
        waiting = asyncio.ensure_future(reader.wait_past(2, LONG_MS))
        await pass_time(3.0)
        await world.close()
        _, took_s = await timed(world, waiting)  # type: ignore[arg-type]
        assert took_s <= LOOK_AGAIN_MS / 1000

    act(scene)


def test_a_wait_ends_with_a_deletion() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        waiting = asyncio.ensure_future(reader.wait_past(2, LONG_MS))
        await pass_time(3.0)
        await world.nodes.delete(LEDGER)
        found, took_s = await timed(world, waiting)  # type: ignore[arg-type]
        assert (found, took_s < AT_ONCE_S) == (-1, True)
        with pytest.raises(NotFound):
            await reader.read(0, 2, bytes_max=ANY_BYTES)
        with pytest.raises(NotFound):
            await reader.info()

    act(scene)


def test_a_wait_follows_a_change_of_ensemble() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        waiting = asyncio.ensure_future(reader.wait_past(2, LONG_MS))
        await pass_time(0.2)
        for place, spare in enumerate(("b3", "b4", "b5")):
            await world.change_ensemble(place, spare)
        await pass_time(0.2)
        world.add()
        await pass_time(AT_ONCE_S)
        world.publish()
        found, took_s = await timed(world, waiting)  # type: ignore[arg-type]
        # New bookies know no ledger until the first entry comes, and are asked with pauses.
        assert (found, took_s <= PAUSE_MS_MAX / 1000) == (3, True)

    act(scene, spares=3)


def test_polls_stand_while_somebody_waits_and_not_longer() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        assert await reader.wait_past(2, 5_000.0) == 2
        assert 15 <= world.asked["poll"] <= 21, "three bookies, a second each"
        await pass_time(5.0)
        assert world.asked["poll"] <= 21

    act(scene)


def test_a_first_wait_says_what_is_readable_and_not_what_one_bookie_knows() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        world.bookies["b0"].proof = world.digest.pack_lac(LEDGER, 1)
        world.bookies["b0"].lac = 1
        del world.bookies["b0"].packets[2]
        assert await world.reader().wait_past(0, LONG_MS) == 2

    for seed in range(20):
        act(scene, seed=seed)


def test_a_wait_outlasts_a_time_without_bookies() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        for bookie in world.bookies.values():
            bookie.is_up = False
        waiting = asyncio.ensure_future(world.reader().wait_past(2, LONG_MS))
        await pass_time(3.0)
        for bookie in world.bookies.values():
            bookie.is_up = True
        world.fill(1)
        found, took_s = await timed(world, waiting)  # type: ignore[arg-type]
        assert (found, took_s <= PAUSE_MS_MAX / 1000 + AT_ONCE_S) == (3, True)

    act(scene)


def test_a_wait_without_news_gives_a_fresh_answer() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        for timeout_ms in (0.0, 30.0):
            assert await reader.wait_past(2, timeout_ms) == 2
        with_nobody = world.reader()
        for bookie in world.bookies.values():
            bookie.is_up = False
        with pytest.raises(Unavailable):
            await with_nobody.wait_past(2, 100.0)

    act(scene)


# --- metadata away


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
def test_open_readers_go_on_without_the_metadata_store(hangs: bool) -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        waiting = asyncio.ensure_future(reader.wait_past(2, LONG_MS))
        await pass_time(0.5)
        world.nodes.away, world.nodes.hangs = True, hangs
        world.fill(1)
        assert await waiting == 3
        readable, took_s = await timed(world, reader.last_readable())
        assert (readable, took_s < METADATA_GRACE_S + AT_ONCE_S) == (3, True)
        assert reader.metadata_away
        assert reader.answers_without_metadata >= 1
        for count in range(4, 30):
            waiting = asyncio.ensure_future(reader.wait_past(count - 1, LONG_MS))
            await pass_time(1.0)
            world.fill(1)
            found, took_s = await timed(world, waiting)  # type: ignore[arg-type]
            assert (found, took_s < AT_ONCE_S) == (count, True)
            readable, took_s = await timed(world, reader.last_readable())
            assert (readable, took_s < AT_ONCE_S) == (count, True), "nobody waits for it twice"
        assert world.nodes.reads < (15 if hangs else 100), "one look at a time"
        with pytest.raises(Exception, match="metadata store"):
            await reader.info()
        world.nodes.away = world.nodes.hangs = False
        await world.close()
        await reader.wait_past(29, LONG_MS)
        assert await reader.last_readable() == 29
        assert not reader.metadata_away

    act(scene)


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
def test_a_closed_ledger_is_readable_without_the_metadata_store(hangs: bool) -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        await world.close()
        reader = world.reader()
        world.nodes.away, world.nodes.hangs = True, hangs
        assert await reader.last_readable() == 2
        assert world.loop.time() < METADATA_GRACE_S + AT_ONCE_S
        await read_all(world, reader, 2)

    act(scene)


def test_a_closed_ledger_without_the_metadata_store_does_not_keep_the_loop() -> None:
    """Nobody is left to ask, so every answer comes at once; others have their turns in between."""

    async def scene(world: World) -> None:
        world.fill(3)
        await world.close()
        reader = world.reader()
        world.nodes.away = True
        assert await reader.last_readable() == 2
        assert reader.metadata_away
        turns = 0

        async def another() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(another())
        for _ in range(100):
            assert await reader.wait_past(2, LONG_MS) == 2
        assert turns >= 100
        beside.cancel()

    act(scene)


def test_bookies_away_and_metadata_there() -> None:
    """Closed meanwhile: metadata alone has the answer."""

    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        await world.close()
        for bookie in world.bookies.values():
            bookie.is_up = False
        world.nodes.delay_s = METADATA_GRACE_S + 1
        assert await reader.last_readable() == 2

    act(scene)


def test_a_look_that_comes_late_does_not_reopen_a_ledger() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        early = world.nodes.stored
        await world.close()
        assert await reader.last_readable() == 2
        reader._tail.core.on_metadata(early.metadata)
        assert reader._tail.core.metadata.state is LedgerState.CLOSED

    act(scene)


def test_the_watch_begins_again_when_metadata_is_back() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        world.nodes.away = True
        waiting = asyncio.ensure_future(world.reader().wait_past(2, LONG_MS))
        await pass_time(5.0)
        world.nodes.away = False
        await pass_time(2.0)
        assert not waiting.done()
        await world.close()
        _, took_s = await timed(world, waiting)  # type: ignore[arg-type]
        assert took_s < AT_ONCE_S

    act(scene)


# --- deletion, and the end of a reader


def test_reads_of_a_closed_ledger_do_not_ask_metadata_each() -> None:
    async def scene(world: World) -> None:
        world.fill(30)
        await world.close()
        reader = world.reader()
        for _ in range(20):
            await read_all(world, reader, 29)
        assert world.nodes.reads == 0
        await world.nodes.delete(LEDGER)
        await read_all(world, reader, 29)  # not noticed yet, and still true
        await pass_time(LOOK_AGAIN_MS / 1000)
        await read_all(world, reader, 29)
        await pass_time(AT_ONCE_S)
        with pytest.raises(NotFound):
            await reader.read(0, 29, bytes_max=ANY_BYTES)
        assert world.nodes.reads == 1

    act(scene)


def test_a_closed_reader_leaves_nothing_behind() -> None:
    """Whoever is in a call is told; no task stays (the stage looks)."""

    async def scene(world: World) -> None:
        world.fill(3)
        for bookie in world.bookies.values():
            bookie.hangs = True
        for begun_s in (0.0, 0.5, 2.0):
            reader = world.reader()
            calls = [
                asyncio.ensure_future(call)
                for call in (reader.wait_past(2, LONG_MS), reader.last_readable())
            ]
            await pass_time(begun_s)
            await reader.close()
            await reader.close()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(each) for each in outcomes] == [ReaderClosed, ReaderClosed]
            with pytest.raises(ConfigError):
                await reader.last_readable()
            with pytest.raises(ConfigError):
                await reader.read(0, 0, bytes_max=1)

    act(scene)


def test_a_close_ends_a_wait_at_once() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        waiting = asyncio.ensure_future(reader.wait_past(2, LONG_MS))
        await pass_time(0.5)
        assert not waiting.done()
        await reader.close()
        with pytest.raises(ReaderClosed):
            await waiting
        assert world.loop.time() < 0.6
        polls = world.asked["poll"]
        await pass_time(3.0)
        assert world.asked["poll"] == polls

    act(scene)


def test_a_read_in_flight_is_told_of_the_close() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        await world.close()
        reader = world.reader()
        for bookie in world.bookies.values():
            bookie.hangs = True
        reading = asyncio.ensure_future(reader.read(0, 2, bytes_max=ANY_BYTES))
        await pass_time(0.1)
        await reader.close()
        with pytest.raises(ReaderClosed):
            await reading

    act(scene)


def test_cancelled_calls_leave_the_reader_usable() -> None:
    async def scene(world: World) -> None:
        world.fill(3)
        reader = world.reader()
        for steps in range(12):
            for call in (
                reader.wait_past(2, LONG_MS),
                reader.last_readable(),
                reader.read(0, 2, bytes_max=ANY_BYTES),
            ):
                task = asyncio.ensure_future(call)
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        assert await reader.last_readable() == 2
        await read_all(world, reader, 2)

    act(scene)


def test_a_link_that_lies_about_its_answer_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An OK without entries, or with more than was asked for."""

    async def scene(world: World) -> None:
        world.fill(10)
        honest = SimLink.batch_read

        async def more(link: SimLink, *args: Any, count_max: int, **kwargs: Any) -> Any:
            return await honest(link, *args, count_max=10, **kwargs)

        async def none(link: SimLink, *args: Any, **kwargs: Any) -> Any:
            return (await honest(link, *args, **kwargs))._replace(entries=[])

        reader = world.reader()
        monkeypatch.setattr(SimLink, "batch_read", more)
        assert len(await reader.read(0, 4, bytes_max=ANY_BYTES)) == 5
        monkeypatch.setattr(SimLink, "batch_read", none)
        with pytest.raises(Unavailable):
            await reader.read(0, 4, bytes_max=ANY_BYTES)

    act(scene)
