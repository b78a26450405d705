"""One shard at work: what the program is given again when it fails, message by message."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dlog import aio
from tests.api.waiting import eventually, until

MANY = 10

_worlds = itertools.count()


@asynccontextmanager
async def a_stream() -> AsyncIterator[Any]:
    """Of one shard, with ten messages in one entry."""
    async with aio.connect(f"memory:shard-run-{next(_worlds)}") as client:
        stream = await client.create_stream("orders", shards=1)
        async with stream.open_writer() as writer:
            await writer.append_many([b"%d" % number for number in range(MANY)])
        yield client


def work(client: Any, process: Any, **options: Any) -> Any:
    options = {"timeout_ms": 5_000, "retry_pause_ms": 1, "flush_ms": 0, **options}
    return client.open_worker("billing", "orders", process, **options)


class Program:
    """Says that it is done with the first few, and fails; then takes what comes, but for those that
    are poison."""

    def __init__(self, done: int, poison: tuple[int, ...] = ()) -> None:
        self.given: list[list[int]] = []
        self.processed: Counter[int] = Counter()
        self._done = done
        self._poison = poison

    async def process(self, batch: Any, tracker: Any) -> None:
        messages = batch.to_pylist()
        self.given.append([each.seq for each in messages])
        if len(self.given) == 1 and self._done:
            self.processed.update(range(self._done))
            tracker.checkpoint(messages[self._done - 1])
            raise ValueError("the first time")
        if {each.seq for each in messages} & set(self._poison):
            raise ValueError("poison")
        self.processed.update(each.seq for each in messages)
        tracker.checkpoint(batch)


async def checkpoint_of(client: Any) -> int | None:
    (shard,) = (await client.group("billing", "orders").describe()).shards
    return None if shard.checkpoint is None else shard.checkpoint.next_seq


@pytest.mark.parametrize("done", [1, 4, MANY - 1, MANY])
async def test_a_batch_that_failed_is_given_again_from_the_checkpoint_on(done: int) -> None:
    """Nothing that the program is done with, and all of the rest."""
    program = Program(done)
    async with a_stream() as client:
        async with work(client, program.process):
            await eventually(lambda: len(program.processed) == MANY)
        assert await checkpoint_of(client) == MANY
    rest = [] if done == MANY else [list(range(done, MANY))]
    assert program.given == [list(range(MANY)), *rest]
    assert set(program.processed.values()) == {1}


@pytest.mark.parametrize("done", [0, 3, 6])
@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_what_is_poison_is_tried_so_often_and_the_others_are_done_once(
    done: int, attempts: int
) -> None:
    """The batch as a whole, then one by one from the checkpoint on."""
    program = Program(done, poison=(5,) if done < 5 else (8,))
    (poison,) = program._poison
    options = {"on_error": "dead_letter", "dead_letters": "dead", "attempts": attempts}
    async with a_stream() as client:
        async with work(client, program.process, **options):
            await eventually(lambda: program.given[-1:] == [[MANY - 1]])
        assert await checkpoint_of(client) == MANY
        async with client.open_reader("dead") as log:
            letters = [letter async for letter in log]
    assert [letter.value for letter in letters] == [b"%d" % poison]
    assert dict(letters[0].headers)["dlog.attempts"] == b"%d" % attempts
    whole = [list(range(MANY)), *[list(range(done, MANY))] * (attempts - 1)]
    assert program.given[:attempts] == whole
    alone: list[list[int]] = []
    for seq in range(done, MANY):
        alone += [[seq]] * (attempts if seq == poison else 1)
    assert program.given[attempts:] == alone
    assert program.processed == Counter({seq: 1 for seq in range(MANY) if seq != poison})


class Looks:
    """Looks at the holds of its log when it is initialized, before anything is delivered."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.holds: list[tuple[str, int]] = []
        self.tokens: list[int] = []

    async def initialize(self, shard: Any) -> None:
        self.tokens.append(shard.token)
        found = await self.client.admin.holds(shard.log)
        self.holds += [(each.name, each.seq) for each in found]

    async def process(self, batch: Any, tracker: Any) -> None:
        """It is never done with anything."""


async def test_what_a_shard_begins_with_is_held_before_its_program_begins() -> None:
    """Else it could be truncated before the first checkpoint."""
    async with a_stream() as client:
        program = Looks(client)
        async with work(client, program):
            await eventually(lambda: program.holds)
        assert program.holds == [("group billing of orders", 0)]
        assert program.tokens == [1]
        assert (await client.admin.truncate("orders/0", "latest")).held_by


async def test_a_shard_that_is_begun_again_is_held_where_it_stands() -> None:
    """Whatever became of the hold meanwhile: no checkpoint would put it there before one came."""
    async with a_stream() as client:
        program = Program(0)
        async with work(client, program.process):
            await eventually(lambda: len(program.processed) == MANY)
        assert await checkpoint_of(client) == MANY
        await client.admin.drop_hold("orders/0", "group billing of orders")
        looks = Looks(client)
        async with work(client, looks):

            async def is_held() -> bool:
                return [each.seq for each in await client.admin.holds("orders/0")] == [MANY]

            await until(is_held)
        assert looks.tokens == [2]
