"""A number of a producer is taken at most once in a stream, whatever became of the shards that had
it first; and what a writer is told of messages that it sends again."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dlog
from dlog.streams.routing.hashing import key_hash
from tests.api.adapter import Api
from tests.api.planting import stores_of
from tests.api.streaming import KEYS, P, a_stream, by_key, read_stream, truncate_all

pytestmark = pytest.mark.crosswise(seconds=1)


async def send_all(stream: Any) -> None:
    async with stream.open_writer() as writer:
        for number, key in enumerate(KEYS):
            await writer.append(b"%d" % number, key=key, producer=(P, number))


async def each_is_known(stream: Any) -> None:
    async with stream.open_writer() as writer:
        for number, key in enumerate(KEYS):
            with pytest.raises(dlog.AlreadyExists):
                await writer.append(b"again", key=key, producer=(P, number))
        await writer.append(b"next", key=KEYS[0], producer=(P, len(KEYS)))


async def take_away(client: Any, stream: Any, *numbers: int) -> None:
    """Truncated and collected, as retention does."""
    await truncate_all(client, stream, *numbers)
    for shard in await stream.shards():
        if shard.number in numbers:
            await client.admin.collect(shard.log)


async def test_what_a_child_inherited_outlives_the_trim_of_its_parents(api: Api) -> None:
    async with a_stream(api, 1) as (client, stream):
        await send_all(stream)
        await stream.split(0)
        await each_is_known(stream)
        await take_away(client, stream, 0)
        assert await stream.trim() == (0,)
        async with stream.open_writer() as writer:
            for number, key in enumerate(KEYS):
                with pytest.raises(dlog.AlreadyExists):
                    await writer.append(b"again", key=key, producer=(P, number))


async def test_a_parent_is_trimmed_before_any_child_was_opened(api: Api) -> None:
    async with a_stream(api, 1) as (client, stream):
        await send_all(stream)
        await stream.split(0, parts=3)
        await take_away(client, stream, 0)
        assert await stream.trim() == (0,)
        await each_is_known(stream)


async def test_a_parent_is_truncated_and_collected_before_any_child_was_opened(api: Api) -> None:
    async with a_stream(api, 1) as (client, stream):
        await send_all(stream)
        await stream.split(0)
        await take_away(client, stream, 0)
        await each_is_known(stream)


async def test_generations_that_nobody_wrote_pass_the_numbers_on(api: Api) -> None:
    """Children are split and merged before anybody opened them, and all before them trimmed."""
    async with a_stream(api, 2) as (client, stream):
        await send_all(stream)
        first, second = await stream.split(0)
        merged = await stream.merge(second.number, 1)
        await stream.split(merged.number)
        await take_away(client, stream, 0, 1, second.number, merged.number)
        assert await stream.trim() == (0, 1, second.number, merged.number)
        assert (await stream.shards())[0].number == first.number
        await each_is_known(stream)


async def test_a_log_that_became_a_stream_passes_its_numbers_on(api: Api) -> None:
    async with api.connect() as client:
        async with client.open_writer("plain") as log:
            for number, key in enumerate(KEYS):
                await log.append(b"x", key=key, producer=(P, number))
        stream = client.stream("plain")
        await stream.split(0)
        await client.admin.truncate("plain", "latest")
        await client.admin.collect("plain")
        await each_is_known(stream)


async def test_a_run_that_is_sent_again_sends_what_is_missing(api: Api) -> None:
    async with a_stream(api, 3) as (_, stream):
        values = [b"%d" % number for number in range(len(KEYS))]
        async with stream.open_writer() as writer:
            cut = len(KEYS) // 2
            first = await writer.append_many(values[:cut], keys=KEYS[:cut], producer=(P, 0))
            assert len(first) == cut
            assert first.skipped == []
            again = await writer.append_many(values, keys=KEYS, producer=(P, 0))
            assert again.skipped == list(range(cut))
            assert len(again) == len(KEYS) - cut
            with pytest.raises(dlog.AlreadyExists):
                await writer.append_many(values, keys=KEYS, producer=(P, 0))
        found = by_key(await read_stream(stream))
        assert found == {key: [value] for key, value in zip(KEYS, values, strict=True)}


async def test_what_one_shard_lost_of_a_run_is_sent_again_to_it_alone(api: Api) -> None:
    """Some shards took all of the run, others nothing."""
    async with a_stream(api, 2) as (_, stream):
        low = [key for key in KEYS if key_hash(key) < 1 << 31]
        async with stream.open_writer() as writer:
            for number, key in enumerate(KEYS):
                if key in low:
                    await writer.append(b"x", key=key, producer=(P, number))
            await stream.split(0)
            ids = await writer.append_many([b"x"] * len(KEYS), keys=KEYS, producer=(P, 0))
            assert ids.skipped == [n for n, key in enumerate(KEYS) if key in low]
        assert by_key(await read_stream(stream)) == {key: [b"x"] for key in KEYS}


async def test_a_token_of_a_message_that_a_split_moved_never_says_send_it_again(api: Api) -> None:
    async with a_stream(api, 1) as (client, stream):
        async with stream.open_writer() as writer:
            tickets = []
            for number in range(400):
                tickets.append(await writer.submit(b"%d" % number, key=KEYS[number % len(KEYS)]))
                if number == 200:
                    await stream.split(0)
            tokens = [ticket.token for ticket in tickets]
            ids = [await ticket for ticket in tickets]
            assert len(set(ids)) == 400
            for token in tokens:
                assert not isinstance(await writer.resolve(token), dlog.Never)
                if token.log_uid == tokens[0].log_uid:
                    told = await client.resolve("orders/0", token)
                    assert not isinstance(told, dlog.Never)


async def as_of_old(api: Api, stream: Any) -> None:
    """As the version before made it: its shards have no uids of logs."""
    async with stores_of(api) as stores:
        path = stores.layout.stream(stream.name)
        raw, version = await stores.meta.get(path)
        fields = json.loads(raw)
        for shard in fields["shards"]:
            shard.pop("log_uid", None)
        await stores.meta.put(path, json.dumps(fields).encode(), version)


async def test_a_token_of_a_shard_of_an_older_version_is_known(api: Api) -> None:
    """Also behind a split, to its writer and to one that comes later, and until it is trimmed."""
    async with a_stream(api, 2) as (client, stream):
        await as_of_old(api, stream)
        async with stream.open_writer() as writer:
            tickets = [await writer.submit(b"x", key=key) for key in KEYS]
            tokens = {ticket.token: dlog.Present(await ticket) for ticket in tickets}
            assert {token: await writer.resolve(token) for token in tokens} == tokens
            await stream.split(0)
            await writer.append_many([b"y"] * len(KEYS), keys=KEYS)
            assert {token: await writer.resolve(token) for token in tokens} == tokens
        async with stream.open_writer() as writer:
            assert {token: await writer.resolve(token) for token in tokens} == tokens
            await take_away(client, stream, 0)
            await stream.trim()
            found = [await writer.resolve(token) for token in tokens]
            assert {type(each) for each in found} == {dlog.Present, dlog.TooLate}


async def test_a_token_of_a_message_that_moved_from_an_older_shard_never_says_send_it_again(
    api: Api,
) -> None:
    async with a_stream(api, 1) as (_, stream):
        await as_of_old(api, stream)
        async with stream.open_writer() as writer:
            tickets = []
            for number in range(400):
                tickets.append(await writer.submit(b"%d" % number, key=KEYS[number % len(KEYS)]))
                if number == 200:
                    await stream.split(0)
            tokens = [ticket.token for ticket in tickets]
            assert len({await ticket for ticket in tickets}) == 400
            for token in tokens:
                assert not isinstance(await writer.resolve(token), dlog.Never)


async def test_a_token_of_a_shard_that_was_trimmed_is_too_late(api: Api) -> None:
    async with a_stream(api, 1) as (client, stream):
        async with stream.open_writer() as writer:
            token = (await writer.submit(b"x", key=KEYS[0])).token
            await writer.flush()
            await stream.split(0)
            await writer.append(b"y", key=KEYS[0])
            assert isinstance(await writer.resolve(token), dlog.Present)
            await take_away(client, stream, 0)
            await stream.trim()
            assert isinstance(await writer.resolve(token), dlog.TooLate)
