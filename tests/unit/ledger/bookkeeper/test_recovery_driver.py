"""The driver of recoveries over links and nodes that are this test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dlog import trace
from dlog.chance import SYSTEM_CHANCE
from dlog.errors import Broken, NotFound, Timeout, Unavailable
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.ledger.bookkeeper.policy import RandomPlacement
from dlog.ledger.bookkeeper.recovery import LedgerRecovery
from dlog.ledger.store import ClosedLedger
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import BatchReadReply, Flag, ReadReply
from dlog.wire.ledger_metadata import LedgerState
from tests.sim.virtual_loop import LoopClock, VirtualLoop, run_virtually
from tests.unit.ledger.bookkeeper.recovery_tools import (
    KEY,
    LEDGER_ID,
    bytes_to,
    metadata,
    packet,
    split,
)


class FakeLink:
    def __init__(self, bookie_id: str, entries: list[bytes]) -> None:
        self.bookie_id = bookie_id
        self.where = f"bookie {bookie_id}"
        self.is_up = True
        self.has_room = True
        self.entries = {int.from_bytes(raw[8:16], "big"): raw for raw in entries}
        self.sink: Any = None
        self.fence_keys: list[bytes | None] = []
        self.asked: list[int] = []
        self.attached = 0
        self.settled: list[tuple[int, int]] = []
        self.sent = 0
        self.sent_bytes = 0
        self.says: Callable[[int], Answer | None] = lambda first_entry: None
        self.is_silent = False
        self.is_deaf_to_adds = False

    def attach(self, ledger_id: int, sink: Any) -> None:
        assert self.sink is None, "one sink for a ledger and link"
        self.sink = sink
        self.attached += 1

    def detach(self, ledger_id: int) -> None:
        self.sink = None

    def send_adds(self, ledger_id: int, frames: bytes, *, entries: int, bytes: int) -> None:
        assert self.sink is not None
        assert self.has_room
        adds = split(frames)
        assert len(adds) == entries
        assert len(frames) == bytes
        self.sent += entries
        self.sent_bytes += bytes
        if self.is_deaf_to_adds:
            return
        for flags, entry in adds:
            assert flags & Flag.RECOVERY_ADD
            self.entries[entry.entry_id] = packet(entry.entry_id)
        entry_ids = [entry.entry_id for _, entry in adds]
        sink = self.sink
        asyncio.get_running_loop().call_soon(lambda: sink.on_adds(self, Answer.OK, entry_ids))

    def settle(self, ledger_id: int, *, entries: int, bytes: int) -> None:
        self.settled.append((entries, bytes))

    async def _answer(self, first_entry: int, count_max: int, key: bytes | None) -> Any:
        self.fence_keys.append(key)
        self.asked.append(first_entry)
        if self.is_silent:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        told = self.says(first_entry)
        if told is not None:
            return told, []
        if first_entry < 0 and self.entries:
            return Answer.OK, [memoryview(self.entries[max(self.entries)])]
        raws: list[memoryview] = []
        while first_entry in self.entries and len(raws) < count_max:
            raws.append(memoryview(self.entries[first_entry]))
            first_entry += 1
        return (Answer.OK, raws) if raws else (Answer.NO_ENTRY, [])

    async def read(
        self, ledger_id: int, entry_id: int, *, timeout_ms: float, fence_key: bytes | None = None
    ) -> ReadReply:
        answer, raws = await self._answer(entry_id, 1, fence_key)
        return ReadReply(answer, ledger_id, entry_id, raws[0] if raws else None)

    async def batch_read(
        self,
        ledger_id: int,
        first_entry: int,
        *,
        count_max: int,
        frame_bytes_max: int,
        timeout_ms: float,
        fence_key: bytes | None = None,
    ) -> BatchReadReply:
        answer, raws = await self._answer(first_entry, count_max, fence_key)
        return BatchReadReply(answer, ledger_id, first_entry, 1, raws)


class World:
    """Links, nodes and bookies in one."""

    def __init__(self, **bookies: list[bytes]) -> None:
        self.links_of = {name: FakeLink(name, entries) for name, entries in bookies.items()}
        self.down: set[str] = set()
        self.in_quarantine: set[str] = set()
        self.stored = StoredLedger(LEDGER_ID, metadata(state=LedgerState.OPEN), 0)
        self.changes = 0
        self.error: Exception | None = None
        self.marking: asyncio.Event | None = None  # waited for by the first change

    async def recovery(self, bookie_id: str) -> FakeLink:
        await asyncio.sleep(0)
        if bookie_id in self.down:
            raise Unavailable(f"{bookie_id} is down", missing=[bookie_id])
        return self.links_of[bookie_id]

    async def read(self, ledger_id: int) -> StoredLedger:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.stored

    read_fresh = read

    async def change(self, known: StoredLedger, change: Any) -> StoredLedger:
        await asyncio.sleep(0)
        if self.marking is not None and self.changes == 0:
            await self.marking.wait()
        changed = change(self.stored.metadata)
        if changed is not None:
            self.changes += 1
            self.stored = replace(self.stored, metadata=changed, version=self.stored.version + 1)
        return self.stored

    def writable(self) -> list[str]:
        return [*self.links_of]

    def avoided(self) -> set[str]:
        return self.in_quarantine

    def recoveries(self, **options: Any) -> LedgerRecovery:
        return LedgerRecovery(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self,
            RandomPlacement(SYSTEM_CHANCE),
            **options,
        )


async def until(fact: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if fact():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not happen within a thousand turns of the loop")


WHOLE = [packet(entry_id) for entry_id in range(3)]


async def test_it_fences_with_every_read_and_leaves_nothing_behind() -> None:
    world = World(a=[*WHOLE, packet(3, 2)], b=WHOLE, c=WHOLE)
    assert await world.recoveries().recover(LEDGER_ID) == ClosedLedger(3, bytes_to(3))
    assert world.stored.metadata.state is LedgerState.CLOSED
    assert world.changes == 2, "the mark and the close"
    for link in world.links_of.values():
        assert len(link.fence_keys) >= 2
        assert set(link.fence_keys) == {KEY}, "also of reads that look for the end (2614)"
        assert link.sink is None
    settled = [link for link in world.links_of.values() if link.settled]
    assert len(settled) >= 2
    assert all(link.settled == [(link.sent, link.sent_bytes)] for link in settled)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_it_fences_while_it_marks_and_once_more_when_it_has() -> None:
    """The first fence saves the time of the second, and proves nothing: it may meet bookies that
    are not named any more when the ledger is marked."""
    world = World(a=WHOLE, b=WHOLE, c=WHOLE)
    world.marking = asyncio.Event()
    recovering = asyncio.create_task(world.recoveries().recover(LEDGER_ID))
    links = list(world.links_of.values())
    await until(lambda: all(link.asked == [-1] for link in links))
    assert world.changes == 0
    world.marking.set()
    assert await recovering == ClosedLedger(2, bytes_to(2))
    assert sum(link.asked.count(-1) for link in links) >= 5, "three, and enough of them again"


async def test_a_fence_ahead_that_fails_or_hangs_is_nobodys_trouble() -> None:
    world = World(a=WHOLE, b=WHOLE, c=WHOLE)
    world.marking = asyncio.Event()
    world.down = {"a"}
    world.links_of["b"].is_silent = True
    recovering = asyncio.create_task(world.recoveries().recover(LEDGER_ID))
    await until(lambda: world.links_of["b"].asked == [-1])
    world.down, world.links_of["b"].is_silent = set(), False
    world.marking.set()
    assert await recovering == ClosedLedger(2, bytes_to(2))
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_is_known_is_not_read_and_may_be_stale() -> None:
    """The changes decide, not what somebody read."""
    world = World(a=WHOLE, b=WHOLE, c=WHOLE)
    world.error = NotFound("it must not be read")
    recoveries, known = world.recoveries(), world.stored
    end = await recoveries.recover(LEDGER_ID, known=known)
    assert end == ClosedLedger(2, bytes_to(2))
    assert await recoveries.recover(LEDGER_ID, known=known) == end
    assert world.changes == 2


class Clock:
    def __init__(self) -> None:
        self.now_s = 5.0

    def monotonic_s(self) -> float:
        return self.now_s


async def test_what_was_just_closed_is_known_once() -> None:
    world, clock = World(a=WHOLE, b=WHOLE, c=WHOLE), Clock()
    recoveries = world.recoveries(clock=clock)
    assert recoveries.take_closed(LEDGER_ID) is None
    await recoveries.recover(LEDGER_ID)
    assert recoveries.take_closed(LEDGER_ID) == world.stored
    assert recoveries.take_closed(LEDGER_ID) is None
    await recoveries.recover(LEDGER_ID)
    clock.now_s += 1.01
    assert recoveries.take_closed(LEDGER_ID) is None, "too long ago"


async def test_not_all_that_was_ever_closed_is_known() -> None:
    world = World(a=WHOLE, b=WHOLE, c=WHOLE)
    recoveries = world.recoveries()
    for ledger_id in range(100):
        recoveries.remember(replace(world.stored, ledger_id=ledger_id))
    assert [each for each in range(100) if recoveries.take_closed(each)] == [*range(92, 100)]


async def test_who_asks_meanwhile_gets_the_same_answer() -> None:
    world = World(a=WHOLE, b=WHOLE, c=WHOLE)
    recoveries = world.recoveries()
    ends = await asyncio.gather(*(recoveries.recover(LEDGER_ID) for _ in range(5)))
    assert set(ends) == {ClosedLedger(2, bytes_to(2))}
    assert [link.attached for link in world.links_of.values()] == [1, 1, 1]
    assert world.changes == 2


async def test_it_goes_on_while_anybody_waits() -> None:
    world = World(a=WHOLE, b=WHOLE, c=WHOLE)
    recoveries = world.recoveries()
    first = asyncio.create_task(recoveries.recover(LEDGER_ID))
    second = asyncio.create_task(recoveries.recover(LEDGER_ID))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == ClosedLedger(2, bytes_to(2))
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_nobody_waits_and_it_ends() -> None:
    world = World(a=WHOLE, b=WHOLE, c=WHOLE)
    for link in world.links_of.values():
        link.is_silent = True
    recoveries = world.recoveries()
    only = asyncio.create_task(recoveries.recover(LEDGER_ID))
    await until(lambda: bool(world.links_of["a"].fence_keys))
    only.cancel()
    with pytest.raises(asyncio.CancelledError):
        await only
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    for link in world.links_of.values():
        link.is_silent = False
    assert await recoveries.recover(LEDGER_ID) == ClosedLedger(2, bytes_to(2))


async def test_a_time_out_says_what_it_waited_for() -> None:
    world = World(a=WHOLE, b=WHOLE, c=WHOLE)
    world.links_of["b"].is_silent = world.links_of["c"].is_silent = True
    with pytest.raises(Timeout, match="fenced by b, c"):
        await world.recoveries(timeout_ms=20).recover(LEDGER_ID)
    assert world.stored.metadata.state is LedgerState.IN_RECOVERY


async def test_two_of_three_that_cannot_be_reached_are_named() -> None:
    world = World(a=WHOLE, b=WHOLE, c=WHOLE)
    world.down = {"b", "c"}
    recoveries = world.recoveries()
    with pytest.raises(Unavailable) as caught:
        await recoveries.recover(LEDGER_ID)
    assert sorted(caught.value.missing) == ["b", "c"]
    assert caught.value.needed == 1
    world.down = set()
    assert await recoveries.recover(LEDGER_ID) == ClosedLedger(2, bytes_to(2))


async def test_each_caller_gets_an_error_of_its_own() -> None:
    world = World(a=WHOLE, b=WHOLE, c=WHOLE)
    world.error = NotFound("no such ledger")
    recoveries = world.recoveries()
    errors = await asyncio.gather(
        *(recoveries.recover(LEDGER_ID) for _ in range(2)), return_exceptions=True
    )
    assert [type(error) for error in errors] == [NotFound, NotFound]
    assert errors[0] is not errors[1]


async def test_frames_wait_for_room() -> None:
    world = World(a=[*WHOLE, packet(3, 2)], b=WHOLE, c=WHOLE)
    slow = world.links_of["b"]
    world.links_of["c"].is_deaf_to_adds = True
    slow.has_room = False
    task = asyncio.create_task(world.recoveries().recover(LEDGER_ID))
    await until(lambda: slow.sink is not None and world.links_of["a"].sent > 0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert slow.sent == 0
    slow.has_room = True
    slow.sink.on_room(slow)
    assert await task == ClosedLedger(3, bytes_to(3))


async def test_a_link_that_goes_down_is_replaced() -> None:
    world = World(a=[*WHOLE, packet(3, 2)], b=WHOLE, c=WHOLE, d=[])
    for name in "bc":
        world.links_of[name].is_deaf_to_adds = True
    task = asyncio.create_task(world.recoveries().recover(LEDGER_ID))
    lost = world.links_of["c"]
    await until(lambda: lost.sent > 0)
    sink, lost.sink = lost.sink, None
    sink.on_down(lost, Answer.DISCONNECTED)
    assert await task == ClosedLedger(3, bytes_to(3))
    assert world.stored.metadata.fragments[-1].ensemble == ("a", "b", "d")
    assert sorted(world.links_of["d"].entries) == [3]


async def test_a_bookie_that_cannot_be_connected_is_replaced() -> None:
    world = World(a=[*WHOLE, packet(3, 2)], b=WHOLE, c=WHOLE, d=[])
    world.links_of["b"].is_deaf_to_adds = True
    world.down = {"c"}
    assert await world.recoveries().recover(LEDGER_ID) == ClosedLedger(3, bytes_to(3))
    assert world.stored.metadata.fragments[-1].ensemble == ("a", "b", "d")


async def test_a_bookie_that_is_let_go_is_detached_at_once() -> None:
    world = World(a=[*WHOLE, packet(3, 2)], b=WHOLE, c=WHOLE, d=[])
    for name in "bcd":
        world.links_of[name].is_deaf_to_adds = True
    task = asyncio.create_task(world.recoveries().recover(LEDGER_ID))
    refusing, other = world.links_of["c"], world.links_of["d"]
    await until(lambda: refusing.sent > 0)
    refusing.sink.on_adds(refusing, Answer.IO_FAILED, [3])
    assert refusing.sink is None
    await until(lambda: other.sent > 0)
    other.sink.on_adds(other, Answer.OK, [3])
    assert await task == ClosedLedger(3, bytes_to(3))


async def test_closing_ends_what_goes_on() -> None:
    world = World(a=WHOLE, b=WHOLE, c=WHOLE)
    for link in world.links_of.values():
        link.is_silent = True
    recoveries = world.recoveries()
    only = asyncio.create_task(recoveries.recover(LEDGER_ID))
    await until(lambda: bool(world.links_of["a"].fence_keys))
    await recoveries.close()
    with pytest.raises(asyncio.CancelledError):
        await only
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_bug_is_told_and_not_waited_for() -> None:
    world = World(a=WHOLE, b=WHOLE, c=WHOLE)

    def stumble(first_entry: int) -> Answer | None:
        raise ZeroDivisionError

    world.links_of["a"].says = stumble
    with pytest.raises(Broken):
        await world.recoveries().recover(LEDGER_ID)


async def test_every_crash_point_is_passed_on_both_sides() -> None:
    passed: set[tuple[str, str]] = set()
    world = World(a=[*WHOLE, packet(3, 2)], b=WHOLE, c=WHOLE)
    trace.listen(lambda point, side: passed.add((point, side)))
    try:
        await world.recoveries().recover(LEDGER_ID)
    finally:
        trace.listen(None)
    points = {point for point in trace.BOOKIE_POINTS if point.startswith("recovery.")}
    assert passed == {(point, side) for point in points for side in ("before", "after")}


@pytest.mark.parametrize("nth", range(0, 60, 3))
async def test_given_up_anywhere_and_asked_again_it_comes_to_the_same_end(nth: int) -> None:
    """Also while the first one is still on its way out: the two never meet on a link."""
    world = World(a=[*WHOLE, packet(3, 2)], b=WHOLE, c=WHOLE)
    recoveries = world.recoveries()
    first = asyncio.create_task(recoveries.recover(LEDGER_ID))
    for _ in range(nth):
        await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(recoveries.recover(LEDGER_ID))
    third = asyncio.create_task(recoveries.recover(LEDGER_ID))
    assert {await second, await third} == {ClosedLedger(3, bytes_to(3))}
    await asyncio.gather(first, return_exceptions=True)
    assert all(link.sink is None for link in world.links_of.values())


async def test_a_bug_in_hearing_adds_is_told_and_leaves_the_link_alone() -> None:
    world = World(a=[*WHOLE, packet(3, 2)], b=WHOLE, c=WHOLE)
    link = world.links_of["b"]
    link.is_deaf_to_adds = world.links_of["c"].is_deaf_to_adds = True
    task = asyncio.create_task(world.recoveries().recover(LEDGER_ID))
    await until(lambda: link.sent > 0)
    link.sink.on_adds(link, Answer.OK, [None])  # as no link does
    link.sink.on_adds(link, "ok", [3])
    with pytest.raises(Broken):
        await task


@pytest.mark.parametrize("avoided", ["d", "e", "de"])
async def test_a_recovery_adds_one_in_quarantine_only_if_no_other_is_left(avoided: str) -> None:
    world = World(a=[*WHOLE, packet(3, 2)], b=WHOLE, c=WHOLE, d=[], e=[])
    world.down = {"c"}
    world.in_quarantine = set(avoided)
    assert await world.recoveries().recover(LEDGER_ID) == ClosedLedger(3, bytes_to(3))
    joined = set(world.stored.metadata.fragments[-1].ensemble) - set("abc")
    assert joined <= (set("de") - set(avoided) or set("de"))
    assert len(joined) == 1


@pytest.mark.parametrize("seconds", [0.6, 7.0])
def test_an_opener_that_stands_still_gives_up_nobody_who_answered(seconds: float) -> None:
    """It is stopped while the bookies write; behind that its timers come before their answers."""

    async def recover() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        world = World(a=[*WHOLE, packet(3, 2)], b=WHOLE, c=WHOLE, d=[])
        for link in world.links_of.values():
            link.is_deaf_to_adds = True
        recoveries = world.recoveries(clock=LoopClock(loop))
        task = asyncio.create_task(recoveries.recover(LEDGER_ID))
        asked = [world.links_of[name] for name in "abc"]
        await until(lambda: all(link.sent for link in asked))
        loop.stand_still(seconds)
        for _ in range(3):
            await asyncio.sleep(0)
        for link in asked:
            link.sink.on_adds(link, Answer.OK, [3])
        assert await task == ClosedLedger(3, bytes_to(3))
        assert world.stored.metadata.fragments[-1].ensemble == ("a", "b", "c")

    run_virtually(recover())


def test_a_recovery_that_stands_still_has_all_its_time_left() -> None:
    async def recover() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        world = World(a=WHOLE, b=WHOLE, c=WHOLE)
        for link in world.links_of.values():
            link.is_silent = True
        task = asyncio.create_task(
            world.recoveries(clock=LoopClock(loop), timeout_ms=8_000).recover(LEDGER_ID)
        )
        await until(lambda: all(link.asked for link in world.links_of.values()))
        loop.stand_still(60.0)
        began_s = loop.time()
        with pytest.raises(Timeout, match="fenced by a, b, c"):
            await task
        assert loop.time() - began_s >= 5.0

    run_virtually(recover())
