"""What the logs of shards tell of themselves, also when they are gone."""

from __future__ import annotations

import dataclasses

from dlog import aio, backends
from dlog.meta.listed import End
from dlog.streams.document import Shard
from dlog.streams.routing.ranges import WHOLE_SPACE
from dlog.streams.tails import Remains, find_log


async def test_a_shard_of_an_older_version_is_known_by_the_uid_of_its_log() -> None:
    try:
        async with aio.connect("memory:tails") as client:
            shards, uids = [], []
            for number in range(3):
                shard = Shard(number, f"s/{number}", WHOLE_SPACE)
                shards.append(shard)
                if number != 2:  # the log of the last one is not made yet
                    await client.admin.create(shard.log)
                    uids.append((await client.admin.status(shard.log)).uid)
            stores = await client._stores(False)
            assert await find_log(stores, shards, uids[1]) == "s/1"
            assert await find_log(stores, shards, "another") is None
            # Shards of today say so themselves, and no log is asked.
            told = [dataclasses.replace(each, log_uid="told") for each in shards]
            assert await find_log(stores, told, uids[1]) is None
    finally:
        backends._memory_worlds.pop("tails", None)


def test_what_is_left_of_a_log_is_older_than_a_time_behind_its_last_message() -> None:
    left = Remains("uid", 0, End(1, 1, 1, next_seq=5, last_time_us=100))
    assert [left.is_older(since_us) for since_us in (99, 100, 101)] == [False, False, True]
    empty = Remains("uid", 5, End(1, 1, 1, next_seq=5, last_time_us=100))
    assert not empty.is_older(101), "it says nothing of those before it"
