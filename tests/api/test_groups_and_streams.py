"""Where groups and streams meet: streams that are removed and made again, groups that are removed
while others found them, and shards that were truncated or finished by somebody else."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dlog
from dlog import aio, backends
from tests.api.waiting import eventually

NAME = "orders"
K = b"k"
_worlds = itertools.count()


@asynccontextmanager
async def a_client() -> AsyncIterator[aio.Client]:
    name = f"groups-and-streams-{next(_worlds)}"
    try:
        async with aio.connect(f"memory:{name}") as client:
            yield client
    finally:
        backends._memory_worlds.pop(name, None)


async def process_nothing(batch: dlog.MessageBatch) -> None:
    pass


async def test_a_worker_consumes_nothing_of_a_stream_that_was_made_again() -> None:
    """A worker waits for the log of a shard that nobody wrote yet. The stream is removed and made
    again; the worker hears of the log first, and consumes what is in the new stream under the
    leases of a group that belongs to the old one. Its hold stays on the new stream's log."""
    seen: list[bytes | None] = []

    async def process(batch: dlog.MessageBatch) -> None:
        seen.extend(message.value for message in batch.to_pylist())

    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        async with client.open_worker("g", NAME, process, heart="loop") as worker:
            await eventually(lambda: worker.shards)
            await stream.remove()
            again = await client.create_stream(NAME, shards=1)
            async with again.open_writer() as writer:
                await writer.append(b"of another stream", key=K)
            await worker.wait(20)
        assert seen == []
        assert await client.admin.holds("orders/0") == ()


async def as_of_old(client: aio.Client) -> None:
    """The stream's node as the version before writes it: without the uids of logs."""
    meta, path = (await client._stores(True)).meta, f"/dlog/streams/{NAME}"
    raw, version = await meta.get(path)
    fields = json.loads(raw)
    for shard in fields["shards"]:
        shard.pop("log_uid", None)
    await meta.put(path, json.dumps(fields).encode(), version)


async def test_a_log_of_another_stream_is_not_consumed_where_uids_are_not_known() -> None:
    """The stream of an older version says no uids of logs."""
    seen: list[bytes | None] = []

    async def process(batch: dlog.MessageBatch) -> None:
        seen.extend(message.value for message in batch.to_pylist())

    async with a_client() as client:
        stream = await client.create_stream(NAME, shards=1)
        await as_of_old(client)
        async with client.open_worker("g", NAME, process, heart="loop") as worker:
            await eventually(lambda: worker.shards)
            assert worker._heart.log_uids == {}
            await stream.remove()
            again = await client.create_stream(NAME, shards=1)
            async with again.open_writer() as writer:
                await writer.append(b"of another stream", key=K)
            assert await worker.wait(20) is not None
        assert seen == []
        assert await client.admin.holds("orders/0") == ()
