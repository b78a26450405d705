"""A shard whose log cannot be read for a while: it waits, says why, and goes on by itself."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

import dlog
from dlog import backends
from dlog.effects import LastReadable, LookAtLedger, ReadRun
from dlog.errors import WriterClosed
from dlog.reader.feed import _FeedDriver
from tests.api.adapter import AioApi
from tests.api.grouping import Seen, a_group, checkpoints, seen_all, send, work
from tests.api.waiting import eventually

SHARD = "orders/0"
_worlds = itertools.count()


@pytest.fixture
def world() -> Iterator[str]:
    name = f"unread-{os.getpid()}-{next(_worlds)}"
    yield name
    backends._memory_worlds.pop(name, None)


def lose_power(world: str, published: int) -> None:
    """How far open ledgers may be read is forgotten; what was confirmed is there."""
    for ledger in backends._memory_worlds[world][1]._ledgers.values():
        if ledger.closed is None:
            ledger.published = min(ledger.published, published)


def is_waiting(worker: Any) -> bool:
    reason = worker.why()
    return reason is not None and reason.code is dlog.ReasonCode.READING


@pytest.mark.parametrize("published", [-1, 0])
async def test_a_worker_that_starts_before_the_writer_behind_a_power_loss_goes_on(
    world: str, published: int
) -> None:
    """Its checkpoint is behind all that may be read before the log is opened for writing."""
    async with a_group(AioApi(f"memory:{world}"), 1, 20) as (client, stream, writer):
        seen = Seen()
        async with work(client, seen.process, flush_ms=0):
            await seen_all(seen, 20)
        assert await checkpoints(client) == {SHARD: 20}
        writer.let_go(WriterClosed("the power is gone"))
        lose_power(world, published)
        async with work(client, seen.process, flush_ms=0) as worker:
            await eventually(lambda: is_waiting(worker))
            assert "a writer that opens the log" in str(worker.why())
            assert worker.failed == {}
            async with stream.open_writer() as again:
                await send(again, 10, first=20)
                await seen_all(seen, 30)
                assert worker.why() is None
        assert seen.twice == []


async def test_a_position_that_was_read_is_not_told_as_one_that_never_was(world: str) -> None:
    async with AioApi(f"memory:{world}").connect() as client:
        writer = await client.open_writer("log")
        last = await writer.append(b"x")
        async with client.open_reader("log") as reader:
            assert len(await reader.read()) == 1
            place = reader.position
        writer._engine.abandon(WriterClosed("the power is gone"))
        lose_power(world, 0)
        with pytest.raises(dlog.Unavailable) as told:
            await client.open_reader("log", start=place)
        assert told.value.retry is dlog.Retry.NOW
        async with client.open_writer("log") as again:
            await again.append(b"y")
            async with client.open_reader("log", start=place) as reader:
                assert [each.value for each in await reader.read()] == [b"y"]
        never = dlog.Position(place.log_uid, 1, last._replace(entry_id=99))
        with pytest.raises(dlog.NotFound):
            await client.open_reader("log", start=never)


async def test_a_bounded_job_does_not_end_before_what_is_out_of_sight(world: str) -> None:
    """What was there when the job began is processed, and the job waits for it."""
    async with a_group(AioApi(f"memory:{world}"), 1, 20) as (client, stream, writer):

        def not_yet() -> Any:
            raise OSError("for now")

        async with work(client, not_yet, stop_at_end=True):
            pass
        writer.let_go(WriterClosed("the power is gone"))
        lose_power(world, 0)
        seen = Seen()
        async with work(client, seen.process, stop_at_end=True) as worker:
            await eventually(lambda: is_waiting(worker))
            assert await worker.wait(0) is None
            async with stream.open_writer():
                assert await worker.wait(20) == "all shards are done"
        assert len(seen.values) == 20


ERRORS = [
    dlog.AuthError("you may not read there"),
    dlog.Unsupported("not by this version"),
    dlog.Unavailable("no bookie answers"),
    dlog.Conflict("once more"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("begun", [False, True], ids=["at its beginning", "behind a checkpoint"])
async def test_what_kept_a_shard_from_being_read_is_over_and_it_goes_on(
    world: str, error: dlog.DlogError, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was, and whether a try could have helped or somebody had to mend it."""
    is_mended = False
    genuine = _FeedDriver.perform

    async def perform(self: _FeedDriver, effect: Any) -> Any:
        if isinstance(effect, (LastReadable, LookAtLedger, ReadRun)) and not is_mended:
            raise error.again()
        return await genuine(self, effect)

    async with a_group(AioApi(f"memory:{world}"), 1, 20) as (client, _, writer):
        seen = Seen()
        if begun:
            async with work(client, seen.process, flush_ms=0):
                await seen_all(seen, 20)
            await send(writer, 20, first=20)
        monkeypatch.setattr(_FeedDriver, "perform", perform)
        async with work(client, seen.process) as worker:
            await eventually(lambda: is_waiting(worker))
            assert error.message in str(worker.why())
            assert worker.failed == {}
            is_mended = True
            await seen_all(seen, 40 if begun else 20)
            assert worker.why() is None
        assert seen.twice == []
