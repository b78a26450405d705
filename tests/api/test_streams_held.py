"""A hold on a whole stream: it keeps what is there and what comes, until its holder moves on."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from tests.api.adapter import Api
from tests.api.grouping import a_group, send, work
from tests.api.waiting import eventually


async def _left(client: Any, log: str) -> int:
    """Messages that a truncation to the end leaves."""
    await client.admin.truncate(log, "latest")
    status = await client.admin.status(log)
    return int(status.next_seq - status.head_seq)


async def test_all_of_a_stream_is_kept_also_in_shards_to_come(api: Api) -> None:
    async with a_group(api, shards=2, messages=40) as (client, stream, writer):
        await stream.hold("audit", who="ana")
        await stream.hold("audit")
        (held,) = await stream.holds()
        assert (held.name, held.who) == ("audit", "ana")
        children = await stream.split(0)
        await send(writer, 40, first=40)
        logs = [shard.log for shard in await stream.shards()]
        assert sum([await _left(client, log) for log in logs]) == 80
        # Its holder is through with one shard, and with a part of another.
        await client.admin.hold("orders/0", "audit", "latest")
        first, second = (child.log for child in children)
        await client.admin.hold(first, "audit", 1)
        assert await _left(client, "orders/0") == 0
        before = (await client.admin.status(first)).next_seq
        assert await _left(client, first) == before - 1
        assert await _left(client, second) > 0
        assert await stream.trim() == (0,)
        await stream.drop_hold("audit")
        assert await stream.holds() == ()
        assert [await _left(client, log) for log in logs[1:]] == [0] * 3
        with pytest.raises(dlog.NotFound, match="has no hold 'audit'"):
            await stream.drop_hold("audit")


async def test_a_stream_that_is_made_anew_is_not_held(api: Api) -> None:
    async with api.connect() as client:
        stream = await client.create_stream("again", shards=1)
        await stream.hold("audit")
        await stream.remove()
        stream = await client.create_stream("again", shards=1)
        assert await stream.holds() == ()
        with pytest.raises(dlog.NotFound):
            await stream.drop_hold("audit")
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=b"k")
        assert await _left(client, "again/0") == 0
        await stream.hold("audit")
        assert [each.name for each in await stream.holds()] == ["audit"]


async def test_groups_are_listed_beside(api: Api) -> None:
    async with a_group(api, shards=1, messages=1) as (client, stream, _writer):
        async with work(client, lambda batch: None) as worker:
            await eventually(lambda: worker.id is not None)
            await stream.hold("audit")
            assert len(await stream.holds()) == 2


async def test_a_hold_that_is_half_made_is_gone_on_with(api: Api) -> None:
    """Its maker died behind the node; the logs do not count it yet, and hold all the same."""
    async with dlog.aio.connect(api.url) as inner, api.connect() as client:
        stream = await client.create_stream("half", shards=2)
        async with stream.open_writer() as writer:
            for number in range(8):
                await writer.append(b"x", key=b"%d" % number)
        stores = await inner._stores(True)
        path = stores.layout.stream_hold("half", "audit")
        await stream.hold("audit")
        value, version = await stores.meta.get(path)
        await stores.meta.put(path, value.replace(b'"made":true', b'"made":false'), version)
        for number in (0, 1):
            await client.admin.drop_hold(f"half/{number}", "audit")
        assert sum([await _left(client, f"half/{number}") for number in (0, 1)]) == 8
        await stream.hold("audit")
        value, _ = await stores.meta.get(path)
        assert b'"made":true' in value
        for number in (0, 1):
            assert [hold.seq for hold in await client.admin.holds(f"half/{number}")] == [0]
