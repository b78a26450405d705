"""A stream's writer that slept while its shard was split, truncated and trimmed."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from dlog.streams.routing.hashing import key_hash
from tests.api.adapter import Api
from tests.api.streaming import KEYS, a_stream, by_key, read_stream, truncate_all


async def _gone(client: Any, stream: Any, *numbers: int) -> None:
    await truncate_all(client, stream, *numbers)
    assert await stream.trim() == numbers


@pytest.mark.parametrize("deep", [False, True], ids=["once", "twice"])
async def test_the_writer_that_was_the_last_goes_on_in_what_follows(api: Api, deep: bool) -> None:
    async with a_stream(api, 1) as (client, stream), stream.open_writer() as writer:
        await writer.append_many([b"old"] * len(KEYS), keys=KEYS, producer=(7, 0))
        first, _ = await stream.split(0)
        gone = [0]
        if deep:
            await stream.split(first.number)
            gone.append(first.number)
        await _gone(client, stream, *gone)
        await writer.append_many([b"new"] * len(KEYS), keys=KEYS, producer=(7, len(KEYS)))
        await writer.flush()
        found = by_key(await read_stream(stream, on_truncated="jump"))
        assert found == {key: [b"new"] for key in KEYS}
        with pytest.raises(dlog.AlreadyExists):
            await writer.append_many([b"old"] * len(KEYS), keys=KEYS, producer=(7, 0))


@pytest.mark.parametrize("where", ["the shard", "its child"])
async def test_what_another_writer_wrote_last_stays_with_it(api: Api, where: str) -> None:
    async with a_stream(api, 1) as (client, stream), stream.open_writer() as slept:
        await slept.append(b"old", key=KEYS[0])
        gone = [0]
        if where == "its child":
            child, _ = await stream.split(0)
            gone.append(child.number)
        other = await stream.open_writer()
        await other.append_many([b"other"] * len(KEYS), keys=KEYS)
        await stream.split(gone[-1])
        await other.close()
        await _gone(client, stream, *gone)
        theirs = next(k for k in KEYS if where == "the shard" or slept_in(k))
        with pytest.raises((dlog.Fenced, dlog.Conflict)):
            await slept.append(b"late", key=theirs)


def slept_in(key: bytes) -> bool:
    """A key of the lower half, which is that of the child."""
    return not key_hash(key) >> 31
