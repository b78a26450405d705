"""Do the checkers object? Each protection is removed once; the same scenario with it in place has
nothing to object to."""

from __future__ import annotations

import os
import signal

import pytest

from dlog.effects import Procedure
from dlog.ids import Position
from dlog.ledger.embedded.words import Words
from dlog.meta.listed import End, Sealed
from dlog.reader import core as reader_core
from dlog.reader.places import Place, Start
from dlog.reader.segments import SegmentView
from dlog.testing.children import CrashPoint
from dlog.writer import takeover
from dlog.writer.segments import Decided, Found
from tests.chaos.arena import Arena
from tests.chaos.frames import frames_of, last_ledger_file

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.name != "posix", reason="kills and freezes by signals"),
]

WITH_AND_WITHOUT = pytest.mark.parametrize("planted", [False, True], ids=["sound", "planted"])


@WITH_AND_WITHOUT
async def test_store_and_do_not_look(arena: Arena, planted: bool) -> None:
    crash = CrashPoint("ledger.written", "before", 7, "freeze")
    plant = "fence_look_skipped" if planted else None
    zombie = arena.start("write", 8, crash=crash, plant=plant)
    zombie.wait_frozen()
    async with arena.stage("winner") as stage:
        await (await stage.open_writer()).append(2)
        zombie.thaw()
        zombie.wait_success()
    objections = await arena.objections()
    assert {"I1", "I6", "I9"} <= objections if planted else objections == set()


@WITH_AND_WITHOUT
async def test_claim_without_epoch(arena: Arena, planted: bool) -> None:
    child = arena.start("life", plant="claim_without_epoch" if planted else None)
    child.wait_end()
    objections = await arena.objections()
    assert "I7" in objections if planted else objections == set()


@WITH_AND_WITHOUT
async def test_acknowledge_before_the_predecessor_is_closed(arena: Arena, planted: bool) -> None:
    child = arena.start("stall", plant="no_barrier" if planted else None)
    child.wait_line("stalled")
    child.kill()
    assert child.wait_end() == -signal.SIGKILL
    objections = await arena.objections()
    assert "I1" in objections if planted else objections == set()


@WITH_AND_WITHOUT
async def test_ignore_the_predecessors_end(
    arena: Arena, planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor was written and the end of its predecessor was not: keeping it leaves a
    hole."""
    child = arena.start("stall")
    assert child.wait_line("stalled") == "stalled 0"
    child.kill()
    assert child.wait_end() == -signal.SIGKILL
    if planted:
        monkeypatch.setattr(takeover, "decide_end", _keep_everything)
    assert await arena.objections() == ({"I4b"} if planted else set())


def _keep_everything(end: End, found: list[Found]) -> Decided:
    kept: list[tuple[int, Sealed]] = []
    for each in found:
        number, ledger_id = each.segment.number, each.segment.ledger_id
        base, last = end.next_seq, each.closed.last_entry
        next_seq = base + each.next_relative_seq
        sealed = Sealed(
            last, each.closed.bytes, base, next_seq, each.first_time_us, each.last_time_us
        )
        kept.append((number, sealed))
        end = End(number, ledger_id, last, next_seq, each.last_time_us)
    return Decided(tuple(kept), (), end)


@WITH_AND_WITHOUT
async def test_acknowledge_before_the_sync(arena: Arena, planted: bool) -> None:
    """A power cut: what was not synced is gone, and the words of the ledger with it."""
    plant = "ack_without_sync" if planted else "power_cut_loses_what_is_not_synced"
    crash = CrashPoint("ledger.written", "after", 8)
    child = arena.start("write", plant=plant, crash=crash)
    assert child.wait_end() == -signal.SIGKILL
    for words in (arena.data / "ledgers").glob("*.words"):
        words.unlink()
    objections = await arena.objections()
    assert "I1" in objections if planted else objections == set()


@WITH_AND_WITHOUT
async def test_read_past_what_is_published(
    arena: Arena, planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest entry was written, and lost before it was synced; somebody has read it."""
    child = arena.start("write", crash=CrashPoint("ledger.written", "after", 8))
    assert child.wait_end() == -signal.SIGKILL
    file = last_ledger_file(arena.data)
    frames = frames_of(file)
    with monkeypatch.context() as patch:
        if planted:
            patch.setattr(Words, "published_offset", property(lambda words: frames[-1].offset))
        async with arena.stage("eager") as stage:
            await stage.read()
    os.truncate(file, frames[-1].offset)
    objections = await arena.objections()
    assert {"I5", "I9"} <= objections if planted else objections == set()


@WITH_AND_WITHOUT
async def test_resume_at_instead_of_after(
    arena: Arena, planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    locate = reader_core.locate

    def at(view: SegmentView, start: Start) -> Procedure[Place]:
        if isinstance(start, Position) and start.after is not None:
            start = start.after
        return (yield from locate(view, start))

    if planted:
        monkeypatch.setattr(reader_core, "locate", at)
        monkeypatch.setattr(reader_core, "_seq_of_start", lambda start: 0)  # which would protect
    assert await arena.objections() == ({"I17"} if planted else set())
