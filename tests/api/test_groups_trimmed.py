"""What a group had not consumed of a shard that is gone, it is told."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from tests.api.adapter import Api
from tests.api.grouping import GROUP, STREAM, Seen, a_group, seen_all, send, work
from tests.api.waiting import eventually, until

pytestmark = pytest.mark.crosswise(seconds=1)


def not_yet() -> Any:
    raise OSError("for now")


async def truncated_and_trimmed(client: Any, stream: Any, *numbers: int) -> None:
    for number in numbers:
        await client.admin.force_truncate(f"orders/{number}", "latest")
    assert await stream.trim() == numbers


@pytest.mark.parametrize("deep", [False, True], ids=["parent", "parent of a parent"])
async def test_a_shard_that_is_gone_before_the_group_began_it_is_told(api: Api, deep: bool) -> None:
    async with a_group(api, shards=1, messages=40) as (client, stream, writer):
        async with work(client, not_yet):
            pass
        children = await stream.split(0)
        gone = [0]
        if deep:  # and between the two one that has nothing
            children = await stream.split(children[0].number)
            gone.append(1)
        await truncated_and_trimmed(client, stream, *gone)
        await send(writer, 40, first=40)
        seen = Seen()
        ours = {child.log for child in children}
        async with work(client, seen.process) as worker:
            await eventually(lambda: ours <= worker.failed.keys())
            assert all("Truncated: shards [0]" in told for told in worker.failed.values())
        async with work(client, seen.process, on_truncated="jump"):
            await seen_all(seen, 40)


@pytest.mark.parametrize("why", ["consumed", "empty", "before the group", "long before the group"])
async def test_a_shard_that_is_gone_and_was_not_missed_is_not_told(api: Api, why: str) -> None:
    async with a_group(api, shards=1, messages=0 if why == "empty" else 40) as (
        client,
        stream,
        writer,
    ):
        seen = Seen()
        if why == "consumed":
            async with work(client, seen.process) as worker:
                await stream.split(0)
                await seen_all(seen, 40)
                await eventually(lambda: {each.log for each in worker.shards} > {"orders/1"})
        else:
            if why == "empty":
                async with work(client, not_yet):
                    pass
            children = await stream.split(0)
        gone = [0]
        if why == "long before the group":  # none of its children is there any more
            await stream.merge(*(child.number for child in children))
            gone += [child.number for child in children]
        await truncated_and_trimmed(client, stream, *gone)
        before = seen.count
        await send(writer, 40, first=40)
        async with work(client, seen.process) as worker:
            await seen_all(seen, before + 40)
            assert worker.failed == {}


@pytest.mark.parametrize("leases", ["nodes", "logs"])
async def test_a_job_whose_shard_is_gone_before_it_was_done_says_so(api: Api, leases: str) -> None:
    async with a_group(api, shards=2, messages=40) as (client, stream, _writer):
        async with work(client, not_yet, stop_at_end=True, leases=leases) as worker:
            await eventually(lambda: worker.id is not None)
        await stream.split(0)
        await truncated_and_trimmed(client, stream, 0)
        seen = Seen()
        async with work(client, seen.process, stop_at_end=True, leases=leases) as worker:
            with pytest.raises(dlog.Truncated, match=r"shards \[0\] of stream 'orders'"):
                await worker.wait(20)
        jumps = {"stop_at_end": True, "leases": leases, "on_truncated": "jump"}
        async with work(client, seen.process, **jumps) as worker:
            assert await worker.wait(20) == "all shards are done"
        assert 0 < seen.count < 40


@pytest.mark.parametrize("why", ["consumed", "empty", "before the group"])
async def test_a_job_whose_shard_is_gone_and_was_not_missed_is_done(api: Api, why: str) -> None:
    messages = 0 if why == "empty" else 40
    async with a_group(api, shards=1, messages=messages) as (client, stream, _writer):
        seen = Seen()
        if why == "empty":
            async with work(client, not_yet, stop_at_end=True) as worker:
                await eventually(lambda: worker.id is not None)
        if why == "consumed":
            async with work(client, seen.process, stop_at_end=True) as worker:
                assert await worker.wait(20) == "all shards are done"
        await stream.split(0)
        await truncated_and_trimmed(client, stream, 0)
        async with work(client, seen.process, stop_at_end=True) as worker:
            assert await worker.wait(20) == "all shards are done"
        assert seen.count == (40 if why == "consumed" else 0)


async def test_a_shard_whose_end_nobody_saw_was_consumed_and_gives_its_children_what_it_kept(
    api: Api,
) -> None:
    """The group has all of its messages, and no worker, when the shard is ended and trimmed."""
    begun: list[Any] = []

    class Remembers:
        def initialize(self, shard: Any) -> None:
            begun.append(shard)

        def process(self, batch: Any, tracker: Any) -> None:
            tracker.checkpoint(app=b"as far as that")

    async with a_group(api, shards=1, messages=40) as (client, stream, writer):
        group = client.group(GROUP, STREAM)

        async def has_all() -> bool:
            return (await group.describe()).lag_messages == 0

        async with work(client, Remembers, flush_ms=20):
            await until(has_all)
        children = await stream.split(0)
        await truncated_and_trimmed(client, stream, 0)
        await send(writer, 40, first=40)
        del begun[:]
        async with work(client, Remembers) as worker:
            await eventually(lambda: len(begun) == len(children) or worker.failed)
            assert worker.failed == {}
        assert [[each.app for each in shard.parents] for shard in begun] == [
            [b"as far as that"]
        ] * len(children)
