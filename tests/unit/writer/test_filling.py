"""The segment of a job while it is closed: what is taken is in it, and nothing more is taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dlog import WriterClosed, aio, backends
from dlog.clock import SystemClock
from tests.api.waiting import eventually

PLACE, NAME = "filling", "log"
NARROW = {"window_bytes": 1024, "entry_bytes": 512, "window_entries": 2}


@pytest.fixture
async def client() -> AsyncIterator[aio.Client]:
    try:
        async with aio.connect(f"memory:{PLACE}") as client:
            await client.admin.create(NAME)
            yield client
    finally:
        backends._memory_worlds.pop(PLACE, None)


async def test_an_append_that_waits_for_room_while_its_segment_is_closed_is_refused(
    client: aio.Client,
) -> None:
    """What it had taken by then is in the segment, whole and in order."""
    segment = await client.admin.open_segment(NAME, job="job", **NARROW)
    values = [b"%0200d" % number for number in range(500)]
    appending = asyncio.create_task(segment.append_many(values))
    await eventually(lambda: segment.messages > 0)
    assert not appending.done(), "the window is full"
    filled = await segment.close()
    with pytest.raises(WriterClosed, match="is closed"):
        await appending
    assert 0 < filled.messages < len(values)
    await client.admin.publish_segments(NAME, [filled], key=("query", 0))
    async with client.open_reader(NAME) as reader:
        found = [message.value async for message in reader]
    assert found == values[: filled.messages]


@pytest.mark.parametrize("count", [1, 3, 200])
async def test_a_close_takes_what_waits_for_company(client: aio.Client, count: int) -> None:
    segment = await client.admin.open_segment(NAME, job="job")
    await segment.append_many([b"%d" % number for number in range(count)])
    filled = await segment.close()
    assert filled.messages == count
    assert filled.last_time_us >= filled.first_time_us > 0
    with pytest.raises(WriterClosed):
        await segment.append_many([b"late"])
    assert await segment.close() == filled


async def test_a_segment_without_messages_leaves_no_ledger(client: aio.Client) -> None:
    segment = await client.admin.open_segment(NAME, job="job")
    filled = await segment.close()
    assert (filled.messages, filled.bytes) == (0, 0)
    stores = await client._stores(False)
    assert [each async for each in stores.ledgers.scan_ids()] == []


async def test_a_segment_is_never_older_than_what_stood_in_the_log(
    client: aio.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the job is an hour behind that of the log's last writer."""
    async with client.open_writer(NAME) as log:
        await log.append(b"first")
    async with client.open_reader(NAME) as reader:
        (first,) = await reader.read(1)
    real = SystemClock.wall_us
    monkeypatch.setattr(SystemClock, "wall_us", lambda self: real(self) - 3_600_000_000)
    segment = await client.admin.open_segment(NAME, job="job")
    await segment.append_many([b"second"])
    filled = await segment.close()
    assert filled.first_time_us >= first.timestamp_us
    await client.admin.publish_segments(NAME, [filled], key=("query", 0))
    async with client.open_reader(NAME) as reader:
        assert [message.value async for message in reader] == [b"first", b"second"]
