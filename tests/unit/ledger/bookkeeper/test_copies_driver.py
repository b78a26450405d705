"""Copies looked at, mended and moved, over bookies that live in the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dlog.chance import SYSTEM_CHANCE
from dlog.clock import SYSTEM_CLOCK
from dlog.errors import Corrupt, DlogError, Unavailable, Unsupported
from dlog.ledger.bookkeeper import copies
from dlog.ledger.bookkeeper.copies import LedgerCopiesAtBookies
from dlog.ledger.bookkeeper.core.entry_read import BookieHabits
from dlog.ledger.bookkeeper.ledger_nodes import StoredLedger
from dlog.ledger.bookkeeper.passwords import Passwords
from dlog.ledger.bookkeeper.policy import RandomPlacement
from dlog.ledger.copies import CopyFault, CopyNews, Fault, KeptAt, Looked, Lost
from dlog.ledger.store import LedgerState as State
from dlog.wire.bookie_codes import Answer
from dlog.wire.bookie_v2 import BatchReadReply, Flag, ReadReply
from dlog.wire.ledger_metadata import LedgerState
from tests.unit.ledger.bookkeeper.recovery_tools import (
    ADD_FRONT_BYTES,
    DIGEST,
    KEY,
    LEDGER_ID,
    PASSWORD,
    bytes_to,
    metadata,
    packet,
    payload_of,
)


class Bookie:
    """A link to a bookie, and what it has."""

    def __init__(self, bookie_id: str, last_entry: int) -> None:
        self.bookie_id = bookie_id
        self.where = f"bookie {bookie_id}"
        self.is_up = True
        self.has_room = True
        self.entries = {entry_id: packet(entry_id) for entry_id in range(last_entry + 1)}
        self.adds_answer = Answer.OK
        self.keeps_adds = True
        self.answers: list[Answer] = []  # of the next reads, before it gives what it has
        self.always: Answer | None = None
        self.singles: list[int] = []
        self.batches: list[tuple[int, int]] = []
        self.added: list[int] = []
        self.sink: Any = None

    def _said(self) -> Answer | None:
        return self.answers.pop(0) if self.answers else self.always

    async def read(self, ledger_id: int, entry_id: int, *, timeout_ms: float) -> ReadReply:
        assert ledger_id == LEDGER_ID
        self.singles.append(entry_id)
        await asyncio.sleep(0)
        said = self._said()
        if said is None and entry_id not in self.entries:
            said = Answer.NO_ENTRY
        if said is not None:
            return ReadReply(said, ledger_id, entry_id, None)
        return ReadReply(Answer.OK, ledger_id, entry_id, memoryview(self.entries[entry_id]))

    async def batch_read(
        self,
        ledger_id: int,
        first_entry: int,
        *,
        count_max: int,
        frame_bytes_max: int,
        timeout_ms: float,
    ) -> BatchReadReply:
        self.batches.append((first_entry, count_max))
        await asyncio.sleep(0)
        said = self._said()
        raws: list[memoryview] = []
        while said is None and first_entry + len(raws) in self.entries:
            raws.append(memoryview(self.entries[first_entry + len(raws)]))
        answer = said or (Answer.OK if raws else Answer.NO_ENTRY)
        return BatchReadReply(answer, ledger_id, first_entry, 1, raws)

    def attach(self, ledger_id: int, sink: Any) -> None:
        assert self.sink is None
        self.sink = sink
        if not self.has_room:
            asyncio.get_running_loop().call_soon(self._room)

    def _room(self) -> None:
        self.has_room = True
        self.sink.on_room(self)

    def detach(self, ledger_id: int) -> None:
        self.sink = None

    def send_adds(self, ledger_id: int, frames: bytes, *, entries: int, bytes: int) -> None:
        assert self.has_room
        assert self.sink is not None
        assert bytes == len(frames)
        ids, at = [], 0
        while at < len(frames):
            end = at + 4 + int.from_bytes(frames[at : at + 4], "big")
            flags = Flag(int.from_bytes(frames[at + 6 : at + 8], "big"))
            assert flags & Flag.RECOVERY_ADD
            assert frames[at + 8 : at + ADD_FRONT_BYTES] == KEY
            raw = frames[at + ADD_FRONT_BYTES : end]
            ids.append(int.from_bytes(raw[8:16], "big"))
            if self.keeps_adds:
                self.entries[ids[-1]] = raw
            at = end
        assert len(ids) == entries
        self.added += ids
        loop = asyncio.get_running_loop()
        for entry_id in ids:  # one after the other, and the last one last
            loop.call_soon(self._tell, [entry_id])

    def _tell(self, ids: list[int]) -> None:
        if self.sink is not None:
            self.sink.on_adds(self, self.adds_answer, ids)


class World:
    """Bookies, links to them, nodes and the registry in one."""

    def __init__(self, last_entry: int = 9, *, spares: str = "de", **changes: Any) -> None:
        told = {"last_entry_id": last_entry, "length_bytes": bytes_to(last_entry)}
        state = {"state": LedgerState.CLOSED, **told, **changes}
        fragments = state.pop("fragments", ())
        self.stored = StoredLedger(LEDGER_ID, metadata(*fragments, **state), 0)
        self.bookies = {each: Bookie(each, last_entry) for each in "abc"}
        assert not set(spares) & set("abc")
        self.bookies |= {each: Bookie(each, -1) for each in spares}
        self.down: set[str] = set()
        self.away: set[str] = set()
        self.in_quarantine: set[str] = set()
        self.changes = 0
        self.before_change: Callable[[], None] = lambda: None
        self.copies = LedgerCopiesAtBookies(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            self,
            Passwords(PASSWORD),
            RandomPlacement(SYSTEM_CHANCE),
            BookieHabits(),
            clock=SYSTEM_CLOCK,
        )

    async def data(self, bookie_id: str) -> Any:
        await asyncio.sleep(0)
        if bookie_id in self.down:
            raise Unavailable(f"{bookie_id} is down", missing=[bookie_id])
        return self.bookies[bookie_id]

    recovery = data

    async def read_fresh(self, ledger_id: int) -> StoredLedger:
        return self.stored

    async def change(self, known: StoredLedger, change: Any) -> StoredLedger:
        self.before_change()
        changed = change(self.stored.metadata)
        if changed is not None:
            self.changes += 1
            self.stored = replace(self.stored, metadata=changed, version=self.stored.version + 1)
        return self.stored

    # What a registry tells.

    async def refresh(self) -> None:
        await asyncio.sleep(0)

    def writable(self) -> Sequence[str]:
        return [each for each in self.bookies if each not in self.away]

    def read_only(self) -> Sequence[str]:
        return []

    def avoided(self) -> set[str]:
        return self.in_quarantine

    # As a caller would.

    async def check(self, last_entry: int = 9) -> list[CopyNews]:
        found = self.copies.check(LEDGER_ID, digest="crc32c", last_entry=last_entry)
        return [news async for news in found]

    async def faults(self, last_entry: int = 9) -> list[CopyFault | Lost]:
        return [each for each in await self.check(last_entry) if not isinstance(each, Looked)]

    async def mend(self, keeper: str, first: int, last: int) -> int:
        return await self.copies.mend(LEDGER_ID, keeper, first, last, digest="crc32c")

    async def move(self, lost: str, first_entry: int = 0) -> str | None:
        return await self.copies.move(LEDGER_ID, first_entry, lost, digest="crc32c")


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four entries; and nobody waits to ask again."""
    monkeypatch.setattr(copies, "FSCK_WINDOW_ENTRIES", 4)
    monkeypatch.setattr(copies, "_BUSY_S", 0.0)


def damaged(entry_id: int) -> bytes:
    raw = bytearray(packet(entry_id))
    raw[-1] ^= 1
    return bytes(raw)


def other(entry_id: int) -> bytes:
    """Another payload with a right digest."""
    payload = b"other %d" % entry_id
    head = DIGEST.pack_head(LEDGER_ID, entry_id, entry_id - 1, bytes_to(entry_id), (payload,))
    return head + payload


# Looking.


@pytest.mark.parametrize("last_entry", [0, 2, 3, 4, 9])
async def test_copies_that_are_whole_are_counted(last_entry: int) -> None:
    world = World()
    news = await world.check(last_entry)
    sizes = [len(payload_of(entry_id)) for entry_id in range(last_entry + 1)]
    windows = [sizes[first : first + 4] for first in range(0, len(sizes), 4)]
    assert news == [Looked(3 * len(each), sum(each)) for each in windows]


async def test_each_fault_is_told_of_its_copies() -> None:
    world = World()
    for entry_id in (2, 3):
        del world.bookies["b"].entries[entry_id]
    world.bookies["c"].entries[5] = damaged(5)
    for name, raw in (("a", packet(7)), ("b", other(7)), ("c", packet(7))):
        world.bookies[name].entries[7] = raw
    for bookie in world.bookies.values():
        bookie.entries.pop(9, None)
    found = await world.faults()
    about = {
        (each.keeper, each.first_entry, each.last_entry, each.fault, each.can_be_mended)
        for each in found
        if isinstance(each, CopyFault)
    }
    assert about == {
        ("b", 2, 3, Fault.MISSING, True),
        ("c", 5, 5, Fault.DAMAGED, True),
        *((name, 7, 7, Fault.DIFFERS, False) for name in "abc"),
        *((name, 9, 9, Fault.MISSING, False) for name in "abc"),
    }
    assert [each for each in found if isinstance(each, Lost)] == [Lost(9, 9, True)]


async def test_what_is_good_at_the_second_look_is_no_fault() -> None:
    """A copy that was on its way."""
    world = World(3)
    late = world.bookies["b"].entries.pop(2)
    reads: list[int] = world.bookies["b"].singles

    real = world.read_fresh

    async def read_fresh(ledger_id: int) -> StoredLedger:
        if reads:  # between the two looks
            world.bookies["b"].entries[2] = late
        return await real(ledger_id)

    world.read_fresh = read_fresh  # type: ignore[method-assign]
    assert await world.faults(3) == []
    assert reads[0] == 2


async def test_a_bookie_that_says_nothing_is_asked_in_the_first_window_alone() -> None:
    world = World()
    world.down = {"b"}
    asked = 0
    real = world.data

    async def data(bookie_id: str) -> Any:
        nonlocal asked
        asked += bookie_id == "b"
        return await real(bookie_id)

    world.data = data  # type: ignore[method-assign]
    found = await world.faults()
    assert {(each.keeper, each.fault) for each in found if isinstance(each, CopyFault)} == {
        ("b", Fault.NOT_CHECKED)
    }
    assert sum(each.last_entry - each.first_entry + 1 for each in found) == 10
    first_window = asked
    asked = 0
    world = World(3)
    world.down, world.data = {"b"}, data  # type: ignore[method-assign]
    await world.faults(3)
    assert 0 < asked == first_window


async def test_a_bookie_that_has_not_the_ledger_has_none_of_its_entries() -> None:
    world = World()
    world.bookies["c"].always = Answer.NO_LEDGER
    found = await world.faults()
    assert all(each.keeper == "c" and each.can_be_mended for each in found)  # type: ignore[union-attr]
    assert sum(each.last_entry - each.first_entry + 1 for each in found) == 10
    assert len(world.bookies["c"].singles) <= 2, "it said so once, and once more to be sure"


async def test_a_bookie_that_is_busy_is_asked_again() -> None:
    world = World(0)
    world.bookies["b"].answers = [Answer.BUSY, Answer.TIMED_OUT]
    assert await world.faults(0) == []
    assert world.bookies["b"].singles == [0, 0, 0]


async def test_entries_are_read_in_batches_where_a_bookie_can() -> None:
    world = World(7)
    await world.check(7)
    assert world.bookies["a"].batches == [(0, 4), (4, 4)]
    assert world.bookies["a"].singles == []
    world.bookies["a"].entries[1] = damaged(1)
    world.bookies["a"].batches.clear()
    await world.check(3)
    assert world.bookies["a"].singles == [1, 1], "by itself, and once more to be sure"


# Mending.


@pytest.mark.parametrize("bad", [[0], [2, 3], [9], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]])
async def test_missing_copies_are_written_as_the_others_have_them(bad: list[int]) -> None:
    world = World()
    world.bookies["a"].entries = {**world.bookies["a"].entries}
    for entry_id in bad:
        del world.bookies["b"].entries[entry_id]
    assert await world.mend("b", 0, 9) == len(bad)
    assert world.bookies["b"].entries == world.bookies["a"].entries
    assert world.bookies["b"].added == bad, "and nothing else"
    assert world.bookies["a"].added == world.bookies["c"].added == []
    assert await world.faults() == []
    assert await world.mend("b", 0, 9) == 0
    assert world.bookies["b"].added == bad
    assert world.changes == 0


async def test_only_the_entries_that_were_asked_for_are_mended() -> None:
    world = World()
    for entry_id in (1, 4, 8):
        del world.bookies["b"].entries[entry_id]
    assert await world.mend("b", 2, 100) == 2
    assert world.bookies["b"].added == [4, 8]


async def test_in_front_of_a_damaged_copy_all_are_written_again() -> None:
    """A stock bookie would bring the old copy back behind an older neighbour."""
    world = World()
    world.bookies["b"].entries[5] = damaged(5)
    assert await world.mend("b", 3, 9) == 1
    assert world.bookies["b"].added == [0, 1, 2, 3, 4, 5]
    assert await world.faults() == []


async def test_what_no_copy_proves_is_left_where_it_was_not_asked_for() -> None:
    world = World()
    world.bookies["b"].entries[5] = damaged(5)
    for name in "abc":
        world.bookies[name].entries[2] = damaged(2)
    assert await world.mend("b", 3, 9) == 1
    assert world.bookies["b"].added == [0, 1, 3, 4, 5]


async def test_a_bookie_that_does_not_keep_the_entry_is_left_alone() -> None:
    world = World(fragments=((0, ("a", "b", "c")), (4, ("a", "d", "c"))))
    for entry_id in range(4, 10):
        world.bookies["d"].entries[entry_id] = packet(entry_id)
        del world.bookies["b"].entries[entry_id]
    del world.bookies["b"].entries[3]
    assert await world.mend("b", 0, 9) == 1
    assert world.bookies["b"].added == [3]


@pytest.mark.parametrize(
    ("others", "error", "told"),
    [
        ("differ", Corrupt, "nobody can tell"),
        ("bad", Corrupt, "no copy of entry 2 of ledger 7 is good"),
        ("silent", Unavailable, "did not answer"),
    ],
)
async def test_what_cannot_be_proven_is_not_written(
    others: str, error: type[DlogError], told: str
) -> None:
    world = World(3)
    del world.bookies["b"].entries[2]
    if others == "differ":
        world.bookies["c"].entries[2] = other(2)
    elif others == "bad":
        world.bookies["a"].entries[2] = world.bookies["c"].entries[2] = damaged(2)
    else:
        del world.bookies["a"].entries[2]
        world.bookies["c"].always = Answer.TIMED_OUT
    with pytest.raises(error, match=told) as caught:
        await world.mend("b", 0, 3)
    assert (caught.value.ledger_id, caught.value.entry_id) == (LEDGER_ID, 2)
    assert world.bookies["b"].added == []


async def test_one_good_copy_is_enough() -> None:
    world = World(3)
    del world.bookies["b"].entries[2]
    world.bookies["a"].always = Answer.TIMED_OUT
    assert await world.mend("b", 0, 3) == 1
    assert world.bookies["b"].entries[2] == packet(2)


async def test_a_bookie_that_refuses_copies_is_named() -> None:
    world = World(3)
    del world.bookies["b"].entries[2]
    world.bookies["b"].adds_answer = Answer.READ_ONLY
    with pytest.raises(Unavailable, match="bookie b did not take copies") as caught:
        await world.mend("b", 0, 3)
    assert list(caught.value.missing) == ["b"]
    assert world.bookies["b"].sink is None


async def test_a_copy_that_cannot_be_read_back_does_not_count() -> None:
    world = World(3)
    del world.bookies["b"].entries[2]
    world.bookies["b"].keeps_adds = False
    with pytest.raises(Corrupt, match="gives something else") as caught:
        await world.mend("b", 0, 3)
    assert caught.value.entry_id == 2


async def test_a_link_without_room_is_waited_for() -> None:
    world = World(3)
    del world.bookies["b"].entries[2]
    world.bookies["b"].has_room = False
    assert await world.mend("b", 0, 3) == 1


async def test_copies_of_an_open_ledger_are_left_to_its_writer() -> None:
    world = World(3, state=LedgerState.OPEN, last_entry_id=-1, length_bytes=0)
    for call in (world.mend("b", 0, 3), world.move("b")):
        with pytest.raises(Unsupported, match="is not closed"):
            await call
    about = await world.copies.of(LEDGER_ID)
    assert (about.state, about.ack_quorum) == (State.OPEN, 2)
    assert about.kept == (KeptAt(0, -1, ("a", "b", "c"), ()),)


# Moving.


async def test_all_copies_stand_at_the_new_bookie_before_metadata_names_it() -> None:
    world = World()
    world.away = {"b"}
    world.down = {"b"}
    at_change: list[dict[int, bytes]] = []
    world.before_change = lambda: at_change.append(dict(world.bookies[joined()].entries))

    def joined() -> str:
        (found,) = [name for name in "de" if world.bookies[name].entries]
        return found

    to = await world.move("b")
    assert to == joined()
    assert at_change == [world.bookies["a"].entries]
    assert world.stored.metadata.fragments[0].ensemble == ("a", to, "c")
    assert await world.faults() == []
    assert await world.move("b") is None, "it is in none of them any more"
    assert world.changes == 1


async def test_copies_move_to_a_bookie_in_quarantine_only_if_no_other_is_left() -> None:
    for avoided in ("d", "e", "de"):
        world = World()
        world.away = world.down = {"b"}
        world.in_quarantine = set(avoided)
        assert await world.move("b") in (set("de") - set(avoided) or set("de"))


async def test_a_bookie_that_is_there_keeps_its_copies() -> None:
    world = World()
    assert await world.move("b") is None
    world.away = {"b"}
    assert await world.move("b", first_entry=4) is None, "nothing begins there"
    assert world.changes == 0


async def test_without_another_bookie_nothing_moves() -> None:
    world = World(spares="")
    world.away = world.down = {"b"}
    with pytest.raises(Unavailable, match="no other bookie") as caught:
        await world.move("b")
    assert list(caught.value.missing) == ["b"]
    assert world.changes == 0


async def test_only_the_entries_of_one_fragment_move() -> None:
    world = World(fragments=((0, ("a", "b", "c")), (4, ("a", "d", "c"))), spares="de")
    for entry_id in range(4, 10):
        world.bookies["d"].entries[entry_id] = packet(entry_id)
    world.away = world.down = {"d"}
    assert await world.move("d", first_entry=4) in ("b", "e")
    (to,) = set(world.stored.metadata.fragments[1].ensemble) - {"a", "c"}
    assert world.bookies[to].added == list(range(4, 10))
    assert world.stored.metadata.fragments[0].ensemble == ("a", "b", "c")


# The end.


@pytest.mark.parametrize("wrong", [7, 12])
async def test_an_end_is_amended_to_what_the_entries_prove(wrong: int) -> None:
    world = World(9, last_entry_id=wrong, length_bytes=5)
    if wrong < 9:
        for bookie in world.bookies.values():
            bookie.entries.pop(10, None)
    assert await world.copies.amend(LEDGER_ID, 9, bytes_to(9), digest="crc32c")
    assert world.stored.metadata.last_entry_id == 9
    assert world.stored.metadata.length_bytes == bytes_to(9)
    assert not await world.copies.amend(LEDGER_ID, 9, bytes_to(9), digest="crc32c")
    assert world.changes == 1


async def test_an_end_that_its_entry_denies_is_not_written() -> None:
    world = World(9, length_bytes=5)
    with pytest.raises(Corrupt, match=f"{bytes_to(9)} bytes end with it, not 6"):
        await world.copies.amend(LEDGER_ID, 9, 6, digest="crc32c")
    assert world.changes == 0


async def test_an_end_is_shortened_only_if_every_bookie_was_asked() -> None:
    world = World(9, last_entry_id=12, length_bytes=5)
    world.bookies["c"].always = Answer.TIMED_OUT
    with pytest.raises(Unavailable, match="did not say") as caught:
        await world.copies.amend(LEDGER_ID, 9, bytes_to(9), digest="crc32c")
    assert list(caught.value.missing) == ["c"]
    assert world.changes == 0
