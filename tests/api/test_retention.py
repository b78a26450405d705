"""Retention by age where clocks are wrong: nothing young goes, and what is kept is said."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dlog import LogOptions, aio
from dlog.clock import SystemClock
from dlog.drive import Stores
from dlog.errors import Unavailable

DAY_S = 24 * 3600
WEEK = LogOptions(retention_age_s=7 * DAY_S, deletion_grace_s=DAY_S)


class Off(SystemClock):
    """A clock that is ahead by so many days, or behind."""

    def __init__(self, days: float) -> None:
        self.days = days

    def wall_us(self) -> int:
        return super().wall_us() + int(self.days * DAY_S * 1_000_000)


async def client_at(url: str, days: float) -> aio.Client:
    client = aio.connect(url)
    stores: Stores = await client._stores(True)
    client._opened = dataclasses.replace(stores, clock=Off(days))
    return client


async def write(url: str, days: float, *, segments: int = 3, **options: Any) -> None:
    client = await client_at(url, days)
    async with client, client.open_writer("log", **options) as writer:
        for number in range(segments):
            await writer.append(b"%d" % number)
            await writer.rotate()


async def count(url: str) -> int:
    async with aio.connect(url) as client, client.open_reader("log") as reader:
        return len([message async for message in reader])


async def collect(url: str, days: float, *, dry_run: bool = False) -> Any:
    async with await client_at(url, days) as client:
        return await client.admin.collect("log", dry_run=dry_run)


async def test_a_collector_that_is_ahead_takes_nothing_young(url: str) -> None:
    await write(url, 0, create=WEEK)
    for dry_run in (True, False):
        told = await collect(url, 10, dry_run=dry_run)
        assert told.truncated == told.deleted == 0
        (problem,) = told.problems
        assert "this machine's clock is 10 days" in problem
    assert await count(url) == 3


async def test_a_collector_that_is_ahead_cuts_no_grace_short(url: str) -> None:
    await write(url, 0, create=WEEK)
    async with aio.connect(url) as client:
        await client.admin.truncate("log", 2)
    assert (await collect(url, 10)).deleted == 0
    assert (await collect(url, 0)).waiting == 2


async def test_where_clocks_agree_what_is_old_goes_also_from_a_log_that_rests(url: str) -> None:
    await write(url, -10, create=WEEK)
    told = await collect(url, 0)
    assert (told.truncated, told.problems) == (3, ())
    assert await count(url) == 0


async def test_a_collector_that_is_behind_keeps_more(url: str) -> None:
    await write(url, -10, create=WEEK)
    told = await collect(url, -5)
    assert (told.truncated, told.problems) == (0, ())


def forgetful(stores: Stores) -> Stores:
    """The store's clock is out of reach."""

    async def refuse(path: str) -> int:
        raise Unavailable("no permission for a clock")

    stores.meta.inner.wall_us = refuse  # type: ignore[attr-defined]
    return stores


async def test_where_nobody_tells_the_time_ages_are_taken_within_the_log(url: str) -> None:
    await write(url, -20, create=WEEK)
    await write(url, -10)
    async with aio.connect(url) as client:
        forgetful(await client._stores(False))
        told = await client.admin.collect("log")
    assert told.truncated == 3, "of the segments that are ten days older than the newest message"
    assert any("no permission for a clock" in problem for problem in told.problems)
    assert await count(url) == 3


async def append_and_rotate(client: aio.Client, times: int) -> None:
    async with client.open_writer("log") as writer:
        for _ in range(times):
            await writer.append(b"x")
            await writer.rotate()


@pytest.mark.parametrize("times", [1, 4])
async def test_a_writer_that_is_ahead_takes_nothing_young_of_others(url: str, times: int) -> None:
    """It stamps its own messages, and truncates behind each rotation."""
    await write(url, 0, create=WEEK)
    async with await client_at(url, 10) as client:
        await append_and_rotate(client, times)
    assert await count(url) == 3 + times


async def test_a_writer_takes_what_grew_old_while_it_wrote(url: str) -> None:
    """Its own messages by its own clock, and those of others by what has passed since it opened."""
    await write(url, 0, create=WEEK)
    client = await client_at(url, 0)
    async with client, client.open_writer("log") as writer:
        assert client._opened is not None
        off: Any = client._opened.clock
        await writer.append(b"x")
        await writer.rotate()
        assert await count(url) == 4
        off.days = 8  # so much passes
        await writer.append(b"y")
        await writer.rotate()
        await writer.append(b"z")
        await writer.rotate()
        assert await count(url) < 4
