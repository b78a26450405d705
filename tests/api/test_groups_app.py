"""What a program keeps with its checkpoints (`app`): it stays with the last one at a shard's end,
and comes to the programs of the shards that go on from there."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from tests.api.adapter import Api
from tests.api.grouping import GROUP, STREAM, Seen, a_group, kept_up_to, seen_all, send, work
from tests.api.waiting import eventually, until

pytestmark = pytest.mark.crosswise(seconds=1)


class Keeps(Seen):
    """Keeps something with a checkpoint of each shard's first batch, and says nothing more."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[str, list[tuple[str, int, bytes]]] = {}
        self.apps: dict[str, bytes] = {}

    def initialize(self, shard: dlog.ShardInfo) -> None:
        self.apps[shard.log] = shard.app
        self.parents[shard.log] = [(each.log, each.number, each.app) for each in shard.parents]

    def process(self, batch: Any, tracker: Any) -> None:
        log = tracker.shard.log
        is_first = log not in self.by_shard
        self.add(log, batch)
        if is_first:
            tracker.checkpoint(app=b"kept in " + log.encode())


async def standing(client: Any) -> dict[str, tuple[str, int, bytes]]:
    told = await client.group(GROUP, STREAM).describe()
    return {
        each.log: (each.state, each.checkpoint.next_seq, each.checkpoint.app)
        for each in told.shards
        if each.checkpoint is not None
    }


async def test_what_a_program_kept_stays_at_the_end_of_a_shard_and_comes_to_its_children(
    api: Api,
) -> None:
    """The last checkpoint is the worker's own, as the program was told of the end and returned: it
    keeps what the program kept."""
    program = Keeps()
    async with a_group(api, shards=1, messages=10) as (client, stream, writer):
        async with work(client, program, flush_ms=0):
            await seen_all(program, 10)
            await send(writer, 10, first=10)
            await seen_all(program, 20)
            await stream.split(0)
            await send(writer, 30, first=20)
            await seen_all(program, 50)
            first, second, third = sorted(program.by_shard)
            assert program.parents[first] == []
            told = [(first, 0, b"kept in " + first.encode())]
            assert program.parents[second] == program.parents[third] == told
            assert program.apps == {first: b"", second: b"", third: b""}
            assert (await standing(client))[first] == ("finished", 20, told[0][2])
            merged = await stream.merge(1, 2)
            await send(writer, 1, first=50)
            await eventually(lambda: merged.log in program.parents)
            both = [
                (log, number, b"kept in " + log.encode())
                for number, log in ((1, second), (2, third))
            ]
            assert program.parents[merged.log] == both
        again = Keeps()
        async with work(client, again, flush_ms=0):
            await eventually(lambda: merged.log in again.parents)
            assert again.parents[merged.log] == both, "also to whoever has it later"


@pytest.mark.parametrize("leases", ["nodes", "logs"])
async def test_children_that_begin_when_their_parent_is_trimmed_have_what_it_kept(
    api: Api, leases: str
) -> None:
    """And nothing of the parent's lease is left when the group is removed."""
    program = Keeps()
    async with a_group(api, shards=1, messages=10) as (client, stream, writer):
        async with work(client, program, flush_ms=0, leases=leases):
            await seen_all(program, 10)
        await stream.split(0)
        await send(writer, 20, first=10)
        # A worker ends with the parent, and nobody begins its children.
        ends = Keeps()
        ends.by_shard[f"{STREAM}/0"] = []
        held = Blocking(ends)
        async with work(client, held, flush_ms=0, leases=leases):

            async def is_finished() -> bool:
                return (await standing(client))[f"{STREAM}/0"][0] == "finished"

            await until(is_finished)
            await client.admin.truncate(f"{STREAM}/0", "latest")
            await stream.trim()
        assert [each.number for each in await stream.shards()] == [1, 2]
        again = Keeps()
        async with work(client, again, flush_ms=0, leases=leases):
            await eventually(lambda: len(again.parents) == 2)
        told = [(f"{STREAM}/0", 0, b"kept in orders/0")]
        assert again.parents == {f"{STREAM}/1": told, f"{STREAM}/2": told}
        await client.group(GROUP, STREAM).remove()
        left = [each.name for each in await client.admin.list()]
        assert left == [f"{STREAM}/1", f"{STREAM}/2"]


class Blocking:
    """Cannot begin in any shard but the first."""

    def __init__(self, inner: Keeps) -> None:
        self.inner = inner

    def initialize(self, shard: dlog.ShardInfo) -> None:
        if shard.number > 0:
            raise ValueError("not yet")

    def process(self, batch: Any, tracker: Any) -> None:
        self.inner.process(batch, tracker)


async def test_a_checkpoint_of_the_worker_keeps_what_the_program_kept(api: Api) -> None:
    """`checkpoints="batch"`: the worker takes one behind each batch in which the program took none
    itself."""
    program = Keeps()
    async with a_group(api, shards=1, messages=10) as (client, _, writer):
        async with work(client, program, checkpoints="batch", checkpoint_messages=1):
            await seen_all(program, 10)
            await send(writer, 5, first=10)
            await kept_up_to(client, 15)
            assert await standing(client) == {f"{STREAM}/0": ("consumed", 15, b"kept in orders/0")}
