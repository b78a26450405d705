"""What a reader of a stream could miss, across truncation, trim and removal, it is told."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import dlog
from dlog.streams import sources
from dlog.streams.driver import StreamDriver
from tests.api.adapter import Api, rest_of
from tests.api.streaming import KEYS, a_stream, by_key, logs_of, read_stream, truncate_all
from tests.api.waiting import eventually

pytestmark = pytest.mark.crosswise(seconds=1)

OLD, NEW, NEWER = b"old", b"new", b"newer"
READINGS: list[dict[str, Any]] = [
    {},
    {"follow": True},
    {"order": "time"},
    {"order": "time", "follow": True, "patience_ms": 10},
    {"shards": [0, 1, 2]},
]


async def _round(writer: Any, value: bytes) -> None:
    await writer.append_many([value] * len(KEYS), keys=KEYS)


async def _parent_and_children(stream: Any) -> None:
    """Shard 0 with a round of messages, and shards 1 and 2 behind it with another one."""
    async with stream.open_writer() as writer:
        await _round(writer, OLD)
        await stream.split(0)
        await _round(writer, NEW)


async def _all_of(reader: Any, count: int) -> list[dlog.FromShard]:
    found: list[dlog.FromShard] = []
    while len(found) < count:
        found += await reader.read(count - len(found))
    return found


async def _read_on(reader: Any, found: list[dlog.FromShard]) -> None:
    """Until it raises."""
    while True:
        found += await reader.read()


def _place(reader: Any) -> dlog.StreamPosition:
    return dlog.StreamPosition.parse(reader.position.to_text())


@pytest.mark.parametrize("reading", READINGS)
async def test_a_child_that_is_truncated_while_its_parent_is_read_is_told(
    api: Api, reading: dict[str, Any]
) -> None:
    async with a_stream(api, 1) as (client, stream):
        await _parent_and_children(stream)
        async with stream.open_reader(**reading) as reader:
            found = await reader.read(1)
            await truncate_all(client, stream, 1)
            with pytest.raises(dlog.Truncated, match=r"shard 1 \(log 'orders/1'\)") as told:
                await _read_on(reader, found)
            assert told.value.log == "orders/1"
            assert told.value.new_head > 0
            assert 1 not in logs_of(found)
            with pytest.raises(dlog.Truncated):  # and again: it is never passed in silence
                await _read_on(reader, found)
            place = _place(reader)
        with pytest.raises(dlog.Truncated, match="shard 1"):
            await read_stream(stream, start=place)
        assert logs_of(await read_stream(stream, start=place, on_truncated="jump")) <= {0, 2}


@pytest.mark.parametrize("reading", READINGS)
async def test_a_reader_that_jumps_goes_on_at_the_childs_head(
    api: Api, reading: dict[str, Any]
) -> None:
    async with a_stream(api, 1) as (client, stream):
        await _parent_and_children(stream)
        async with stream.open_reader(on_truncated="jump", **reading) as reader:
            found = await reader.read(1)
            await client.admin.truncate("orders/1", 2)
            found += await _all_of(reader, 2 * len(KEYS) - 3)
            assert logs_of(found) == {0, 1, 2}
            assert min(m.seq for shard, m in found if shard == 1) == 2


async def test_a_place_in_the_parent_remembers_what_the_children_had(api: Api) -> None:
    """Whether they were there when the reading began or not; also where nothing was read yet."""
    async with a_stream(api, 1) as (client, stream):
        async with stream.open_reader(follow=True) as reader:
            places = [_place(reader)]
        async with stream.open_writer() as writer:
            await _round(writer, OLD)
            async with stream.open_reader() as reader:
                places.append(_place(reader))
                await reader.read(1)
                places.append(_place(reader))
            await stream.split(0)
            await _round(writer, NEW)
        for place in places:
            assert (await read_stream(stream, start=place))[-1].shard in (1, 2)
        await client.admin.truncate("orders/2", 1)
        for place in places:
            with pytest.raises(dlog.Truncated, match="messages 0 to 0 of shard 2"):
                await read_stream(stream, start=place)
        await truncate_all(client, stream, 0)
        for place in places:
            with pytest.raises(dlog.Truncated):
                await read_stream(stream, start=place)
        whole = await read_stream(stream)
        assert logs_of(whole) == {1, 2}
        assert await read_stream(stream, start=dlog.StreamPosition(places[0].stream_uid)) == whole


async def test_the_earliest_is_what_is_there_when_the_reading_begins(api: Api) -> None:
    """What was truncated before is not missed, wherever the reading goes on from; what is truncated
    later is."""
    async with a_stream(api, 1) as (client, stream):
        await _parent_and_children(stream)
        await client.admin.truncate("orders/0", 1)
        await client.admin.truncate("orders/1", 2)
        places: list[dlog.StreamPosition] = []
        async with stream.open_reader() as reader:
            places.append(_place(reader))
            found = await reader.read(1)
            places.append(_place(reader))
            found += await rest_of(reader)
        assert len(found) == 2 * len(KEYS) - 3
        for place in places:
            assert dlog.StreamPosition.parse(place.to_text()) == place
            rest = await read_stream(stream, start=place)
            assert len(rest) >= len(found) - 1
        await client.admin.truncate("orders/1", 3)
        for place in places:
            with pytest.raises(dlog.Truncated, match="messages 2 to 2 of shard 1"):
                await read_stream(stream, start=place)
        async with stream.open_reader() as reader:
            assert len(await rest_of(reader)) == len(found) - 1


async def test_shards_that_were_trimmed_unread_are_told(api: Api) -> None:
    """The reader stood behind shard 0, before 1 had a message; when it comes back, 1 has ended,
    was truncated and trimmed, and what follows it has messages."""
    async with a_stream(api, 1) as (client, stream):
        async with stream.open_writer() as writer:
            await _round(writer, OLD)
        await stream.split(0)
        async with stream.open_reader(follow=True) as reader:
            await _all_of(reader, len(KEYS))
            await eventually(lambda: reader.at_tail)
            assert 0 not in reader.shards
            place = _place(reader)
        assert place.done == {0}
        async with stream.open_writer() as writer:
            await _round(writer, NEW)
            await stream.split(1)
            await _round(writer, NEWER)
        await truncate_all(client, stream, 0, 1)
        assert await stream.trim() == (0, 1)
        for reading in READINGS[:-1]:
            with pytest.raises(dlog.Truncated, match=r"\[1\].*trimmed"):
                await stream.open_reader(start=place, **reading)
        left = await read_stream(stream, start=place, on_truncated="jump")
        assert logs_of(left) == {2, 3, 4}
        whole = await read_stream(stream)
        assert by_key(whole) == by_key(left)
        # To a reading that began behind the trim nothing is missing, wherever it goes on.
        async with stream.open_reader() as reader:
            early = _place(reader)
            await reader.read(1)
            late = _place(reader)
        assert by_key(await read_stream(stream, start=early)) == by_key(whole)
        assert len(await read_stream(stream, start=late)) == len(whole) - 1


@pytest.mark.parametrize("on_truncated", ["raise", "jump"])
async def test_a_child_that_is_trimmed_while_its_parent_is_read_is_told(
    api: Api, on_truncated: str
) -> None:
    """The parent's messages are read ahead, so it was read when it was trimmed."""
    async with a_stream(api, 1) as (client, stream):
        await _parent_and_children(stream)
        async with stream.open_reader(on_truncated=on_truncated) as reader:
            found = await reader.read(1)
            await eventually(lambda: _was_read_ahead(reader, 0))
            await stream.split(1)
            await truncate_all(client, stream, 0, 1)
            assert set(await stream.trim()) == {0, 1}
            if on_truncated == "jump":
                assert logs_of(await rest_of(reader)) == {0, 2}
                return
            with pytest.raises(dlog.Truncated, match=r"\[1\].*trimmed"):
                await _read_on(reader, found)
            assert logs_of(found) <= {0, 2}


async def _places_in_the_parent(stream: Any, writer: Any) -> list[dlog.StreamPosition]:
    """In the midst of it, and behind all of it."""
    await _round(writer, OLD)
    async with stream.open_reader(follow=True) as reader:
        await _all_of(reader, len(KEYS) - 1)
        places = [_place(reader)]
        await _all_of(reader, 1)
        return [*places, _place(reader)]


@pytest.mark.parametrize("is_split_first", [False, True])
async def test_a_stream_that_was_terminated_and_trimmed_unread_is_told(
    api: Api, is_split_first: bool
) -> None:
    """None of its shards is listed any more. Whether the last ones were known to the place, or came
    later."""
    async with a_stream(api, 1) as (client, stream):
        async with stream.open_writer() as writer:
            places = await _places_in_the_parent(stream, writer)
            await stream.split(0)
            if is_split_first:
                async with stream.open_reader(start=places[1]) as reader:
                    places[1] = _place(reader)
            await _round(writer, NEW)
        await stream.terminate()
        async with stream.open_reader() as reader:
            await rest_of(reader)
            end = _place(reader)
        async with stream.open_reader(start=places[1], follow=True) as reader:
            await rest_of(reader)
            places_at_end = [end, _place(reader)]
        await truncate_all(client, stream, 0, 1, 2)
        assert await stream.trim() == (0, 1, 2)
        for place in places:
            for reading in READINGS[:-1]:
                with pytest.raises(dlog.Truncated, match=r"1, 2\].*trimmed"):
                    await stream.open_reader(start=place, **reading)
            assert await read_stream(stream, start=place, on_truncated="jump") == []
        for place in (*places_at_end, "earliest", "latest"):
            async with stream.open_reader(start=place) as reader:
                assert await rest_of(reader) == []
                again = _place(reader)
            assert await read_stream(stream, start=again) == []


async def test_shards_that_were_trimmed_empty_were_not_missed(api: Api) -> None:
    """Split and merged back before anybody wrote."""
    async with a_stream(api, 1) as (client, stream):
        async with stream.open_writer() as writer:
            _, place = await _places_in_the_parent(stream, writer)
            await stream.split(0)
            await stream.merge(1, 2)
            await _round(writer, NEW)
            await truncate_all(client, stream, 0)
            assert await stream.trim() == (0, 1, 2)
            assert by_key(await read_stream(stream, start=place)) == {key: [NEW] for key in KEYS}
        await stream.terminate()
        await truncate_all(client, stream, 3)
        assert await stream.trim() == (3,)
        with pytest.raises(dlog.Truncated, match=r"\[3\].*trimmed"):
            await read_stream(stream, start=place)


async def test_a_reader_goes_on_behind_shards_that_are_trimmed_empty(api: Api) -> None:
    """While it reads what is before them."""
    async with a_stream(api, 1) as (client, stream):
        async with stream.open_writer() as writer:
            await _round(writer, OLD)
            async with stream.open_reader(follow=True) as reader:
                found = await reader.read(1)
                await stream.split(0)
                await stream.merge(1, 2)
                await _round(writer, NEW)
                await eventually(lambda: _was_read_ahead(reader, 0))
                await truncate_all(client, stream, 0)
                assert await stream.trim() == (0, 1, 2)
                found += await _all_of(reader, 2 * len(KEYS) - 1)
            assert by_key(found) == {key: [OLD, NEW] for key in KEYS}


async def test_what_is_half_trimmed_is_told_as_what_is_trimmed(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever trims dies behind the list, and the logs are there still."""

    class Died(Exception):
        pass

    async def die(*_: object) -> None:
        raise Died

    async with a_stream(api, 1) as (client, stream):
        async with stream.open_writer() as writer:
            midst, end = await _places_in_the_parent(stream, writer)
            await stream.split(0)
            await _round(writer, NEW)
        await truncate_all(client, stream, 0)
        with monkeypatch.context() as patch:
            patch.setattr(StreamDriver, "remove", die)
            with pytest.raises(Died):
                await stream.trim()
        assert by_key(await read_stream(stream, start=end)) == {key: [NEW] for key in KEYS}
        with pytest.raises(dlog.Truncated, match=r"\[0\].*trimmed"):
            await read_stream(stream, start=midst)


@pytest.mark.parametrize("is_merged", [False, True])
async def test_from_a_time_on_shards_that_were_trimmed_empty_were_not_missed(
    api: Api, is_merged: bool
) -> None:
    """Nothing was before them, or only what is older."""
    async with a_stream(api, 1) as (client, stream):
        start = datetime.fromtimestamp(0, UTC)
        if is_merged:
            async with stream.open_writer() as writer:
                await _round(writer, OLD)
            last_us = max(m.timestamp_us for _, m in await read_stream(stream))
            start += timedelta(microseconds=last_us + 1)
        await stream.split(0)
        if is_merged:
            await stream.merge(1, 2)
            async with stream.open_writer():
                pass
            await truncate_all(client, stream, 0)
        gone = await stream.trim()
        assert gone == ((0, 1, 2) if is_merged else (0,))
        async with stream.open_reader(start=start) as reader:
            assert await rest_of(reader) == []
        if is_merged:
            with pytest.raises(dlog.Truncated, match=r"shards \[0\]"):
                await stream.open_reader(start=start - timedelta(microseconds=1))


async def test_a_shard_that_was_read_to_its_end_is_not_missed_when_it_is_trimmed(
    api: Api,
) -> None:
    """Though the reader had not heard that this was its end."""
    async with a_stream(api, 1) as (client, stream):
        async with stream.open_writer() as writer:
            await _round(writer, OLD)
            async with stream.open_reader(follow=True) as reader:
                read = 0
                while read < len(KEYS):
                    before = _place(reader)
                    read += len(await reader.read(1))
                place = _place(reader)
            await stream.split(0)
            await _round(writer, NEW)
        await truncate_all(client, stream, 0)
        assert await stream.trim() == (0,)
        assert by_key(await read_stream(stream, start=place)) == {key: [NEW] for key in KEYS}
        with pytest.raises(dlog.Truncated, match=r"\[0\].*trimmed"):
            await stream.open_reader(start=before)


def _was_read_ahead(reader: Any, shard: int) -> bool:
    inner = getattr(reader, "inner", reader)
    source = getattr(inner, "_inner", inner)._sources.get(shard)
    return source is None or source.is_over or source._has_ended


async def test_from_a_time_on_what_was_trimmed_may_be_missed(api: Api) -> None:
    """A reader is told, unless what is left says that all that is gone was older."""
    async with a_stream(api, 1) as (client, stream):
        await _parent_and_children(stream)
        first_us = min(m.timestamp_us for _, m in await read_stream(stream))
        old = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=first_us)
        assert len(await read_stream(stream, start=old)) == 2 * len(KEYS)
        await truncate_all(client, stream, 0)
        for _ in range(2):
            with pytest.raises(dlog.Truncated, match="written from"):
                await read_stream(stream, start=old)
            assert logs_of(await read_stream(stream, start=old, on_truncated="jump")) == {1, 2}
            await stream.trim()
        assert await read_stream(stream, start=datetime.now(UTC)) == []


async def test_from_a_time_behind_what_was_trimmed_nothing_is_missed(api: Api) -> None:
    """What stays of a trimmed shard says when its last message was written; those that follow it
    have none, and not even logs."""
    async with a_stream(api, 1) as (client, stream):
        async with stream.open_writer() as writer:
            await _round(writer, OLD)
        last_us = max(m.timestamp_us for _, m in await read_stream(stream))
        await stream.split(0)
        await truncate_all(client, stream, 0)
        assert await stream.trim() == (0,)
        last = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=last_us)
        with pytest.raises(dlog.Truncated, match=r"shards \[0\]"):
            await stream.open_reader(start=last)
        behind = last + timedelta(microseconds=1)
        async with stream.open_reader(start=behind, follow=True) as reader:
            async with stream.open_writer() as writer:
                await _round(writer, NEW)
            found = await _all_of(reader, len(KEYS))
            assert by_key(found) == {key: [NEW] for key in KEYS}


async def test_a_stream_that_was_made_again_is_not_read(api: Api) -> None:
    """Not by a reader that waits for a log that is not made yet."""
    async with a_stream(api, 2) as (client, stream):
        found: list[dlog.FromShard] = []
        async with stream.open_reader(follow=True) as reader:
            await eventually(lambda: reader.at_tail)
            await stream.remove()
            await client.create_stream("orders", shards=2)
            async with client.stream("orders").open_writer() as writer:
                await _round(writer, NEW)
                with pytest.raises(dlog.NotFound, match="removed"):
                    await _read_on(reader, found)
            assert found == []


async def test_a_stream_that_is_removed_ends_its_readers(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of shards that nobody ever wrote to."""
    monkeypatch.setattr(sources, "LOOK_AGAIN_MS", 10.0)
    async with a_stream(api, 2) as (_, stream):
        found: list[dlog.FromShard] = []
        async with stream.open_reader(follow=True) as reader:
            assert await reader.read(timeout=0.01) == []
            await stream.remove()
            with pytest.raises(dlog.NotFound):
                await _read_on(reader, found)
            assert found == []


@pytest.mark.parametrize("follow", [False, True])
async def test_a_stream_that_is_made_again_behind_a_parent_is_not_read(
    api: Api, follow: bool
) -> None:
    """The reader has all of the old parent, and comes to the children."""
    async with a_stream(api, 1) as (client, stream):
        await _parent_and_children(stream)
        async with stream.open_reader(follow=follow) as reader:
            found = await reader.read(1)
            await eventually(lambda: _was_read_ahead(reader, 0))
            await stream.remove()
            await client.create_stream("orders", shards=3)
            async with stream.open_writer() as writer:
                await _round(writer, NEWER)
            with pytest.raises(dlog.NotFound):
                await _read_on(reader, found)
            assert {message.value for _, message in found} == {OLD}


async def test_some_shards_of_a_place_are_read_alone(api: Api) -> None:
    """A place in all shards begins those only that are asked for; the others stay where they
    were."""
    async with a_stream(api, 3) as (_, stream):
        async with stream.open_writer() as writer:
            await _round(writer, OLD)
            async with stream.open_reader(follow=True) as reader:
                await _all_of(reader, len(KEYS))
                place = _place(reader)
            await _round(writer, NEW)
        async with stream.open_reader(start=place, shards=[1]) as reader:
            assert logs_of(await rest_of(reader)) == {1}
            behind = _place(reader)
        assert logs_of(await read_stream(stream, start=behind)) == {0, 2}


async def test_a_copy_misses_nothing_that_it_never_had(api: Api, tmp_path: Path) -> None:
    """A log that is a copy begins where the other one's head was."""
    async with api.open_writer("log") as writer:
        await writer.append_many([OLD] * 5)
    async with api.connect() as client:
        await client.admin.truncate("log", 3)
    there = f"file:{tmp_path / 'there'}"
    assert (await api.copy_log(api.url, "log", there)).first_seq == 3
    async with api.connect(there) as client:
        stream = client.stream("log")
        async with stream.open_reader(follow=True) as reader:
            place = _place(reader)
        for start in ("earliest", place, datetime.now(UTC)):
            found = await read_stream(stream, start=start)
            assert len(found) == (0 if isinstance(start, datetime) else 2)
        await client.admin.truncate("log", 4)
        with pytest.raises(dlog.Truncated, match="head is at seq 4"):
            await read_stream(stream, start=place)
