"""Cancelling any await leaves the handle sound, or honestly closed, and nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dlog
from dlog import aio
from tests.api.cancelling import Moment, at_every_await, cancelled_at
from tests.api.waiting import eventually, held_at

SMALL = {"window_bytes": 1024, "entry_bytes": 512, "window_entries": 2}

pytestmark = pytest.mark.parametrize("moment", Moment)
Act = Callable[[aio.Writer, int], Awaitable[Any]]


async def values(url: str) -> list[bytes | None]:
    async with aio.open_reader("log", url=url) as reader:
        return [message.value async for message in reader]


async def no_tasks_but(tasks: set[asyncio.Task[Any]]) -> None:
    await eventually(lambda: asyncio.all_tasks() <= tasks, lambda: f"{asyncio.all_tasks() - tasks}")


def name_of(at: int, part: str = "") -> bytes:
    return f"{at}{part}".encode()


APPENDS: dict[str, Act] = {
    "append": lambda log, at: log.append(name_of(at)),
    "append_many": lambda log, at: log.append_many([name_of(at, "a"), name_of(at, "b")]),
    "long run": lambda log, at: log.append_many([name_of(at, str(n)) * 99 for n in range(20)]),
    "atomic": lambda log, at: log.append_many([name_of(at)] * 3, atomic=True),
    "rotate": lambda log, at: log.rotate(),
}


@pytest.mark.parametrize("act", APPENDS.values(), ids=APPENDS)
async def test_a_writer_goes_on(url: str, moment: Moment, act: Act) -> None:
    """Whatever was given up, what is appended afterwards is acknowledged and in order."""
    mine = asyncio.all_tasks()
    async with aio.open_writer("log", url=url, **SMALL) as log:
        opened = asyncio.all_tasks()
        acknowledged = []
        async for at in at_every_await(moment, lambda at: act(log, at)):
            ticket = await log.submit(b"s%d" % at)
            ids = [await log.append(b"after %d" % at), await ticket]
            assert ids[1] <= ids[0]
            acknowledged += [b"s%d" % at, b"after %d" % at]
        await log.flush()
        await no_tasks_but(opened)
        assert not log._engine.batcher._waiting
    there = await values(url)
    assert [value for value in there if value in set(acknowledged)] == acknowledged
    await no_tasks_but(mine)


async def test_flush_given_up_is_no_flush_and_no_harm(url: str, moment: Moment) -> None:
    async with aio.open_writer("log", url=url) as log:

        async def submit_and_flush(at: int) -> None:
            await log.submit(b"x")
            await log.flush()

        count = 0
        async for _ in at_every_await(moment, submit_and_flush):
            count += 1
            await log.flush()
            assert log._engine.unacknowledged == 0
    assert await values(url) == [b"x"] * count


async def test_submit_with_a_full_window(file_url: str, moment: Moment) -> None:
    """Each one that was given up sent nothing; the one that waits behind it gets its place."""
    async with aio.open_writer("log", url=file_url, **SMALL) as log:
        for at in range(2):
            with held_at("ledger.synced") as disk:
                tickets = []
                with pytest.raises(dlog.Timeout):
                    await _fill(log, tickets)
                given_up = asyncio.ensure_future(
                    cancelled_at(log.submit(b"given up" * 60), at, moment)
                )
                waiting = log._engine.batcher._waiting
                await eventually(lambda one=given_up, line=waiting: one.done() or line)
                behind = asyncio.ensure_future(log.submit(b"behind" * 80))
                await asyncio.sleep(0)
                disk.open()
                struck = await given_up
                async with asyncio.timeout(10):
                    tickets.append(await behind)
            for ticket in tickets:
                await ticket
            await log.flush()
            given_up_there = (await values(file_url)).count(b"given up" * 60)
            assert given_up_there == (0 if struck else 1)
        assert not struck


async def _fill(log: aio.Writer, tickets: list[aio.Ticket]) -> None:
    while True:
        tickets.append(await log.submit(b"x" * 300, timeout=0.02))


@pytest.mark.parametrize("verb", ["close", "hand_over"])
@pytest.mark.parametrize("own", [True, False])
async def test_an_end_given_up_still_comes(url: str, moment: Moment, verb: str, own: bool) -> None:
    mine = asyncio.all_tasks()
    client = aio.connect(url)
    opener = aio.open_writer if own else client.open_writer
    options = {"url": url} if own else {}
    at, struck, count = 0, True, 0
    while struck:
        log = await opener("log", **options)
        tickets = [await log.submit(b"x") for _ in range(3)]
        count += 3
        struck = await cancelled_at(getattr(log, verb)(), at, moment)
        with pytest.raises(dlog.WriterClosed):
            await log.append(b"late")
        await log.close()
        assert log.closed
        assert all(ticket.done for ticket in tickets)
        assert [ticket.result(0).batch_idx >= 0 for ticket in tickets] == [True] * 3
        assert len(await values(url)) == count
        at += 1
    await client.close()
    await no_tasks_but(mine)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("contended", [False, True])
async def test_opening_a_writer_given_up(
    url: str, moment: Moment, own: bool, contended: bool
) -> None:
    """The next one opens, over whatever the one given up left: a claim, a ledger, a seam."""
    mine = asyncio.all_tasks()
    client = aio.connect(url)
    at, struck, count, epoch = 0, True, 0, 0
    while struck:
        before = await aio.open_writer("log", url=url)
        await before.append(b"x")
        count += 1
        if not contended:
            await before.close()
        opening = aio.open_writer("log", url=url) if own else client.open_writer("log")
        kept: list[aio.Writer] = []

        async def open_it(opening: Any = opening, kept: list[aio.Writer] = kept) -> None:
            kept.append(await opening)

        struck = await cancelled_at(open_it(), at, moment)
        for log in kept:
            await log.close()
        if contended:
            try:
                await before.append(b"x")
                count += 1
            except dlog.Fenced:
                pass
            await before.close()
        async with aio.open_writer("log", url=url) as log:
            assert log.epoch > epoch
            epoch = log.epoch
            await log.append(b"x")
            count += 1
        there = await values(url)
        assert there == [b"x"] * len(there)
        assert len(there) >= count
        count = len(there)  # what is unknown may be there
        at += 1
    await client.close()
    await no_tasks_but(mine)
    assert at >= 3


async def test_opening_a_reader_given_up(url: str, moment: Moment) -> None:
    mine = asyncio.all_tasks()
    async with aio.open_writer("log", url=url) as log:
        await log.append_many([b"x"] * 5)
    client = aio.connect(url)
    for opener, options in ((aio.open_reader, {"url": url}), (client.open_reader, {})):
        kept: list[aio.Reader] = []

        async def open_it(at: int, opener: Any = opener, options: Any = options) -> None:
            kept.append(await opener("log", start=3, **options))  # noqa: B023

        async for _ in at_every_await(moment, open_it):
            pass
        (reader,) = kept
        assert len(await reader.read()) == 2
        await reader.close()
    await client.close()
    await no_tasks_but(mine)


@pytest.fixture
async def ten(url: str) -> list[bytes]:
    wanted = [b"%d" % number for number in range(10)]
    async with aio.open_writer("log", url=url) as log:
        for value in wanted[:5]:
            await log.append(value)
        await log.rotate()
        await log.append_many(wanted[5:])
    return wanted


async def test_reads_given_up_lose_and_repeat_nothing(
    url: str, moment: Moment, ten: list[bytes]
) -> None:
    for at in range(4):
        got: list[bytes | None] = []
        async with aio.open_reader("log", url=url) as reader:
            while len(got) < len(ten):
                await cancelled_at(_take(reader, got), at, moment)
                if at == 0:  # it never comes to anything if it is given up each time
                    await _take(reader, got)
                assert reader.position.next_seq == len(got)
        assert got == ten


async def _take(reader: aio.Reader, into: list[bytes | None]) -> None:
    into += [message.value for message in await reader.read(2)]


@pytest.mark.parametrize("batches", [False, True])
async def test_iterations_given_up_lose_and_repeat_nothing(
    url: str, moment: Moment, ten: list[bytes], batches: bool
) -> None:
    for at in range(4):
        got: list[bytes | None] = []

        async def iterate(reader: aio.Reader, into: list[bytes | None]) -> None:
            if batches:
                async for batch in reader.batches():
                    into += batch.values()
            else:
                async for message in reader:
                    into.append(message.value)

        async with aio.open_reader("log", url=url) as reader:
            for _ in range(3):
                await cancelled_at(iterate(reader, got), at, moment)
                assert reader.position.next_seq == len(got)
            await iterate(reader, got)
        assert got == ten


async def test_a_follower_that_was_given_up_follows_on(url: str, moment: Moment) -> None:
    async with (
        aio.open_writer("log", url=url) as log,
        aio.open_reader("log", url=url, follow=True) as reader,
    ):
        got: list[bytes | None] = []
        for number in range(10):
            waiting = asyncio.ensure_future(cancelled_at(_take(reader, got), 0, moment))
            await log.append(b"%d" % number)
            await waiting
            while len(got) <= number:
                await _take(reader, got)
        assert got == [b"%d" % number for number in range(10)]


async def test_seeks_given_up_leave_it_there_or_here(
    url: str, moment: Moment, ten: list[bytes]
) -> None:
    async with aio.open_reader("log", url=url) as reader:
        opened = asyncio.all_tasks()
        at, struck = 0, True
        while struck:
            await reader.seek(2)
            assert [m.value for m in await reader.read(1)] == [b"2"]
            struck = await cancelled_at(reader.seek(8), at, moment)
            place = reader.position.next_seq
            assert place in (3, 8)
            assert [m.value async for m in reader] == ten[place:]
            at += 1
        assert place == 8
        await eventually(lambda: len(asyncio.all_tasks()) <= len(opened))


async def test_closing_a_reader_or_a_client_given_up(
    url: str, moment: Moment, ten: list[bytes]
) -> None:
    mine = asyncio.all_tasks()
    at, struck = 0, True
    while struck:
        reader = await aio.open_reader("log", url=url, follow=True)
        await reader.read()
        struck = await cancelled_at(reader.close(), at, moment)
        with pytest.raises(dlog.ReaderClosed):
            await reader.read()
        await reader.close()
        at += 1
    at, struck = 0, True
    while struck:
        client = aio.connect(url)
        log = await client.open_writer("log")
        ticket = await log.submit(b"x")
        reader = await client.open_reader("log", follow=True)
        struck = await cancelled_at(client.close(), at, moment)
        await client.close()
        assert ticket.result(0) == log.last_id
        assert (log.closed, reader.closed) == (True, True)
        at += 1
    await no_tasks_but(mine)


async def test_admin_calls_given_up(url: str, moment: Moment, ten: list[bytes]) -> None:
    mine = asyncio.all_tasks()
    async with aio.connect(url) as client:  # the first call of all opens what is behind it
        async for _ in at_every_await(moment, lambda at: client.admin.list()):
            pass
    await no_tasks_but(mine)
    async with aio.connect(url) as client:
        admin = client.admin
        await admin.describe("log")
        opened = asyncio.all_tasks()  # a cluster's client has some of its own
        for call in (admin.list, lambda: admin.describe("log"), lambda: admin.tail("log")):
            async for _ in at_every_await(moment, lambda at, call=call: call()):
                await no_tasks_but(opened)
        at, struck = 0, True
        while struck:
            name = f"short{at}"
            async with client.open_writer(name) as log:
                await log.append(b"x")
            struck = await cancelled_at(admin.remove(name), at, moment)
            try:
                await admin.remove(name)
            except dlog.NotFound:
                pass  # it was gone before it was given up
            assert [log.name for log in await admin.list()] == ["log"]
            at += 1
    assert await values(url) == ten
