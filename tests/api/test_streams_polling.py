"""Reading a stream with no time to wait at all: what asks the stores goes on between the calls."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

import dlog
from tests.api.adapter import Api, SyncApi, on_thread
from tests.api.streaming import KEYS, a_stream, by_key
from tests.api.waiting import DEADLINE_S, eventually
from tests.pace import Deadline

pytestmark = pytest.mark.crosswise(seconds=1)


async def _poll(api: Api, reader: Any) -> list[dlog.FromShard]:
    """Calls that wait for nothing, until the reader says that it is at the tail."""
    found: list[dlog.FromShard] = []
    deadline = Deadline(DEADLINE_S)
    if isinstance(api, SyncApi):

        def work() -> None:
            while not deadline.passed():
                got = reader.inner.read(7, timeout=0)
                found.extend(got)
                if not got and reader.inner.at_tail:
                    return
            raise AssertionError("it never came to the tail")

        await on_thread(work)
        return found
    while not deadline.passed():
        got = await reader.read(7, timeout=0)
        found += got
        if not got and reader.at_tail:
            return found
        await asyncio.sleep(0)
    raise AssertionError("it never came to the tail")


@pytest.mark.parametrize(
    "reading",
    [
        {},
        {"follow": True},
        {"order": "time"},
        {"order": "time", "follow": True, "patience_ms": 0},
        {"start": datetime.fromtimestamp(0, UTC), "follow": True},
        {"follow": True, "tail": "strict"},
    ],
)
async def test_what_never_waits_comes_to_the_tail_of_all_shards(
    api: Api, reading: dict[str, Any]
) -> None:
    """Over splits, merges and pins; and `at_tail` is never true before."""
    async with a_stream(api, 2) as (_, stream):
        async with stream.open_writer() as writer:
            for value in range(6):
                await writer.append_many([b"%d" % value] * len(KEYS), keys=KEYS)
                shards = sorted(
                    (s for s in await stream.shards() if s.is_open), key=lambda s: s.range
                )
                if value % 3 == 0:
                    await stream.split(shards[0].number)
                elif value % 3 == 1:
                    await stream.merge(shards[0].number, shards[1].number)
                else:
                    await stream.pin(KEYS[value], shards[0].number)
            await writer.append_many([b"last"] * len(KEYS), keys=KEYS)
        async with stream.open_reader(**reading) as reader:
            found = await _poll(api, reader)
            values = [*(b"%d" % value for value in range(6)), b"last"]
            assert by_key(found) == dict.fromkeys(KEYS, values)


async def test_whoever_only_asks_for_the_tail_comes_to_it(api: Api) -> None:
    """All was handed out, and the shard ends: no read is needed to find those that follow."""
    async with a_stream(api, 1) as (_, stream):
        async with stream.open_writer() as writer:
            await writer.append_many([b"x"] * len(KEYS), keys=KEYS)
            async with stream.open_reader(follow=True) as reader:
                found = 0
                while found < len(KEYS):
                    found += len(await reader.read())
                await stream.split(0)
                await eventually(lambda: reader.at_tail and reader.shards == (1, 2))


async def test_the_tail_can_be_asked_for_when_all_is_closed(api: Api) -> None:
    """Nothing changes any more; nobody is refused."""
    async with a_stream(api, 1) as (_, stream):
        async with stream.open_writer() as writer:
            await writer.append(b"x")
            await stream.split(0)
        reader = await stream.open_reader(follow=True)
        await reader.read()
    assert reader.at_tail in (True, False)
    await reader.close()
    assert reader.at_tail in (True, False)
