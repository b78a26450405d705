"""Where a reader stops: bounds of every kind, with and without `follow`, and following for ever."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

import dlog
from dlog.clock import us_datetime
from tests.api.adapter import Api, rest_of
from tests.api.waiting import eventually

pytestmark = pytest.mark.crosswise(seconds=1)


@pytest.fixture
async def messages(api: Api) -> list[dlog.Message]:
    for segment in range(2):
        async with api.open_writer() as log:
            for batch in range(3):
                first = segment * 9 + batch * 3
                await log.append_many([b"%d" % n for n in range(first, first + 3)], atomic=True)
    return await api.read_all()


@pytest.mark.parametrize("follow", [False, True])
async def test_ends_are_exclusive(api: Api, messages: list[dlog.Message], follow: bool) -> None:
    values = [m.value for m in messages]
    for seq in (0, 1, 3, 8, 9, 10, 17):
        at = messages[seq]
        for end in (seq, at.id):
            assert await api.values(end=end, follow=follow) == values[:seq], end
    position = None
    async with api.open_reader() as reader:
        await reader.read(7)
        position = reader.position
    assert await api.values(end=position, follow=follow) == values[: position.next_seq]
    moment = us_datetime(messages[9].timestamp_us)
    before = [m.value for m in messages if m.timestamp_us < messages[9].timestamp_us]
    assert await api.values(end=moment, follow=follow) == before
    assert await api.values(end="latest", follow=follow) == values
    assert await api.values(end="earliest", follow=follow) == []
    assert await api.values(start=5, end=11, follow=follow) == values[5:11]
    assert await api.values(start=11, end=5, follow=follow) == []


async def test_without_follow_the_tail_at_the_opening_is_the_end(api: Api) -> None:
    async with api.open_writer() as log:
        await log.append(b"a")
        async with api.open_reader() as reader, api.open_reader(end=3) as bounded:
            await log.append_many([b"b"] * 5)
            assert [m.value for m in await rest_of(reader)] == [b"a"]
            assert [m.value for m in await rest_of(bounded)] == [b"a"]
            assert await reader.read() == []
            assert reader.at_tail
            await reader.seek(reader.position)
            assert [m.value for m in await rest_of(reader)] == [b"b"] * 5


async def test_with_follow_a_bound_ahead_is_waited_for(api: Api) -> None:
    async with api.open_writer() as log, api.open_reader(end=4, follow=True) as reader:
        all_of_it = asyncio.ensure_future(rest_of(reader))
        for number in range(6):
            await log.append(b"%d" % number)
        assert [m.value for m in await all_of_it] == [b"0", b"1", b"2", b"3"]
        assert reader.position.next_seq == 4


async def test_an_end_that_makes_no_sense(api: Api, messages: list[dlog.Message]) -> None:
    for end in (datetime(2024, 1, 1), -1, "tomorrow", b"", 2.0):
        with pytest.raises(dlog.ConfigError, match="end"):
            await api.open_reader(end=end)
    with pytest.raises(dlog.NotFound):
        await api.open_reader(end=messages[0].id._replace(ledger_id=1 << 40))
    assert len(await api.values(end=datetime(2100, 1, 1, tzinfo=UTC))) == 18


async def collect(reader: Any, into: list[dlog.Message], count: int) -> None:
    while len(into) < count:
        into += await reader.read(100)


async def test_following_across_rotation_and_reopening(api: Api) -> None:
    got: list[dlog.Message] = []
    wanted = [b"%d" % number for number in range(60)]
    async with api.open_writer() as log:
        await log.append(wanted[0])
        reader = await api.open_reader(follow=True)
        following = asyncio.ensure_future(collect(reader, got, 60))
        for value in wanted[1:30]:
            await log.append(value)
            if value.endswith(b"7"):
                await log.rotate()
    for first in (30, 40, 50):
        async with api.open_writer() as log:
            await log.append_many(wanted[first : first + 10])
    await following
    await reader.close()
    assert [m.value for m in got] == wanted
    assert [m.seq for m in got] == list(range(60))


async def test_following_across_takeovers_misses_and_repeats_nothing(api: Api) -> None:
    """Whoever is fenced tries no more; all that was acknowledged comes, once, in order."""
    acknowledged: list[bytes] = []
    async with api.open_writer():
        pass
    got: list[dlog.Message] = []
    reader = await api.open_reader(follow=True)
    following = asyncio.ensure_future(collect(reader, got, 1))
    old = await api.open_writer()
    for round_number in range(5):
        for number in range(5):
            value = b"%d.%d" % (round_number, number)
            await old.append(value)
            acknowledged.append(value)
        lost = await old.submit(b"perhaps")
        new = await api.open_writer()
        try:
            await lost
            acknowledged.append(b"perhaps")  # recovery found it in time
        except dlog.Fenced:
            pass
        await old.close()
        old = new
    last = await old.append(b"last")
    await following
    while got[-1].id != last:
        got += await reader.read()
    await reader.close()
    await old.close()
    assert [m.seq for m in got] == list(range(len(got)))
    certain = [m.value for m in got if m.value not in (b"perhaps", b"last")]
    assert certain == [value for value in acknowledged if value != b"perhaps"]
    assert [m.value for m in got] == await api.values()


async def test_at_tail_says_when_all_was_handed_out(api: Api) -> None:
    async with api.open_writer() as log:
        await log.append_many([b"a", b"b"])
        async with api.open_reader(follow=True) as reader:
            await reader.read(1)
            assert not reader.at_tail
            await reader.read(1)
            await eventually(lambda: reader.at_tail)
            await log.append(b"c")
            assert [m.value for m in await reader.read()] == [b"c"]
            await eventually(lambda: reader.at_tail)


async def test_tail_is_what_was_acknowledged_before_the_question(api: Api) -> None:
    """Linearizable: whoever asks after an ack sees at least that message."""
    async with api.open_writer() as log, api.open_reader(start="latest") as reader:
        assert await reader.tail() is None
        async with api.connect() as other:
            for number in range(15):
                acknowledged = await log.append(b"%d" % number)
                assert await reader.tail() == acknowledged
                assert await other.admin.tail("log") == acknowledged
                if number % 5 == 2:
                    await log.rotate()
                    assert await reader.tail() == acknowledged
            pending = [await log.submit(b"x") for _ in range(50)]
            seen = await reader.tail()
            assert seen >= acknowledged
            await log.flush()
            assert await reader.tail() == pending[-1].result(0)
    async with api.connect() as other:
        assert await other.admin.tail("log") == pending[-1].result(0)


async def test_tail_never_runs_ahead_or_back_while_another_writes(api: Api) -> None:
    async with api.open_writer(entry_bytes=64) as log, api.open_reader() as reader:
        floor = await log.append(b"first")
        writing = asyncio.ensure_future(_write(log, 200))
        looks = []
        while not writing.done():
            before = log.last_id
            seen = await reader.tail()
            assert seen >= before
            looks.append(seen)
        await writing
        assert looks == sorted(looks)
        assert looks[0] >= floor
        ids = {m.id for m in await api.read_all()}
        assert set(looks) <= ids


async def _write(log: Any, count: int) -> None:
    for number in range(count):
        await log.append(b"%d" % number)
