"""Handles that nobody closed: they warn when they are collected, with what it cost, and let go."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest

import dlog
from tests.api.adapter import Api, on_thread
from tests.api.conftest import our_threads
from tests.api.waiting import DEADLINE_S, eventually, held_at
from tests.pace import Deadline

pytestmark = pytest.mark.crosswise(seconds=1)


def said_when_dropped(held: list[Any], *, warnings_expected: int = 1) -> list[str]:
    """What is warned of while the last references go. The very last may be the loop's own thread's,
    on its way out of a call: that is waited for."""
    deadline = Deadline(DEADLINE_S)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        held.clear()
        gc.collect()
        while len(caught) < warnings_expected and not deadline.passed():
            gc.collect()
    return [str(each.message) for each in caught if issubclass(each.category, ResourceWarning)]


async def test_a_dropped_writer_says_how_many_it_lost(
    file_api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    client = file_api.connect()
    log = await client.open_writer("log")
    await log.append(b"kept")
    with held_at("ledger.synced") as disk:
        tickets = [await log.submit(b"lost") for _ in range(5)]
        held = [log]
        del log
        assert said_when_dropped(held) == [
            "a writer of log 'log' was dropped without close(): 5 messages were not acknowledged"
        ]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        for ticket in tickets:
            with pytest.raises(dlog.WriterClosed, match="dropped") as caught:
                await ticket
            assert caught.value.handle is dlog.Handle.DEAD
        disk.open()
    await client.close()
    there = await file_api.values()
    assert there[0] == b"kept"
    assert set(there[1:]) <= {b"lost"}


async def test_a_dropped_writer_that_lost_nothing_tells_developers_only(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    client = api.connect()
    log = await client.open_writer("log")
    await log.append(b"kept")
    held = [log]
    del log
    (said,) = said_when_dropped(held)
    assert "0 messages were not acknowledged" in said
    assert caplog.records == []
    await client.close()
    assert await api.values() == [b"kept"]


async def test_a_dropped_reader_stops_reading(api: Api) -> None:
    async with api.connect() as client:
        log = await client.open_writer("log")
        await log.append(b"x")
        reader = await client.open_reader("log", follow=True)
        await reader.read()
        held = [reader]
        del reader
        assert said_when_dropped(held) == ["a reader of log 'log' was dropped without close()"]


async def test_sync_handles_with_a_client_of_their_own_take_it_with_them(file_url: str) -> None:
    """Threads, descriptors and all: the look behind each test sees to it. (In an async program the
    loop ends what was begun on it.)"""

    def hold() -> list[Any]:
        log = dlog.open_writer("log", url=file_url)
        log.append(b"x")
        reader = dlog.open_reader("log", url=file_url, follow=True)
        reader.read()
        return [log, reader, dlog.connect(file_url)]

    said = said_when_dropped(await on_thread(hold))
    assert sorted(each.split(" of ")[0] for each in said) == ["a reader", "a writer"]
    await eventually(lambda: not our_threads())


async def test_closed_handles_say_nothing(api: Api) -> None:
    async with api.connect() as client, api.open_writer() as log, api.open_reader() as reader:
        await log.append(b"x")
        await client.admin.list()
        await reader.read()
    held = [client, log, reader]
    del client, log, reader
    assert said_when_dropped(held, warnings_expected=0) == []
