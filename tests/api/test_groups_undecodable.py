"""An entry that nobody can decode, in the log of a shard: it is poison like any other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import dlog
from tests.api.adapter import Api
from tests.api.grouping import STREAM, Seen, seen_all, why, work
from tests.api.test_corruption import flip, garble
from tests.api.waiting import eventually

COUNT = 6
LOG = f"{STREAM}/0"


def some(*numbers: int) -> set[bytes]:
    return {b"message %d" % number for number in numbers}


@asynccontextmanager
async def a_damaged_stream(api: Api, damage: Any, *bad: int) -> AsyncIterator[Any]:
    """One shard with entries of one message each."""
    async with api.connect() as client:
        stream = await client.create_stream(STREAM, shards=1)
        async with stream.open_writer() as writer:
            for number in range(COUNT):
                await writer.append(b"message %d" % number)
        async with client.open_reader(LOG) as reader:
            ids = [message.id for message in await reader.read()]
        assert ids[0].ledger_id == 0
    for number in bad:
        damage(api, ids[number].entry_id)
    async with api.connect() as client:
        yield client


@pytest.mark.parametrize("damage", [flip, garble])
async def test_it_becomes_a_dead_letter_that_says_where_it_is(file_api: Api, damage: Any) -> None:
    """Each of two that follow each other, once, also for who comes to them again."""
    seen, again = Seen(), Seen()

    def keeps_the_first(batch: Any, tracker: Any) -> None:
        seen.add(LOG, batch)
        if batch.first_seq == 0:
            tracker.checkpoint()

    ways = {"on_error": "dead_letter", "dead_letters": "dead", "retry_pause_ms": 1, "attempts": 2}
    async with a_damaged_stream(file_api, damage, 1, 2, 4) as client:
        async with work(client, keeps_the_first, **ways):
            await seen_all(seen, 3)
        assert set(seen.values) == some(0, 3, 5)
        async with work(client, again.process, **ways):
            await seen_all(again, 2)
        assert set(again.values) == some(3, 5)
        letters = [dict(each.headers) for each in await file_api.read_all("dead")]
        assert await file_api.values("dead") == [None] * 3
        assert [each["dlog.seq"] for each in letters] == [b"1", b"1", b"4"]
        assert len({each["dlog.id"] for each in letters}) == 3
        assert {each["dlog.attempts"] for each in letters} == {b"2"}
        assert {each["dlog.shard"] for each in letters} == {LOG.encode()}
        assert all(each["dlog.error"] for each in letters)


@pytest.mark.parametrize("damage", [flip, garble])
async def test_it_is_tried_again_and_told(file_api: Api, damage: Any) -> None:
    seen = Seen()
    async with a_damaged_stream(file_api, damage, 2) as client:
        async with work(client, seen.process, retry_pause_ms=1) as worker:
            await eventually(lambda: worker.shards and worker.shards[0].failures > 3)
            reason = await why(worker)
            assert reason is not None
            assert reason.code is dlog.ReasonCode.PROCESSING_FAILED
        assert set(seen.values) == some(0, 1)


@pytest.mark.parametrize("damage", [flip, garble])
async def test_it_stops_its_shard(file_api: Api, damage: Any) -> None:
    seen = Seen()
    async with a_damaged_stream(file_api, damage, 2) as client:
        async with work(client, seen.process, on_error="stop") as worker:
            await eventually(lambda: worker.failed)
        assert set(seen.values) == some(0, 1)
