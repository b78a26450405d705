"""What goes in comes out: values, keys, headers and times of every shape, by every verb."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest

import dlog
from tests.api.adapter import Api

pytestmark = pytest.mark.crosswise(seconds=1)

ALL_BYTES = bytes(range(256))


async def test_append_returns_the_id_the_reader_shows(api: Api) -> None:
    async with api.open_writer() as log:
        first = await log.append(b"paid", key=b"42", headers={"by": b"web"})
        second = await log.append(b"shipped")
    assert isinstance(first, dlog.MessageId)
    assert first < second
    messages = await api.read_all()
    assert [(m.id, m.seq, m.key, m.value, m.headers, m.epoch) for m in messages] == [
        (first, 0, b"42", b"paid", (("by", b"web"),), 1),
        (second, 1, None, b"shipped", (), 1),
    ]


async def test_an_append_is_readable_at_once_by_another_client(api: Api) -> None:
    async with api.open_writer() as log:
        for number in range(20):
            value = b"%d" % number
            await log.append(value)
            assert (await api.values())[-1] == value


async def test_a_tombstone_is_not_empty(api: Api) -> None:
    async with api.open_writer() as log:
        await log.append(None, key=b"k")
        await log.append(b"", key=b"")
        await log.append_many([None, b"", b"x"])
    messages = await api.read_all()
    assert [(m.key, m.value) for m in messages] == [
        (b"k", None),
        (b"", b""),
        (None, None),
        (None, b""),
        (None, b"x"),
    ]


async def test_headers_keep_their_order_and_their_duplicates(api: Api) -> None:
    pairs = [("b", b"1"), ("a", ALL_BYTES), ("b", b""), ("", b"no name"), ("ключ 🗝", b"\xff")]
    async with api.open_writer() as log:
        await log.append(b"x", headers=pairs)
        await log.append(b"y", headers=iter(pairs[:2]))
        await log.append(b"z", headers={})
    first, second, third = await api.read_all()
    assert first.headers == tuple(pairs)
    assert second.headers == tuple(pairs[:2])
    assert third.headers == ()


async def test_any_bytes_survive(api: Api) -> None:
    values = [b"\x00", ALL_BYTES, ALL_BYTES[::-1] * 99, b"\n\r\0", os.urandom(70_001)]
    async with api.open_writer() as log:
        ids = [await log.append(value, key=value[:500]) for value in values]
    messages = await api.read_all()
    assert [m.value for m in messages] == values
    assert [m.key for m in messages] == [value[:500] for value in values]
    assert [m.id for m in messages] == ids


async def test_bytes_like_values_are_taken_as_they_are_now(api: Api) -> None:
    value = bytearray(b"before")
    async with api.open_writer() as log:
        ticket = await log.submit(value, key=memoryview(b"key"), headers={"h": bytearray(b"v")})
        value[:] = b"behind"
        await ticket
    (message,) = await api.read_all()
    assert (message.value, message.key, message.headers) == (b"before", b"key", (("h", b"v"),))


async def test_event_times_are_the_users_and_stamps_are_the_writers(api: Api) -> None:
    berlin = datetime(2024, 5, 6, 9, 8, 7, 123456, tzinfo=timezone(timedelta(hours=2)))
    before = datetime.now(UTC)
    async with api.open_writer() as log:
        await log.append(b"a", event_time=berlin)
        await log.append(b"b", event_time=-5)
        await log.append(b"c", event_time=0)
        await log.append(b"d")
    times = [m.event_time_us for m in await api.read_all()]
    assert times == [1_714_979_287_123_456, -5, 0, None]
    stamps = [m.timestamp_us for m in await api.read_all()]
    after = datetime.now(UTC)
    assert stamps == sorted(stamps)
    assert before.timestamp() * 1e6 - 1 <= stamps[0] <= stamps[-1] <= after.timestamp() * 1e6 + 1


def count_up(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield b"%d" % number


async def test_append_many_takes_a_generator(api: Api) -> None:
    async with api.open_writer() as log:
        ids = await log.append_many(count_up(20_000))
    assert len(ids) == 20_000
    messages = await api.read_all()
    assert [m.value for m in messages] == list(count_up(20_000))
    assert [m.id for m in messages] == list(ids)
    assert [m.seq for m in messages] == list(range(20_000))


async def test_append_many_of_nothing_is_nothing(api: Api) -> None:
    async with api.open_writer() as log:
        for atomic in (False, True):
            ids = await log.append_many([], atomic=atomic)
            assert len(ids) == 0
            assert list(ids) == []
            assert repr(ids) == "<IdRun empty>"
    assert await api.values() == []


@pytest.mark.parametrize("atomic", [False, True])
async def test_append_many_with_keys_and_headers(api: Api, atomic: bool) -> None:
    keys = [b"k0", None, b"k2"]
    headers = [None, {"h": b"1"}, [("h", b"2"), ("h", b"3")]]
    async with api.open_writer() as log:
        await log.append_many([b"a", None, b"c"], keys=keys, headers=headers, atomic=atomic)
    messages = await api.read_all()
    assert [(m.value, m.key, m.headers) for m in messages] == [
        (b"a", b"k0", ()),
        (None, None, (("h", b"1"),)),
        (b"c", b"k2", (("h", b"2"), ("h", b"3"))),
    ]


async def test_an_atomic_run_is_one_entry_of_its_own(api: Api) -> None:
    async with api.open_writer(entry_bytes=64) as log:
        await log.submit(b"before")
        ids = await log.append_many(count_up(500), atomic=True)
        await log.append(b"behind")
    assert len({(each.ledger_id, each.entry_id) for each in ids}) == 1
    assert [each.batch_idx for each in ids] == list(range(500))
    assert await api.values() == [b"before", *count_up(500), b"behind"]


async def test_runs_and_single_messages_keep_the_order_they_were_given(api: Api) -> None:
    async with api.open_writer(entry_bytes=1000) as log:
        for number in range(30):
            await log.submit(b"s%d" % number)
            await log.append_many([b"m%d" % number, bytearray(b"n%d" % number)])
            await log.append_many([b"a%d" % number], atomic=True)
    wanted = [b"%s%d" % (kind, n) for n in range(30) for kind in (b"s", b"m", b"n", b"a")]
    assert await api.values() == wanted


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
async def test_codecs_change_the_size_and_nothing_else(file_api: Api, codec: str) -> None:
    values = [b"abc" * 3000, os.urandom(5000), b"", None]
    async with file_api.open_writer(codec=codec) as log:
        for value in values:
            await log.append(value, key=b"k" * 300)
        await log.append_many([b"same" * 100] * 1000)
    messages = await file_api.read_all()
    assert [m.value for m in messages] == [*values, *[b"same" * 100] * 1000]
    assert {m.key for m in messages[:4]} == {b"k" * 300}
    async with file_api.connect() as client:
        (segment,) = await client.admin.segments("log")
    assert (segment.bytes > 400_000) == (codec == "none")


async def test_small_entries_cut_batches(api: Api) -> None:
    async with api.open_writer(entry_bytes=100) as log:
        ids = await log.append_many([b"x" * 40] * 20)
        big = await log.append(b"y" * 5000)
    entries = [each.entry_id for each in ids]
    assert max(entries.count(entry) for entry in entries) <= 2
    assert big.batch_idx == 0
    assert await api.values() == [b"x" * 40] * 20 + [b"y" * 5000]


async def test_lingering_gathers_messages_that_come_apart(api: Api) -> None:
    async with api.open_writer(linger_ms=100) as log:
        tickets = [await log.submit(b"%d" % number) for number in range(5)]
        ids = [await ticket for ticket in tickets]
        assert len({each.entry_id for each in ids}) == 1
        assert [each.batch_idx for each in ids] == [0, 1, 2, 3, 4]


async def test_lingering_does_not_hold_up_close_or_a_full_entry(api: Api) -> None:
    async with api.open_writer(linger_ms=60_000, entry_bytes=1000) as log:
        full = await log.submit(b"a" * 900)
        await log.submit(b"b" * 900)
        await full
    assert await api.values() == [b"a" * 900, b"b" * 900]


async def test_visible_within_is_visible_after_that_time_and_at_close(api: Api) -> None:
    async with api.open_writer(visible="within:20ms") as log:
        last = await log.append(b"x")
        async with api.open_reader(follow=True) as reader:
            (message,) = await reader.read(timeout=20)
            assert message.id == last
        await log.append(b"y")
    assert await api.values() == [b"x", b"y"]


async def test_many_messages_without_payload_fit_their_entries(api: Api) -> None:
    """An entry is bounded in messages as well as in bytes."""
    async with api.open_writer(entry_bytes=2_500_000, linger_ms=60_000) as log:
        tickets = [await log.submit(b"")]
        inner = getattr(log, "inner", log)
        offer = inner._engine.batcher.offer if api.name == "aio" else inner._offer
        tickets += [offer(b"") for _ in range(70_000)]
        await log.flush()
        last = tickets[-1].result(0)
        assert last.batch_idx < 1 << 16
    assert len(await api.values()) == 70_001
