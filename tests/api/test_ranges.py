"""Ranges: a log in parts that are read apart from each other, and are the log, exactly."""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.resource_tracker
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

import dlog
from dlog.clock import us_datetime
from tests.api.adapter import Api
from tests.api.planting import change_meta, stores_of, with_segment
from tests.api.programs import run

pytestmark = pytest.mark.crosswise(seconds=1)

KIB = 1024
multiprocessing.resource_tracker.ensure_running()  # for good, so before any test looks
SMALL = dlog.LogOptions(segment_bytes=16 * KIB)


async def planned(api: Api, *logs: str, **options: Any) -> tuple[dlog.LedgerRange, ...]:
    async with api.connect() as client:
        return await client.admin.plan_ranges(*(logs or ("log",)), **options)


async def read_ranges(
    api: Api, ranges: tuple[dlog.LedgerRange, ...], **options: Any
) -> list[dlog.Message]:
    """Each with what it promised."""
    found: list[dlog.Message] = []
    async with api.connect() as client:
        for each in ranges:
            messages = [
                message
                async for batch in client.read_range(each, **options)
                for message in batch.to_pylist()
            ]
            assert [m.seq for m in messages] == list(range(each.first_seq, each.next_seq))
            assert len(messages) == each.messages
            found += messages
    return found


async def varied(log: Any, count: int, *, first: int = 0) -> None:
    """Messages of very different sizes, alone and in batches, some of them tombstones."""
    at = first
    while at < first + count:
        size = (at * 7919) % 23 + 1
        values = [
            None if n % 17 == 0 else b"%d." % n * ((n * 31) % 40 + 1) for n in range(at, at + size)
        ]
        keys = [b"k%d" % (n % 5) if n % 3 else None for n in range(at, at + size)]
        headers = [[("n", b"%d" % n)] if n % 4 == 0 else None for n in range(at, at + size)]
        await log.append_many(values, keys=keys, headers=headers, atomic=True)
        at += size


@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_the_ranges_are_the_log_exactly(api: Api, codec: str) -> None:
    """Over rotations, takeovers, control entries, tombstones, compression and an open ledger."""
    async with api.open_writer(create=SMALL, codec=codec) as log:
        await varied(log, 800)
    async with api.open_writer(codec=codec) as log:
        await varied(log, 300, first=800)
        async with api.open_writer(codec=codec) as winner:  # fences the one before
            await varied(winner, 500, first=1100)
            whole = await api.read_all()
            assert len(whole) >= 1600
            for options in (
                {},
                {"target_bytes": 1 * KIB},
                {"target_bytes": 5000},
                {"min_ranges": 7},
                {"max_messages": 13},
                {"max_messages": 1, "start": 700, "end": 760},
            ):
                ranges = await planned(api, **options)
                first, end = options.get("start", 0), options.get("end", len(whole))
                assert await read_ranges(api, ranges) == whole[first:end], options
            await winner.append(b"the writer was not disturbed")


async def test_sizes_are_what_was_asked_for(api: Api) -> None:
    """Balanced by bytes, though small messages come first and large ones last."""
    async with api.open_writer() as log:
        for _ in range(400):
            await log.append_many([b"s" * 10] * 20, atomic=True)
        for _ in range(40):
            await log.append_many([b"l" * 8000] * 2, atomic=True)
    target = 64 * KIB
    ranges = await planned(api, target_bytes=target)
    async with stores_of(api) as stores:
        sizes = []
        ledger = await stores.ledgers.open(ranges[0].parts[0].ledger_id)
        for each in ranges:
            (part,) = each.parts
            raw: list[memoryview] = []
            while (at := part.first_entry + len(raw)) <= part.last_entry:
                raw += await ledger.read(at, part.last_entry, bytes_max=1 << 20)
            sizes.append(sum(map(len, raw)))
        await ledger.close()
    assert len(sizes) == -(-sum(each.bytes for each in ranges) // target)
    assert max(sizes) <= 1.5 * target
    assert min(sizes) >= 0.5 * target
    assert [each.copy for each in ranges] == list(range(len(ranges)))


async def test_small_ledgers_share_a_range(api: Api) -> None:
    async with api.open_writer() as log:
        for number in range(30):
            await log.append(b"%d" % number)
            await log.rotate()
    ranges = await planned(api)
    assert len(ranges) == 1
    assert len(ranges[0].parts) == 30
    assert [m.value for m in await read_ranges(api, ranges)] == [b"%d" % n for n in range(30)]
    assert len(await planned(api, min_ranges=10)) >= 10


async def test_nothing_is_in_an_empty_log(api: Api) -> None:
    async with api.open_writer() as log:
        assert await planned(api) == ()
        await log.rotate()
        assert await planned(api) == ()
        await log.append(b"a")
        await log.rotate()
        (only,) = await planned(api)
        assert (only.first_seq, only.messages) == (0, 1)
        assert await planned(api, start="latest") == ()
        assert await planned(api, start=1) == ()
        assert await planned(api, end=0) == ()
        assert await planned(api, start=5, end=9) == ()


async def test_the_end_is_fixed_when_it_is_planned(api: Api) -> None:
    """Linearizable: all that was acknowledged before, and nothing that comes later."""
    async with api.open_writer() as log:
        await log.append_many([b"%d" % n for n in range(10)])
        ranges = await planned(api)
        await log.append_many([b"later"] * 10)
        await log.rotate()
        await log.append(b"and later")
        assert [m.value for m in await read_ranges(api, ranges)] == [b"%d" % n for n in range(10)]
    async with api.open_writer() as log:
        assert len(await read_ranges(api, ranges)) == 10


async def test_places_of_all_kinds(api: Api) -> None:
    async with api.open_writer() as log:
        ids: list[dlog.MessageId] = []
        for _ in range(4):
            ids += await log.append_many([b"x"] * 5, atomic=True)
            await log.rotate()
    messages = await api.read_all()
    for start, end in (
        (ids[7], ids[13]),
        (7, 13),
        (us_datetime(messages[5].timestamp_us), us_datetime(messages[15].timestamp_us)),
    ):
        async with api.open_reader(start=start, end=end) as reader:
            wanted = [m.seq for m in await reader.read(100)]
        got = await read_ranges(api, await planned(api, start=start, end=end, target_bytes=1024))
        assert [m.seq for m in got][: len(wanted)] == wanted
    assert await planned(api, end=datetime(2000, 1, 1, tzinfo=UTC)) == ()


async def test_several_logs_and_patterns(api: Api) -> None:
    for name, count in (("a/1", 3), ("a/2", 5), ("b", 7)):
        async with api.open_writer(name) as log:
            await log.append_many([name.encode()] * count)
    async with api.connect() as client:
        plan = client.admin.plan_ranges
        both = await plan("b", "a/1")
        assert [(each.log, each.messages) for each in both] == [("b", 7), ("a/1", 3)]
        matching = await plan(pattern="a/.*")
        assert [(each.log, each.messages) for each in matching] == [("a/1", 3), ("a/2", 5)]
        assert await plan(pattern="a") == ()
        some = await plan("a/1", "b", start={"a/1": 1, "b": "latest"}, end={"a/1": 2, "b": 9})
        assert [(each.log, each.first_seq, each.messages) for each in some] == [("a/1", 1, 1)]
        await client.admin.remove("a/1")
        assert [each.log for each in await plan(pattern="a/.*")] == ["a/2"]
        with pytest.raises(dlog.NotFound):
            await plan("a/1")
        for wrong in (
            {},
            {"logs": ("b",), "pattern": "b"},
            {"logs": ("b", "b")},
            {"pattern": "("},
            {"logs": ("b",), "start": {"c": 1}},
            {"logs": ("b", "a/2"), "start": {"b": 1}},
            {"logs": ("b",), "end": -1},
            {"logs": ("b",), "target_bytes": 10},
            {"logs": ("b",), "min_ranges": 0},
            {"logs": ("b",), "max_messages": 0},
            {"logs": ("b",), "on_truncated": "skip"},
        ):
            options: dict[str, Any] = dict(wrong)
            with pytest.raises(dlog.ConfigError):
                await plan(*options.pop("logs", ()), **options)


async def test_what_was_truncated_is_told_or_left_out(api: Api) -> None:
    async with api.open_writer() as log:
        for _ in range(4):
            await log.append_many([b"x"] * 5, atomic=True)
            await log.rotate()
        before = await planned(api, max_messages=5)
        async with api.connect() as client:
            await client.admin.truncate("log", 7)
        assert (await planned(api))[0].first_seq == 7
        with pytest.raises(dlog.Truncated):
            await planned(api, start=3)
        lenient = await planned(api, start=3, on_truncated="jump")
        assert [m.seq for m in await read_ranges(api, lenient)] == list(range(7, 20))
        for each in before[:2]:  # planned, and truncated before it was read
            with pytest.raises(dlog.Truncated) as caught:
                await read_ranges(api, (each,))
            assert caught.value.new_head == 7
        assert len(await read_ranges(api, before[2:])) == 10
        async with api.connect() as client:
            left = [
                message.seq
                for each in before
                async for batch in client.read_range(each, on_truncated="jump")
                for message in batch.to_pylist()
            ]
        assert left == list(range(7, 20))


async def test_a_range_is_of_one_log_for_good(api: Api) -> None:
    async with api.open_writer() as log:
        await log.append(b"old")
    ranges = await planned(api)
    async with api.connect() as client:
        await client.admin.remove("log")
        with pytest.raises(dlog.NotFound):
            await read_ranges(api, ranges)
        async with api.open_writer() as log:
            await log.append(b"new")
        with pytest.raises(dlog.NotFound):
            await read_ranges(api, ranges)


async def test_what_differs_from_the_plan_is_corrupt(api: Api) -> None:
    """The count and the first seq are checked, whatever else agrees."""
    async with api.open_writer() as log:
        for _ in range(10):
            await log.append_many([b"x"] * 5, atomic=True)
    (whole,) = await planned(api)
    (part,) = whole.parts
    for wrong in (
        {"first_seq": 1, "messages": 49},
        {"first_idx": 1},
        {"first_entry": part.first_entry + 2},
        {"messages": 51},
        {"last_entry": part.last_entry - 3},
        {"messages": 500, "last_entry": part.last_entry + 30},
    ):
        other = dataclasses.replace(whole, parts=(dataclasses.replace(part, **wrong),))
        async with api.connect() as client:
            with pytest.raises(dlog.Corrupt):
                async for _ in client.read_range(other):
                    pass


async def test_a_list_that_lies_is_found_out(api: Api) -> None:
    async with api.open_writer() as log:
        for _ in range(3):
            await log.append_many([b"x"] * 5, atomic=True)
            await log.rotate()
    async with stores_of(api) as stores:
        await change_meta(stores, with_segment(2, next_seq=9))
    with pytest.raises(dlog.Corrupt):
        await read_ranges(api, await planned(api))


def read_elsewhere(url: str, wanted: dlog.LedgerRange) -> list[bytes | None]:
    with dlog.connect(url) as client:
        return [v for batch in client.read_range(wanted) for v in batch.values()]


async def test_other_processes_read_their_share(file_api: Api) -> None:
    async with file_api.open_writer() as log:
        await log.append_many([b"%d" % n for n in range(5000)])
        ranges = await planned(file_api, max_messages=900)
    assert len(ranges) >= 5
    assert max(len(pickle.dumps(each)) for each in ranges) < 600
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.starmap(read_elsewhere, [(file_api.url, each) for each in ranges])
    assert [v for some in found for v in some] == [b"%d" % n for n in range(5000)]


async def test_a_crashed_writers_open_ledger(file_api: Api) -> None:
    """Nobody recovered it: all that was acknowledged is read, and it stays open."""
    code, told, errors = run(
        file_api.url,
        """
        log = dlog.open_writer("log", url=URL)
        for n in range(100):
            log.append(b"%d" % n)
        say("done")
        os.kill(os.getpid(), 9)
        """,
    )
    assert (code, told) == (-9, ["done"]), errors
    ranges = await planned(file_api, max_messages=30)
    found = await read_ranges(file_api, ranges)
    assert [m.value for m in found] == [b"%d" % n for n in range(100)]
    async with file_api.connect() as client:
        (segment,) = await client.admin.segments("log")
    assert segment.state == "open"
    async with file_api.open_writer() as log:  # takes over: what was planned is still there
        await log.append(b"on")
    assert await read_ranges(file_api, ranges) == found


async def test_a_range_that_is_left_early_lets_go(api: Api) -> None:
    async with api.open_writer() as log:
        for _ in range(50):
            await log.append_many([b"x" * 1000] * 5, atomic=True)
    ranges = await planned(api)
    async with api.connect() as client:
        batches = client.read_range(ranges[0], read_run_bytes=1000, read_ahead_bytes=1000)
        async for _ in batches:
            break
        await batches.aclose()
        with pytest.raises(dlog.ConfigError):
            async for _ in client.read_range(ranges[0], follow=True):
                pass
        with pytest.raises(dlog.ConfigError):
            async for _ in client.read_range("log"):
                pass
