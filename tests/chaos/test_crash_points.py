"""kill -9 at every crash point, on both sides: afterwards the log opens, and nothing was lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dlog.errors import NotFound
from dlog.testing.children import Child, Children, CrashPoint
from dlog.testing.history import Op, Phase
from dlog.trace import POINTS, STANDBY_POINTS
from tests.chaos.actors import LOG, open_ledger, recover_as_a_stranger
from tests.chaos.arena import Arena
from tests.forks import Forks
from tests.tidy.source import ROOT
from tests.tiers import in_full

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.name != "posix", reason="kills by signals"),
]

SIDES = ("before", "after")

# Which program reaches a point, and at which hits it is worth dying there. The life of a log opens
# it three times (new, handed over, taken over); an early and a late hit of what comes often.
HITS: dict[str, tuple[int, ...]] = {
    "append": (1, 11),
    "close": (1, 2),
    "ledger": (2, 15),
    "meta": (4, 19),
    "read": (1, 3),
    "recover": (1,),
    "rotate": (1, 2),
    "takeover": (1, 2, 3),
    "heal": (1,),
    "remove": (1,),
    "producers": (1,),
}
FEWER = {  # reached less often than their siblings
    "producers.tabled": (1, 2, 4),
    "takeover.claimed": (1,),
    "takeover.counted": (1, 2),
    "takeover.decided": (1,),
    "takeover.recovered": (1,),
    "ledger.fenced": (1,),
    "ledger.file_created": (1, 5),
    "ledger.node_created": (2, 4),
    "remove.ledger_deleted": (1, 2),
}
# A side that cannot exist, and why.
NEVER: dict[tuple[str, str], str] = {}


def hits_of(point: str, side: str) -> tuple[int, ...]:
    if (point, side) == ("takeover.read", "after"):
        return (1, 2)  # the read of a log that is not there yet has no answer
    return FEWER.get(point, HITS[point.partition(".")[0]])


CASES = [
    CrashPoint(point, side, hit)
    for point in sorted(POINTS)
    for side in SIDES
    if (point, side) not in NEVER
    for hit in hits_of(point, side)
]
OF_REMOVE = [crash for crash in CASES if crash.point.startswith("remove.")]
OF_HEAL = [crash for crash in CASES if crash.point.startswith("heal.")]
OF_NUMBERS = [c for c in CASES if c.point.startswith(("producers.", "takeover.counted"))]
OF_LIFE = [crash for crash in CASES if crash not in OF_REMOVE + OF_HEAL + OF_NUMBERS]


def one_hit_each(crashes: list[CrashPoint]) -> list[Any]:
    """One hit of each side is in the tier of this folder: the first before, the last after."""
    hits: dict[tuple[str, str], list[CrashPoint]] = {}
    for crash in crashes:
        hits.setdefault((crash.point, crash.side), []).append(crash)
    kept = [found[0 if side == "before" else -1] for (_, side), found in hits.items()]
    return in_full(crashes, but=kept, seconds=1)


async def as_a_stranger_would(arena: Arena, child: Child) -> None:
    child.wait_line("recover")
    async with arena.stage("stranger") as stranger:
        await recover_as_a_stranger(stranger, await open_ledger(stranger))
    child.tell("go")


@pytest.mark.parametrize("crash", one_hit_each(OF_LIFE), ids=str)
async def test_killed_in_the_life_of_a_log(arena: Arena, crash: CrashPoint) -> None:
    child = arena.start("life", crash=crash)
    assert child.wait_end() == -signal.SIGKILL, f"{crash} was not reached: {child.lines}"
    await arena.survey()


@pytest.mark.parametrize("crash", one_hit_each(OF_NUMBERS), ids=str)
async def test_killed_in_the_life_of_numbers(arena: Arena, crash: CrashPoint) -> None:
    child = arena.start("numbers", crash=crash)
    assert child.wait_end() == -signal.SIGKILL, f"{crash} was not reached: {child.lines}"
    await arena.survey()


@pytest.mark.parametrize("crash", OF_HEAL, ids=str)
async def test_killed_while_healing(arena: Arena, crash: CrashPoint) -> None:
    child = arena.start("heal", crash=crash)
    await as_a_stranger_would(arena, child)
    assert child.wait_end() == -signal.SIGKILL, f"{crash} was not reached: {child.lines}"
    await arena.survey()


async def test_a_writer_heals_under_a_stranger(arena: Arena) -> None:
    child = arena.start("heal")
    await as_a_stranger_would(arena, child)
    child.wait_success()
    story = await arena.survey()
    assert all(append.is_acked for append in story.appends.values())


@pytest.mark.parametrize("crash", OF_REMOVE, ids=str)
async def test_killed_while_removing(arena: Arena, crash: CrashPoint) -> None:
    child = arena.start("remove", crash=crash)
    assert child.wait_end() == -signal.SIGKILL, f"{crash} was not reached: {child.lines}"
    removed = arena.events()
    if (crash.point, crash.side) == ("remove.marked", "before"):
        await arena.survey()
        return
    async with arena.stage("remover") as stage:
        with pytest.raises(NotFound):
            await stage.read()
        try:
            await stage.client.admin.remove(LOG)
        except NotFound:
            assert (crash.point, crash.side) == ("remove.forgotten", "after")
        stores = await stage.client._stores(False)
        assert [ledger async for ledger in stores.ledgers.scan_ids()] == []
    for history in arena.histories.iterdir():
        history.unlink()
    story = await arena.survey()
    old = [event for event in removed if event.op is Op.APPEND and event.phase is Phase.OK]
    assert story.log[0].id > max(event.id for event in old)
    assert story.log[0].epoch > max(event.epoch for event in removed)


OF_STANDING = [
    CrashPoint(point, side, hit)
    for point in [
        *sorted(STANDBY_POINTS),
        "takeover.claimed",
        "takeover.committed",
        "takeover.seam",
    ]
    for side in SIDES
    for hit in ((2,) if point in ("takeover.committed", "takeover.seam") else (1,))
]


@pytest.mark.parametrize("crash", OF_STANDING, ids=str)
async def test_killed_while_standing_by(arena: Arena, crash: CrashPoint) -> None:
    """Its ledger is an orphan that nobody meets; what was written is there, by whomever."""
    child = arena.start("stand", crash=crash)
    assert child.wait_end() == -signal.SIGKILL, f"{crash} was not reached: {child.lines}"
    await arena.survey()


async def test_a_standby_lives_through_rotations(arena: Arena) -> None:
    arena.start("stand").wait_success()
    story = await arena.survey()
    assert all(append.is_acked for append in story.appends.values())


async def test_every_crash_point_is_reached(tmp_path: Path, forks: Forks) -> None:
    """A point that no program reaches proves nothing; one that is not killed at, neither."""
    counts: dict[str, int] = dict.fromkeys((f"{p}:{s}" for p in POINTS for s in SIDES), 0)
    for program in ("life", "numbers", "heal", "remove"):
        (tmp_path / program).mkdir()
        with Children(tmp_path, python_path=ROOT, spawn=forks.spawn) as children:
            arena = Arena(tmp_path / program, children)
            child = arena.start(program)
            if program == "heal":
                await as_a_stranger_would(arena, child)
            told = child.wait_line("hits ")
            child.wait_success()
        for reached, count in json.loads(told.partition(" ")[2]).items():
            counts[reached] += count
    print("hits:", ", ".join(f"{reached} {count}" for reached, count in sorted(counts.items())))
    unreached = {reached for reached, count in counts.items() if count == 0}
    assert unreached == {f"{point}:{side}" for point, side in NEVER}, unreached
    killed = {f"{crash.point}:{crash.side}" for crash in CASES}
    assert killed == counts.keys() - unreached
