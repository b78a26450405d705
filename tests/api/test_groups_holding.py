"""What a group has not consumed is held, whatever becomes of the shards: also in shards that it
never began, and in those that came while no worker was there."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from dlog.groups.places import GroupPlaces
from dlog.meta.holds import Hold
from tests.api.adapter import Api
from tests.api.grouping import (
    GROUP,
    STREAM,
    Seen,
    a_group,
    kept_up_to,
    seen_all,
    send,
    work,
)
from tests.api.planting import meta_of, stores_of
from tests.api.waiting import until

pytestmark = pytest.mark.crosswise(seconds=1)

HOLD = f"group {GROUP} of {STREAM}"
SOON_MS = 50


def not_yet() -> Any:
    """In place of a program: the group is made, and consumes nothing."""
    raise OSError("for now")


async def truncate_everything(client: Any, stream: Any) -> list[Any]:
    """As far as holds let it, in every shard."""
    there = [each.name for each in await client.admin.list()]
    logs = [shard.log for shard in await stream.shards() if shard.log in there]
    return [await client.admin.truncate(log, "latest") for log in logs]


async def test_children_of_a_split_are_held_while_the_group_is_away(api: Api) -> None:
    async with a_group(api, shards=2) as (client, stream, writer):
        seen = Seen()
        async with work(client, seen.process, flush_ms=SOON_MS):
            await seen_all(seen, 200)
            await kept_up_to(client, 200)
        children = await stream.split(0)
        await send(writer, 200, 200)
        first, second = await stream.split(children[0].number)
        await stream.merge(first.number, second.number)
        await send(writer, 200, 400)
        told = await truncate_everything(client, stream)
        assert any(HOLD in each.held_by for each in told)
        async with work(client, seen.process):
            await seen_all(seen, 600)
        assert len(seen.values) == 600
        assert seen.twice == []


async def test_shards_are_held_before_any_worker_began_them(api: Api) -> None:
    """The group is there as soon as its first worker was opened, and no shard is begun: the
    program cannot be made yet."""
    async with a_group(api, shards=4) as (client, stream, _):
        async with work(client, not_yet):
            pass
        await truncate_everything(client, stream)
        seen = Seen()
        async with work(client, seen.process):
            await seen_all(seen, 200)
        assert len(seen.values) == 200


async def test_a_group_that_begins_at_the_latest_holds_from_there(api: Api) -> None:
    async with a_group(api, shards=3) as (client, stream, writer):
        async with work(client, Seen().process, start="latest"):
            pass
        await send(writer, 100, 200)
        for each in await truncate_everything(client, stream):
            assert each.held_by == (HOLD,)
        seen = Seen()
        async with work(client, seen.process, start="latest"):
            await seen_all(seen, 100)
        assert set(seen.values) == {b"%d" % number for number in range(200, 300)}


async def test_retention_alone_takes_nothing_that_a_group_away_did_not_consume(api: Api) -> None:
    async with api.connect() as client:
        stream = await client.create_stream(STREAM, shards=1, retention_bytes=1)
        async with stream.open_writer() as writer:
            seen = Seen()
            async with work(client, seen.process, flush_ms=SOON_MS):
                await send(writer, 20)
                await seen_all(seen, 20)
                await kept_up_to(client, 20)
            await stream.split(0)
            await send(writer, 100, 20)
            for shard in await stream.shards():
                await client.admin.collect(shard.log)
            async with work(client, seen.process):
                await seen_all(seen, 120)
            assert len(seen.values) == 120


async def test_a_shard_that_is_done_can_be_truncated_and_trimmed(api: Api) -> None:
    async with a_group(api, shards=1) as (client, stream, writer):
        seen = Seen()
        async with work(client, seen.process) as worker:
            await seen_all(seen, 200)
            await stream.split(0)
            await send(writer, 100, 200)
            await seen_all(seen, 300)

            async def is_free() -> bool:
                return not (await client.admin.truncate("orders/0", "latest")).held_by

            await until(is_free)
            assert await stream.trim() == (0,)
            await worker.close()
        assert await client.admin.list("orders/0") == []


async def test_a_group_that_is_removed_holds_nothing(api: Api) -> None:
    async with a_group(api, shards=2) as (client, stream, writer):
        async with work(client, Seen().process):
            pass
        await stream.split(0)
        await send(writer, 100)
        assert any(each.held_by for each in await truncate_everything(client, stream))
        await client.group(GROUP, STREAM).remove()
        assert not any(each.held_by for each in await truncate_everything(client, stream))
        for shard in await stream.shards():
            assert await client.admin.holds(shard.log) == ()


async def test_the_group_of_a_stream_that_was_removed_holds_nothing_of_the_next(api: Api) -> None:
    async with a_group(api, shards=1) as (client, stream, writer):
        async with work(client, Seen().process):
            pass
        await writer.close()
        await stream.remove()
        again = await client.create_stream(STREAM, shards=2)
        async with again.open_writer() as newer:
            await send(newer, 50)
        assert not any(each.held_by for each in await truncate_everything(client, again))


async def test_a_bounded_job_holds_the_shards_that_it_has_to_do_and_no_others(api: Api) -> None:
    async with a_group(api, shards=2) as (client, stream, writer):
        async with work(client, not_yet, stop_at_end=True):
            pass
        children = await stream.split(0)
        await send(writer, 100, 200)
        told = {each.log: each for each in await truncate_everything(client, stream)}
        assert told["orders/0"].held_by == (HOLD,)
        assert told["orders/1"].held_by == (HOLD,)
        assert all(told[child.log].held_by == () for child in children)
        seen = Seen()
        async with work(client, seen.process, stop_at_end=True) as worker:
            await worker.wait(20)
        assert set(seen.values) == {b"%d" % number for number in range(200)}
        for each in await truncate_everything(client, stream):
            assert each.held_by == ()


async def test_what_holds_a_shard_is_told_where_its_group_began_nothing(api: Api) -> None:
    async with a_group(api, shards=1) as (client, stream, writer):
        async with work(client, Seen().process):
            pass
        child, _ = await stream.split(0)
        await send(writer, 100)
        (hold,) = await client.admin.holds(child.log)
        assert (hold.name, hold.seq) == (HOLD, 0)
        assert "not begun" in str(hold.note)


@pytest.mark.parametrize("leases", ["nodes", "logs"])
async def test_a_founder_that_died_between_the_node_and_the_places_is_gone_on_with(
    api: Api, leases: str
) -> None:
    async with a_group(api, shards=2) as (client, stream, _), stores_of(api) as stores:
        async with work(client, not_yet, leases=leases):
            pass
        places = GroupPlaces(stores.layout, GROUP, STREAM)
        path = stores.layout.stream_hold(STREAM, HOLD)
        raw, version = await stores.meta.get(path)
        assert b'"made":true' in raw.replace(b" ", b"")
        unmade = raw.replace(b'"made": true', b'"made": false').replace(
            b'"made":true', b'"made":false'
        )
        await stores.meta.put(path, unmade, version)
        for shard in await stream.shards():
            await client.admin.drop_hold(shard.log, HOLD)
        assert all(each.held_by == (HOLD,) for each in await truncate_everything(client, stream))
        seen = Seen()
        async with work(client, seen.process, leases=leases):
            await seen_all(seen, 200)
        raw, _ = await stores.meta.get(path)
        assert raw != unmade
        assert places.group == GROUP


async def test_a_hold_whose_maker_died_is_made_by_the_next_founder(api: Api) -> None:
    """A truncation that did not see the hold yet went past it, and its maker died before it moved
    the hold there. The job was told that messages it held were truncated, each time it began."""
    async with a_group(api, shards=1) as (client, stream, writer), stores_of(api) as stores:
        (shard,) = await stream.shards()
        await client.admin.truncate(shard.log, "latest")
        await send(writer, 100, 200)
        uid = (await meta_of(stores, shard.log)).uid
        unmade = Hold(HOLD, uid, "dead", 0, 0, 0, dlog.MessageId(0, 0, 0))
        path = stores.layout.hold(shard.log, HOLD)
        await stores.meta.create(path, unmade.to_bytes())
        seen = Seen()
        async with work(client, seen.process, stop_at_end=True) as worker:
            await worker.wait(20)
        assert set(seen.values) == {b"%d" % number for number in range(200, 300)}
