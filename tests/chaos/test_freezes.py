"""A writer frozen anywhere while another one takes its log over. Thawed, it learns who won, and
nothing that it began since is in the log."""

from __future__ import annotations

import os
import time

import pytest

from dlog.errors import Unavailable
from dlog.testing.checkers import Story
from dlog.testing.children import Child, CrashPoint
from tests.chaos.actors import recover_as_a_stranger
from tests.chaos.arena import Arena
from tests.pace import within

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.name != "posix", reason="freezes by signals"),
]

SIDES = ("before", "after")
ROTATION = (
    "rotate.created",
    "rotate.born",
    "rotate.listed",
    "rotate.switched",
    "rotate.drained",
    "rotate.closed",
    "rotate.released",
)
APPENDING = ("append.pushed", "append.confirmed", "append.published", "append.acked")
COMMITTING = ("ledger.written", "ledger.synced", "ledger.looked")
PATIENCE_MS = 600


async def taken_over(arena: Arena, zombie: Child) -> Story:
    """While it sleeps somebody else writes; then it wakes."""
    async with arena.stage("winner") as stage:
        winner = await stage.open_writer()
        await winner.append(2)
        zombie.thaw()
        told = zombie.wait_line("lost")
        assert told == f"lost {winner.writer.epoch} {winner.handle}", "the winner is named"
        await winner.append(2)
        zombie.wait_success()
        await winner.close()
    story = await arena.survey()
    fenced = [event for event in story.events if event.error == "Fenced"]
    assert {event.winner for event in fenced} == {winner.handle}
    return story


async def test_frozen_while_idle(arena: Arena) -> None:
    zombie = arena.start("idle")
    zombie.wait_line("idle")
    zombie.freeze()
    zombie.tell("go on")
    story = await taken_over(arena, zombie)
    asked = [append for append in story.appends.values() if append.began.process == "idle1"]
    assert [append.is_acked for append in asked] == [True] * 4 + [False]


async def test_frozen_with_appends_in_flight(arena: Arena) -> None:
    zombie = arena.start("write", 400, 50)
    zombie.wait_line("running")
    zombie.freeze()
    try:
        await taken_over(arena, zombie)
    except Unavailable as error:  # it sleeps on the lock of the metadata, which rotations take
        if f"process {zombie.pid} (it is stopped)" not in error.message:
            raise
        zombie.thaw()
        zombie.wait_success()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("point", APPENDING + COMMITTING)
async def test_frozen_in_an_append(arena: Arena, point: str, side: str) -> None:
    """In the committer, between write and look: the entry may be kept, and is acked only if it
    was."""
    hit = 6 if point in APPENDING else 7
    zombie = arena.start("write", crash=CrashPoint(point, side, hit, "freeze"))
    zombie.wait_frozen()
    await taken_over(arena, zombie)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("point", ROTATION)
async def test_frozen_in_a_rotation(arena: Arena, point: str, side: str) -> None:
    zombie = arena.start("write", 400, 3, crash=CrashPoint(point, side, 2, "freeze"))
    zombie.wait_frozen()
    await taken_over(arena, zombie)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("point", ["takeover.claimed", "takeover.recovered", "takeover.committed"])
async def test_an_opener_frozen_while_it_takes_over(arena: Arena, point: str, side: str) -> None:
    """It loses to whoever opens meanwhile, or wins the next round; never both, never neither."""
    async with arena.stage("first") as stage:
        first = await stage.open_writer()
        await first.append(2)
        sleeper = arena.start("opener", crash=CrashPoint(point, side, 1, "freeze"))
        sleeper.wait_frozen()
        second = await stage.open_writer()
        await second.append(2)
        sleeper.thaw()
        told = sleeper.wait_line("").split()
        sleeper.wait_success()
        assert told[0] == "open" or told[:2] == ["failed", "Fenced"], told
        if told[0] == "open":
            assert int(told[1]) > second.writer.epoch
    await arena.survey()


@pytest.mark.parametrize("crash", ["rotate.listed:after", "rotate.switched:after"])
@pytest.mark.parametrize("which", [0, 1])
async def test_a_stranger_recovers_a_ledger_in_a_rotation(
    arena: Arena, crash: str, which: int
) -> None:
    """The draining ledger or its successor is closed under the writer, whose log it still is."""
    point, side = crash.split(":")
    writer = arena.start("write", 12, 3, crash=CrashPoint(point, side, 1, "freeze"))
    writer.wait_frozen()
    async with arena.stage("stranger") as stage:
        unsealed = [segment for segment in await stage.look() if not segment.is_sealed]
        await recover_as_a_stranger(stage, unsealed[which].ledger_id)
    writer.thaw()
    writer.wait_success()
    assert not any(line.startswith("lost") for line in writer.lines), writer.lines
    story = await arena.survey()
    assert all(append.is_acked for append in story.appends.values()), "nothing was lost"


async def test_a_disk_that_hangs_in_a_rotation(arena: Arena) -> None:
    """Nothing behind the barrier is acknowledged; when the disk works again, everything is."""
    writer = arena.start("stall")
    assert writer.wait_line("stalled") == "stalled 0"
    writer.tell("go")
    writer.wait_success()
    story = await arena.survey()
    assert all(append.is_acked for append in story.appends.values()), writer.lines


async def test_a_stranger_recovers_below_what_the_seam_names(arena: Arena) -> None:
    """That cannot be mended: a takeover would drop the successor. The handle is lost, honestly."""
    writer = arena.start("stall")
    assert writer.wait_line("stalled") == "stalled 0"
    async with arena.stage("stranger") as stage:
        await recover_as_a_stranger(stage, (await stage.look())[0].ledger_id)
    writer.tell("go")
    writer.wait_success()
    ended = [line.split(" ", 4)[1:4] for line in writer.lines if line.startswith("ended")]
    assert ended == [["Fenced", "unknown", "dead"]] * 2, writer.lines  # one is of each append
    story = await arena.survey()
    ours = [append.is_acked for append in story.writers["stall1.1"].appends]
    assert ours == [True] * 2 + [False] * 6


# Inside a commit of the metadata store: it holds the one lock that all writers of metadata need.
HOLDING = [("meta.begun", "after"), ("meta.committed", "before")]
NOT_HOLDING = [("meta.begun", "before"), ("meta.committed", "after")]


@pytest.mark.parametrize(("point", "side"), HOLDING, ids=["begun", "committing"])
async def test_frozen_in_a_metadata_commit(arena: Arena, point: str, side: str) -> None:
    frozen = await _frozen_in_metadata(arena, point, side)
    async with arena.stage("impatient", meta_timeout_ms=PATIENCE_MS) as stage:
        began_s = time.monotonic()
        with pytest.raises(Unavailable) as refused:
            await stage.open_writer()
        assert refused.value.pid == frozen.pid
        assert within(time.monotonic() - began_s, 10 * PATIENCE_MS / 1000)
        other = arena.start("opener", patience_ms=PATIENCE_MS)
        assert other.wait_line("failed") == f"failed Unavailable {frozen.pid}"
        frozen.thaw()
        writer = await stage.open_writer()
        await writer.append(2)
        frozen.wait_success()
        await writer.close()
    await arena.survey()


@pytest.mark.parametrize(("point", "side"), HOLDING, ids=["begun", "committing"])
async def test_frozen_in_a_metadata_commit_under_a_living_writer(
    arena: Arena, point: str, side: str
) -> None:
    """An opener that must fence somebody asks the metadata store again until its time is over; then
    it says what was in the way, not just that it took too long."""
    frozen = arena.start("write", crash=CrashPoint(point, side, 9, "freeze"))
    frozen.wait_frozen()
    async with arena.stage("impatient", meta_timeout_ms=PATIENCE_MS) as stage:
        with pytest.raises(Unavailable) as refused:
            await stage.open_writer(open_timeout_ms=3 * PATIENCE_MS)
        assert refused.value.pid == frozen.pid
        frozen.thaw()
        writer = await stage.open_writer()
        await writer.append(2)
        frozen.wait_success()
        await writer.close()
    await arena.survey()


@pytest.mark.parametrize(("point", "side"), NOT_HOLDING, ids=["beginning", "committed"])
async def test_frozen_beside_a_metadata_commit(arena: Arena, point: str, side: str) -> None:
    """It holds nothing: nobody waits for it."""
    frozen = await _frozen_in_metadata(arena, point, side)
    async with arena.stage("winner", meta_timeout_ms=PATIENCE_MS) as stage:
        writer = await stage.open_writer()
        await writer.append(2)
        frozen.thaw()
        frozen.wait_success()
        await writer.close()
    await arena.survey()


async def _frozen_in_metadata(arena: Arena, point: str, side: str) -> Child:
    async with arena.stage("first") as stage:
        await (await stage.open_writer()).append(2)
    frozen = arena.start("opener", crash=CrashPoint(point, side, 1, "freeze"))
    frozen.wait_frozen()
    return frozen
