"""How the writer and the reader of a stream end: closed, closed again, dropped, forked, cut short;
and what of it their users are told."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from dlog import aio, limits
from dlog.errors import (
    Corrupt,
    DlogError,
    Fenced,
    NotFound,
    Outcome,
    ReaderClosed,
    Timeout,
    WriterClosed,
)
from dlog.streams.following import Table
from dlog.streams.routing.hashing import key_hash
from dlog.streams.sources import BATCHES_AHEAD
from tests.api.waiting import eventually

_worlds = itertools.count()
NEVER_MS = 60_000  # an entry that waits so long for company is not sent while a test runs


@pytest.fixture
async def stream() -> AsyncIterator[Any]:
    async with aio.connect(f"memory:handles-{next(_worlds)}") as client:
        yield await client.create_stream("orders", shards=2)


def key_of(number: int) -> bytes:
    """One that goes to this shard, of two."""
    return next(key for n in count() if key_hash(key := b"%d" % n) >> 31 == number)


async def in_a_child(handle: Any, call: Any) -> Any:
    """As if the process had forked since the handle was made."""
    handle._pid = os.getpid() + 1
    try:
        return await call()
    finally:
        handle._pid = os.getpid()


async def fenced_with_a_message(stream: Any) -> tuple[Any, Any]:
    """A writer that lost its shards with a message which nobody asked about, and who has them."""
    writer = await stream.open_writer(linger_ms=NEVER_MS)
    await writer.submit(b"lost", key=key_of(0))
    return writer, await stream.open_writer()


# --- closing a writer


async def test_a_writer_that_is_closed_in_a_forked_child_goes_on_in_its_own_process(
    stream: Any,
) -> None:
    async with stream.open_writer() as writer:
        await in_a_child(writer, writer.close)
        assert not writer.closed
        await writer.append(b"x", key=key_of(0))


async def test_messages_that_were_lost_are_told_by_close_and_once(stream: Any) -> None:
    writer, other = await fenced_with_a_message(stream)
    with pytest.raises(Fenced):
        await writer.close()
    assert writer.closed
    await writer.close()
    await other.close()


async def test_a_block_that_ends_well_raises_what_its_close_raises(stream: Any) -> None:
    writer, other = await fenced_with_a_message(stream)
    with pytest.raises(Fenced):
        async with writer:
            pass
    await other.close()


async def test_a_block_that_fails_raises_its_own_error_and_notes_the_one_of_close(
    stream: Any,
) -> None:
    writer, other = await fenced_with_a_message(stream)
    with pytest.raises(ValueError, match="of the program") as caught:
        async with writer:
            raise ValueError("of the program")
    (note,) = caught.value.__notes__
    assert note.startswith("closing the writer failed, too: ")
    assert writer.closed
    await other.close()


async def test_a_block_that_fails_closes_its_writer_and_what_it_sent_is_there(stream: Any) -> None:
    writer = await stream.open_writer(linger_ms=NEVER_MS)
    await writer.submit(b"sent", key=key_of(0))
    with pytest.raises(ValueError, match="of the program") as caught:
        async with writer:
            raise ValueError("of the program")
    assert not hasattr(caught.value, "__notes__")
    assert writer.closed
    async with stream.open_reader() as reader:
        assert [each.message.value for each in await reader.read()] == [b"sent"]


async def test_a_wait_for_close_that_is_cancelled_leaves_it_to_go_on(stream: Any) -> None:
    writer = await stream.open_writer(linger_ms=NEVER_MS)
    ticket = await writer.submit(b"sent", key=key_of(0))
    closing = asyncio.create_task(writer.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await ticket
    await writer.close()
    assert writer.closed


async def test_a_close_whose_time_is_over_tells_all_that_wait(stream: Any) -> None:
    """Whoever waits for the same end without a bound is let go as well."""
    writer = await stream.open_writer(linger_ms=NEVER_MS)
    hang(writer)
    ticket = await writer.submit(b"hangs", key=key_of(0))
    patient = asyncio.create_task(writer.close())
    await asyncio.sleep(0)
    cancelled = asyncio.create_task(writer.close())
    await asyncio.sleep(0)
    with pytest.raises(Timeout):
        await writer.close(timeout=0)
    cancelled.cancel()
    with pytest.raises(WriterClosed):
        await ticket
    await patient
    with pytest.raises(asyncio.CancelledError):  # by its own caller
        await cancelled
    assert writer.closed
    with pytest.raises(WriterClosed):
        await writer.append(b"x", key=key_of(1))


def hang(writer: Any) -> None:
    """Nothing that it is to close comes to its end."""

    async def forever(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    for lane in writer._following.lanes.values():
        lane.writer._engine.close = forever


# --- dropping a writer


async def test_a_writer_that_is_dropped_tells_what_it_cost_and_who_waits(stream: Any) -> None:
    """Its shards are let go: nothing of it is sent any more."""
    writer = await stream.open_writer(linger_ms=NEVER_MS)
    tickets = [await writer.submit(b"x", key=key_of(n)) for n in (0, 1, 1)]
    assert "3 messages were not acknowledged" in writer.drop()
    for ticket in tickets:
        with pytest.raises(WriterClosed):
            await ticket
    assert writer.closed
    with pytest.raises(WriterClosed):
        await writer.append(b"x", key=key_of(0))


def test_a_writer_may_be_dropped_behind_the_end_of_its_loop() -> None:
    url = f"memory:handles-{next(_worlds)}"

    async def story() -> Any:
        client = aio.connect(url)
        stream = await client.create_stream("orders", shards=2)
        return client, await stream.open_writer()

    client, writer = asyncio.run(story())
    assert "0 messages were not acknowledged" in writer.drop()
    del writer, client


# --- waiting for shards


async def test_a_message_that_waited_too_long_for_its_shard_was_not_sent(stream: Any) -> None:
    """While it is looked up whose its key is by now: it may be sent again."""
    async with stream.open_writer(shards=[0]) as writer:
        following = writer._following
        following.moving = asyncio.create_task(asyncio.Event().wait())
        try:
            with pytest.raises(Timeout, match="within 0") as caught:
                await writer.append(b"x", key=key_of(1), timeout=0)
            assert caught.value.outcome is Outcome.NOT_HAPPENED
        finally:
            following.moving.cancel()
            following.moving = None


# --- closing a reader


async def test_a_reader_that_is_closed_in_a_forked_child_ends_nothing_of_its_parent(
    stream: Any,
) -> None:
    async with stream.open_writer() as writer:
        reader = await stream.open_reader(follow=True)
        tasks = [source.task for source in reader._sources.values()]
        await in_a_child(reader, reader.close)
        await asyncio.sleep(0)
        assert not any(task.done() or task.cancelling() for task in tasks)
        await reader.close()
        assert all(task.done() for task in tasks)
        await writer.append(b"x", key=key_of(0))


async def test_a_reader_that_could_not_close_its_client_says_so_once(stream: Any) -> None:
    class Client:
        closed = 0

        async def close(self) -> None:
            self.closed += 1
            raise NotFound("of the client")

    reader, client = await stream.open_reader(follow=True), Client()
    reader.own(client)
    with pytest.raises(NotFound, match="of the client"):
        await reader.close()
    await reader.close()
    assert client.closed == 1
    with pytest.raises(ReaderClosed):
        await reader.read()


@pytest.mark.parametrize("kind", ["open_writer", "open_reader"])
async def test_whoever_closes_while_another_does_waits_for_the_same_end(
    stream: Any, kind: str
) -> None:
    class Client:
        closed = 0

        def __init__(self) -> None:
            self.may_end = asyncio.Event()

        async def close(self) -> None:
            self.closed += 1
            await self.may_end.wait()

    handle, client = await getattr(stream, kind)(), Client()
    handle.own(client)
    first = asyncio.create_task(handle.close())
    await eventually(lambda: client.closed)
    second = asyncio.create_task(handle.close())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    client.may_end.set()
    await asyncio.gather(first, second)
    assert client.closed == 1


async def test_a_reader_that_is_closed_ends_the_read_that_waits(stream: Any) -> None:
    async with stream.open_writer():
        reader = await stream.open_reader(follow=True)
        waiting = asyncio.create_task(reader.read())
        await asyncio.sleep(0)
        await reader.close()
        with pytest.raises(ReaderClosed):
            await waiting


# --- what a reader has of each shard


async def test_a_reader_is_not_at_the_tail_while_it_has_what_it_did_not_hand_out(
    stream: Any,
) -> None:
    async with stream.open_writer() as writer:
        for number in (0, 1):
            await writer.append(b"x", key=key_of(number))
        async with stream.open_reader(follow=True) as reader:
            assert not reader.at_tail, "nobody looked yet"
            sources = reader._sources.values()
            await eventually(lambda: all(each.reader and each.reader.at_tail for each in sources))
            assert not reader.at_tail, "both were fetched"
            await reader.next_batch()
            assert not reader.at_tail, "one is left"
            await reader.next_batch()
            assert reader.at_tail


async def test_a_shard_whose_log_is_not_made_yet_is_at_its_tail(stream: Any) -> None:
    async with stream.open_reader(follow=True) as reader:
        await eventually(lambda: reader.at_tail)
        async with stream.open_writer() as writer:
            await writer.append(b"x", key=key_of(1))
            (found,) = await reader.read()
            assert (found.shard, found.message.value) == (1, b"x")


async def test_of_a_shard_that_nobody_reads_only_a_few_batches_are_fetched(stream: Any) -> None:
    """And all of them come, in order, as soon as somebody does."""
    many = 4 * BATCHES_AHEAD
    async with stream.open_writer() as writer:
        for number in range(many):
            await writer.append(b"%d" % number, key=key_of(0))
    async with stream.open_reader(follow=False) as reader:
        source = reader._sources[0]
        await eventually(lambda: not source.room.is_set())
        assert len(source.ready) == BATCHES_AHEAD
        found = []
        while (batch := await reader.next_batch()) is not None:
            assert len(source.ready) <= BATCHES_AHEAD
            found += [message.value for message in batch.batch.to_pylist()]
        assert found == [b"%d" % number for number in range(many)]


async def test_a_place_at_the_end_of_a_shard_is_read_no_further(stream: Any) -> None:
    async with stream.open_writer() as writer:
        await writer.append(b"old", key=key_of(0))
        async with stream.open_reader(follow=False) as reader:
            assert len(await reader.read()) == 1
            place = reader.position
        async with stream.open_reader(start=place, follow=False) as reader:
            assert await reader.read() == []
        await writer.append(b"new", key=key_of(0))
        async with stream.open_reader(start=place, follow=False) as reader:
            assert [each.message.value for each in await reader.read()] == [b"new"]


class Damaged:
    """The log of a shard, one entry of which cannot be had until it is skipped."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.is_bad = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def skip(self) -> None:
        self.is_bad = False
        await self._reader.seek("latest")

    async def batches(self) -> Any:
        if self.is_bad:
            raise Corrupt("an entry of garbage")
        async for batch in self._reader.batches():
            yield batch


async def test_behind_an_entry_that_cannot_be_decoded_reading_goes_on_when_it_is_skipped(
    stream: Any,
) -> None:
    async with stream.open_writer() as writer:
        await writer.append(b"bad", key=key_of(0))
        async with stream.open_reader(follow=True) as reader:
            source = reader._sources[0]
            opened = source._open

            async def open_damaged(at: Any) -> Any:
                source.reader = Damaged(await opened(at))
                return source.reader

            source._open = open_damaged
            for _ in range(2):  # and again, until it is skipped
                with pytest.raises(Corrupt):
                    await reader.read()
            with pytest.raises(DlogError, match="has none"):
                await reader.skip(1)
            await reader.skip(0)
            with pytest.raises(DlogError, match="has none"):
                await reader.skip(0)
            await writer.append(b"good", key=key_of(0))
            assert [each.message.value for each in await reader.read()] == [b"good"]


# --- what is remembered of keys


class Counting(dict[bytes, Any]):
    most = 0

    def __setitem__(self, key: bytes, value: Any) -> None:
        super().__setitem__(key, value)
        self.most = max(self.most, len(self))


class Everything:
    def owner_of(self, key: bytes) -> int:
        return 0


def test_of_so_many_keys_the_shard_is_remembered_and_no_more() -> None:
    """A program with ever new keys takes no more memory for them."""
    known, lane = Counting(), object()
    table = Table(Everything(), {0: lane}, (lane,), known)  # type: ignore[arg-type, dict-item]
    for number in range(limits.STREAM_KEYS_KNOWN + 100):
        assert table.find(b"%d" % number) is lane
    assert known.most == limits.STREAM_KEYS_KNOWN
    assert table.find(b"%d" % number) is lane
    assert len(known) == 100, "all of them were forgotten at once"


async def test_who_waited_for_shards_in_vain_is_told_that_nothing_was_sent(stream: Any) -> None:
    """In words, and by the outcome."""
    async with stream.open_writer() as writer:
        following = writer._following
        following.moving = moving = asyncio.create_task(asyncio.Event().wait())
        try:
            for waiting in (writer.look_again(0), writer._until_moved(following.table, 0.0, 0)):
                with pytest.raises(Timeout) as told:
                    await waiting
                assert told.value.outcome is Outcome.NOT_HAPPENED
                assert "nothing was sent" in told.value.message
                assert "may still happen" not in told.value.message
        finally:
            following.moving = None
            moving.cancel()


async def test_a_writer_that_cannot_be_registered_is_closed(
    stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be told as dropped without close()."""
    made: list[Any] = []

    async def refuse(writer: Any, options: Any, given: Any) -> None:
        made.append(writer)
        raise NotFound("the document is gone")

    monkeypatch.setattr(stream._configs, "add_stream_writer", refuse)
    with pytest.raises(NotFound):
        await stream.open_writer()
    (writer,) = made
    assert writer.closed
