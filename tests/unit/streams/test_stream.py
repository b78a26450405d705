"""What a stream, its writer and its reader tell and refuse, shard by shard, in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime
from itertools import count
from typing import Any

import pytest

from dlog import aio
from dlog.errors import (
    ConfigError,
    Conflict,
    NotFound,
    ReaderClosed,
    Truncated,
    Unsupported,
    WriterClosed,
)
from dlog.reader.resolve import Present
from dlog.streams.routing.hashing import key_hash
from dlog.streams.writer import rows

_worlds = itertools.count()


class Scene:
    def __init__(self, client: Any, stream: Any) -> None:
        self.client, self.stream = client, stream

    async def key_of(self, number: int) -> bytes:
        """One that goes to this shard."""
        (range,) = [each.range for each in await self.stream.shards() if each.number == number]
        return next(key for n in count() if range.contains(key_hash(key := b"%d" % n)))

    async def send(self, writer: Any, **many: int) -> None:
        """So many messages to shard s0, s1, …, in one entry each."""
        for name, size in many.items():
            key = await self.key_of(int(name[1:]))
            await writer.append_many([b"x"] * size, keys=[key] * size)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with aio.connect(f"memory:stream-{next(_worlds)}") as client:
        yield Scene(client, await client.create_stream("orders", shards=3))


# --- the stream


async def test_a_shard_is_split_in_equal_parts(scene: Scene) -> None:
    first = (await scene.stream.shards())[1].range
    for parts in (3, 2):
        number = (await scene.stream.shards())[1 if parts == 3 else -1].number
        whole = next(s.range for s in await scene.stream.shards() if s.number == number)
        made = await scene.stream.split(number, parts=parts)
        assert len(made) == parts
        sizes = [len(each.range) for each in made]
        assert max(sizes) - min(sizes) <= 1
        assert (made[0].range.first_hash, made[-1].range.last_hash) == (
            whole.first_hash,
            whole.last_hash,
        )
        for low, high in itertools.pairwise(made):
            assert low.range.last_hash + 1 == high.range.first_hash
    assert first == (await scene.stream.shards())[1].range


@pytest.mark.parametrize("parts", [1, 257, 2.0, True])
async def test_a_number_of_parts_that_makes_no_sense_is_refused(scene: Scene, parts: Any) -> None:
    with pytest.raises(ConfigError, match="2 to 256 parts"):
        await scene.stream.split(0, parts=parts)


async def test_a_shard_of_a_few_hashes_is_not_split_in_more(scene: Scene) -> None:
    first, _ = await scene.stream.split(0, at=3)
    assert len(first.range) == 3
    with pytest.raises(ConfigError, match="has 3 hashes, fewer than 4"):
        await scene.stream.split(first.number, parts=4)
    made = await scene.stream.split(first.number, parts=3)
    assert [len(each.range) for each in made] == [1, 1, 1]


async def test_tails_are_told_of_each_shard_with_those_before_it(scene: Scene) -> None:
    assert await scene.stream.tails() == (), "no log is made yet"
    async with scene.stream.open_writer() as writer:
        await scene.send(writer, s0=3, s2=5)
        await scene.stream.split(2)
        await scene.client.admin.truncate("orders/0", 2)
        await scene.send(writer, s3=1)
        tails = {each.number: each for each in await scene.stream.tails()}
    assert list(tails) == sorted(tails) == [0, 1, 2, 3, 4]
    rows = {
        n: (each.log, each.head_seq, each.next_seq, each.is_over, each.parents)
        for n, each in tails.items()
    }
    assert rows == {
        0: ("orders/0", 2, 3, False, ()),
        1: ("orders/1", 0, 0, False, ()),
        2: ("orders/2", 0, 5, True, ()),
        3: ("orders/3", 0, 1, False, ("orders/2",)),
        4: ("orders/4", 0, 0, False, ("orders/2",)),
    }
    silent = {number for number, each in tails.items() if each.last_time_us is None}
    assert silent == {1, 4}, "which never had a message"
    uids = {(await scene.client.admin.describe(each.log)).uid for each in tails.values()}
    assert {each.uid for each in tails.values()} == uids


async def test_only_what_is_empty_and_comes_first_is_trimmed(scene: Scene) -> None:
    """A parent that has messages keeps its children, however empty they are."""
    async with scene.stream.open_writer() as writer:
        await scene.send(writer, s0=2)
        await scene.stream.split(0)  # into 3 and 4
        await scene.stream.split(3)  # into 5 and 6; 3 has nothing
        await scene.stream.split(1)  # into 7 and 8; 1 has nothing
        assert await scene.stream.trim(dry_run=True) == (1,)
        assert [each.number for each in await scene.stream.shards()] == list(range(9))
        assert await scene.stream.trim() == (1,)
        await scene.client.admin.truncate("orders/0", "latest")
        assert await scene.stream.trim() == (0, 3)
        assert await scene.stream.trim() == ()
        left = [each.number for each in await scene.stream.shards()]
        assert left == [2, 4, 5, 6, 7, 8]
        with pytest.raises(NotFound):
            await scene.client.admin.describe("orders/1")


# --- the writer


async def test_a_writer_of_some_shards_has_these_and_no_others(scene: Scene) -> None:
    async with scene.stream.open_writer():
        keys = [await scene.key_of(number) for number in range(3)]
    async with scene.stream.open_writer(shards=[0, 2]) as writer:
        assert writer.shards == (0, 2)
        assert writer.epochs == {0: 2, 2: 2}
        for number in (0, 2):
            await writer.append(b"x", key=keys[number])
        with pytest.raises(Conflict, match="shard 1, which this writer does not have"):
            await writer.append(b"x", key=keys[1])
        with pytest.raises(Conflict, match="shard 1"):
            writer.shard_of(keys[1])
    for shards, told in (([0, 7], r"no shards \[7\]"), ([9], r"no shards \[9\]")):
        with pytest.raises(NotFound, match=told):
            await scene.stream.open_writer(shards=shards)
    with pytest.raises(ConfigError, match="would write nothing"):
        await scene.stream.open_writer(shards=[])


async def test_nothing_is_opened_of_a_stream_that_has_ended(scene: Scene) -> None:
    async with scene.stream.open_writer() as writer:
        await scene.send(writer, s1=1)
        key = await scene.key_of(1)
        await scene.stream.terminate()
        with pytest.raises(Conflict):
            await writer.append(b"x", key=key)
        for given in (key, None):
            with pytest.raises(Conflict, match="terminated"):
                await writer.append(b"x", key=given)
        assert writer.shards == ()
        await writer.flush()
    with pytest.raises(Unsupported, match="no shard of stream 'orders' is open"):
        await scene.stream.open_writer()


async def test_what_a_writer_sends_is_known_by_its_token(scene: Scene) -> None:
    async with scene.stream.open_writer() as writer:
        for number in range(3):
            ticket = await writer.submit(b"x", key=await scene.key_of(number))
            sent_id = await ticket
            found = await writer.resolve(ticket.token)
            assert isinstance(found, Present)
            assert found.id == sent_id
        strange = ticket.token
    other = await scene.client.create_stream("others", shards=1)
    async with other.open_writer() as writer:
        with pytest.raises(NotFound, match="of another stream"):
            await writer.resolve(strange)


@pytest.mark.parametrize(("window", "of_each"), [(30, 10), (9, 4), (1, 1)])
async def test_shards_share_the_window_of_their_writer(
    scene: Scene, window: int, of_each: int
) -> None:
    """In equal parts; small parts are 4 MiB each, if the window is no smaller."""
    async with scene.stream.open_writer(window_bytes=window << 20) as writer:
        await scene.send(writer, s0=1, s1=1, s2=1)
        options = [lane.writer._engine.options for lane in writer._following.lanes.values()]
        assert [each.window_bytes for each in options] == [of_each << 20] * 3


async def test_a_writer_that_is_closed_takes_nothing(scene: Scene) -> None:
    writer = await scene.stream.open_writer()
    key = await scene.key_of(0)
    assert (writer.closed, writer.moves, writer.version) == (False, 0, 1)
    assert repr(writer) == "<StreamWriter of 'orders', shards [0, 1, 2]>"
    ticket = await writer.submit(b"x", key=key)
    await writer.close()
    assert ticket.done
    await writer.close()
    assert writer.closed
    for given in (key, None):
        with pytest.raises(WriterClosed):
            await writer.append(b"x", key=given)
    with pytest.raises(WriterClosed):
        await writer.flush()
    assert repr(writer) == "<StreamWriter of 'orders', closed>"


async def test_messages_without_a_key_and_numbered_ones_find_their_shards(scene: Scene) -> None:
    """Without a key in turn; with a number always to the same shard, and once."""
    async with scene.stream.open_writer() as writer:
        uids = {(await scene.client.admin.describe(f"orders/{n}")).uid: n for n in writer.shards}
        tickets = [await writer.submit(b"x") for _ in range(9)]
        assert Counter(uids[each.token.log_uid] for each in tickets) == {0: 3, 1: 3, 2: 3}
        first = [await writer.submit(b"y", producer=(7, n)) for n in range(20)]
        assert len({each.token.log_uid for each in first}) > 1
        await writer.flush()
    async with scene.stream.open_reader(follow=False) as reader:
        assert Counter([each.message.value async for each in reader]) == {b"x": 9, b"y": 20}


@pytest.mark.parametrize(
    ("keys", "headers"),
    [(None, None), ([b"a", b"b"], None), (None, [{"h": b"1"}, None]), ([b"a", None], [None, None])],
)
def test_columns_go_together(keys: Any, headers: Any) -> None:
    """What is not given is None in each row; columns of other lengths are refused."""
    values = [b"1", b"2"]
    expected = [(value, keys and keys[n], headers and headers[n]) for n, value in enumerate(values)]
    assert list(rows(values, keys, headers)) == expected
    for longer in (values[:1], [*values, b"3"]):
        if keys is not None or headers is not None:
            with pytest.raises(ValueError, match=r"shorter|longer"):
                list(rows(longer, keys, headers))


# --- the reader


async def test_lag_is_told_of_each_shard_that_is_being_read(scene: Scene) -> None:
    async with scene.stream.open_writer() as writer:
        await scene.send(writer, s0=4, s1=6)
        async with scene.stream.open_reader(follow=True) as reader:
            lags = await reader.lag()
            assert {n: each.messages for n, each in lags.items()} == {0: 4, 1: 6, 2: 0}
            assert not reader.at_tail
            got = [await reader.read(3)]
            while sum(len(each) for each in got) < 10:
                got.append(await reader.read(1000))
                left = 10 - sum(len(each) for each in got)
                assert sum(each.messages for each in (await reader.lag()).values()) == left
            assert [len(got[0]), reader.has_rest] == [3, False]
            assert await reader.read(timeout=0.01) == []
            assert reader.at_tail
            seqs = {n: place.next_seq for n, place in reader.position.shards.items()}
            assert seqs == {0: 4, 1: 6, 2: 0}


async def test_a_reader_refuses_what_makes_no_sense(scene: Scene) -> None:
    async with scene.stream.open_writer() as writer:
        await scene.send(writer, s0=1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"order": "size"}, "order is 'arrival' or 'time'"),
        ({"patience_ms": -1}, "patience_ms"),
        ({"patience_ms": 3_600_001}, "patience_ms"),
        ({"patience_ms": 1.0}, "patience_ms"),
        ({"start": "now"}, "start is"),
        ({"start": datetime(2025, 1, 1)}, "time zone"),
    ]
    for options, told in wrong:
        with pytest.raises(ConfigError, match=told):
            await scene.stream.open_reader(**options)
    with pytest.raises(NotFound):
        await scene.stream.open_reader(shards=[7])
    for patience_ms in (0, 3_600_000):
        await (await scene.stream.open_reader(patience_ms=patience_ms)).close()
    reader = await scene.stream.open_reader()
    for many in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="max_messages"):
            await reader.read(many)
    for shard in (0, 7):
        with pytest.raises(ConfigError, match=r"skip\(\)|not being read"):
            await reader.skip(shard)
    await reader.close()
    await reader.close()
    with pytest.raises(ReaderClosed):
        await reader.read(1)


async def test_the_latest_of_some_shards_is_theirs(scene: Scene) -> None:
    """And of those that ended before nothing is read, whatever follows them."""
    async with scene.stream.open_writer() as writer:
        await scene.send(writer, s0=2, s1=2, s2=2)
        await scene.stream.split(2)  # into 3 and 4
        await scene.send(writer, s3=2)
        async with (
            scene.stream.open_reader(start="latest", shards=[0], follow=True) as one,
            scene.stream.open_reader(start="latest", follow=True) as whole,
        ):
            assert one.shards == (0,)
            assert whole.shards == (0, 1, 3, 4)
            await scene.send(writer, s0=1, s1=1, s4=1)
            assert [each.shard for each in await one.read(10)] == [0]
            got: list[int] = []
            while len(got) < 3:
                got += [each.shard for each in await whole.read(10)]
            assert sorted(got) == [0, 1, 4]


async def test_the_latest_is_not_what_ended_before_shards_that_nobody_wrote_yet(
    scene: Scene,
) -> None:
    """The logs of the new shards are not even made."""
    async with scene.stream.open_writer() as writer:
        await scene.send(writer, s2=2)
    await scene.stream.split(2)  # into 3 and 4
    async with scene.stream.open_reader(start="latest", follow=True) as reader:
        async with scene.stream.open_writer() as writer:
            await scene.send(writer, s3=1)
        got = await reader.read(10)
        assert [(each.shard, each.message.seq) for each in got] == [(3, 0)]


async def test_a_bounded_reading_ends_where_each_shard_ended_when_it_began(scene: Scene) -> None:
    """What is written meanwhile is not read, nor what follows a shard that went on."""
    async with scene.stream.open_writer() as writer:
        await scene.send(writer, s0=3, s1=1)
        await scene.stream.split(1)  # into 3 and 4
        await scene.send(writer, s3=2)
        reader = await scene.stream.open_reader(follow=False)
        await scene.send(writer, s0=5, s4=5, s3=5, s2=5)
        await scene.stream.split(0)
        got: Counter[int] = Counter()
        async for each in reader:
            got[each.shard] += 1
        assert got == {0: 3, 1: 1, 3: 2}
        assert reader.at_tail
        assert await reader.read(10) == []
        place = reader.position
        await reader.close()
        async with scene.stream.open_reader(start=place, follow=False) as rest:
            more = Counter([each.shard async for each in rest])
        assert more == {0: 5, 2: 5, 3: 5, 4: 5}


async def test_a_place_in_a_shard_that_was_trimmed_is_truncated_or_jumps(scene: Scene) -> None:
    async with scene.stream.open_writer() as writer:
        await scene.send(writer, s0=3)
        async with scene.stream.open_reader() as reader:
            await reader.read(1)
            place = reader.position
        await scene.stream.split(0)  # into 3 and 4
        await scene.send(writer, s3=1)
        await scene.client.admin.truncate("orders/0", "latest")
        assert await scene.stream.trim() == (0,)
    with pytest.raises(Truncated, match=r"\[0\]"):
        await scene.stream.open_reader(start=place)
    async with scene.stream.open_reader(start=place, on_truncated="jump", follow=False) as jumped:
        assert [each.shard async for each in jumped] == [3]


async def test_batches_and_messages_may_take_turns(scene: Scene) -> None:
    async with scene.stream.open_writer() as writer:
        await scene.send(writer, s0=4)
    async with scene.stream.open_reader(follow=False) as reader:
        assert len(await reader.read(1)) == 1
        assert reader.has_rest
        with pytest.raises(ConfigError, match="one by one first"):
            await reader.next_batch()
        assert reader.position.shards[0].next_seq == 1
        assert len(await reader.read(10)) == 3
        assert await reader.next_batch() is None
        assert reader.position.shards[0].next_seq == 4


async def test_a_read_that_is_cut_short_loses_nothing(scene: Scene) -> None:
    async with (
        scene.stream.open_writer() as writer,
        scene.stream.open_reader(follow=True) as reader,
    ):
        waiting = asyncio.ensure_future(reader.read(10))
        for _ in range(3):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await scene.send(writer, s1=2)
        assert [each.shard for each in await reader.read(10)] == [1, 1]
