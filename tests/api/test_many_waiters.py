"""Several tasks or threads wait for one handle: its end is the end of all of them. One that waited
on would keep its process alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dlog
from dlog.sync.portal import Portal
from tests.api.adapter import Api, rest_of
from tests.api.waiting import DEADLINE_S, eventually
from tests.pace import SLOWNESS_MAX, timeout, waited

pytestmark = pytest.mark.crosswise(seconds=1)

WAITERS = 3
CALLS = ("read", "_fill", "fill", "_choose", "wait")  # what a sync handle asks its loop for


async def _ended(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    async with timeout(DEADLINE_S):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def _all_wait(handle: Any, wait: Callable[[], Awaitable[Any]]) -> list[asyncio.Task[Any]]:
    """Once each of them is under way on the loop of the handle."""
    sync = getattr(handle, "inner", None)
    loop = asyncio.get_running_loop() if sync is None else sync._portal.loop

    def under_way() -> int:
        names = [getattr(task.get_coro(), "__name__", "") for task in asyncio.all_tasks(loop)]
        return sum(name in (("waiting",) if sync is None else CALLS) for name in names)

    async def waiting() -> Any:
        return await wait()

    tasks = [asyncio.create_task(waiting()) for _ in range(WAITERS)]
    await eventually(lambda: under_way() >= WAITERS)
    return tasks


def _has_ended(answer: Any) -> bool:
    return not isinstance(answer, BaseException) or isinstance(answer, dlog.DlogError)


async def test_a_close_frees_everybody_who_iterates_over_a_reader(api: Api) -> None:
    async with api.open_writer() as log:
        await log.append(b"1")
        reader = await api.open_reader(follow=True)
        tasks = await _all_wait(reader, lambda: rest_of(reader))
        await eventually(lambda: reader.at_tail)
        await reader.close()
        assert all(_has_ended(answer) for answer in await _ended(tasks))


async def test_a_close_frees_everybody_who_reads(api: Api) -> None:
    async with api.open_writer():
        reader = await api.open_reader(follow=True)
        tasks = await _all_wait(reader, lambda: reader.read())
        await reader.close()
        assert all(_has_ended(answer) for answer in await _ended(tasks))


async def test_one_message_wakes_one_and_the_others_wait_on(api: Api) -> None:
    async with api.open_writer() as log:
        reader = await api.open_reader(follow=True)
        tasks = await _all_wait(reader, lambda: reader.read())
        for number in range(WAITERS):
            await log.append(b"%d" % number)
            await eventually(lambda number=number: sum(t.done() for t in tasks) > number)  # type: ignore[misc]
        answers = await _ended(tasks)
        values = sorted(message.value for answer in answers for message in answer)
        assert values == [b"%d" % number for number in range(WAITERS)]
        await reader.close()


async def test_a_close_frees_everybody_who_waits_for_a_stream(api: Api) -> None:
    async with api.connect() as client:
        await client.create_stream("stream", shards=2)
        async with client.stream("stream").open_writer() as log:
            await log.append(b"1", key=b"key")
            reader = await client.stream("stream").open_reader(follow=True)
            assert len(await reader.read()) == 1
            tasks = await _all_wait(reader, lambda: reader.read())
            await reader.close()
            assert all(_has_ended(answer) for answer in await _ended(tasks))


async def test_a_close_frees_everybody_who_waits_for_a_worker(api: Api) -> None:
    async with api.connect() as client:
        await client.create_stream("stream", shards=1)
        worker = await client.open_worker("group", "stream", lambda message: None)
        tasks = await _all_wait(worker, lambda: worker.wait())
        await worker.close()
        assert all(_has_ended(answer) for answer in await _ended(tasks))


async def test_a_close_frees_everybody_who_waits_for_a_vacancy(api: Api) -> None:
    async with api.open_writer():
        standby = await api.open_standby()
        tasks = await _all_wait(standby, lambda: standby.wait())
        await standby.close()
        assert all(_has_ended(answer) for answer in await _ended(tasks))


def test_threads_are_told_that_the_loop_that_they_asked_is_gone() -> None:
    portal = Portal()
    asked = threading.Event()
    told: list[BaseException] = []

    async def never() -> None:
        asked.set()
        await asyncio.Event().wait()

    def ask() -> None:
        try:
            portal.run(never())
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=ask, name="asks", daemon=True)
    thread.start()
    assert waited(asked.wait, DEADLINE_S)
    portal.stop()
    thread.join(DEADLINE_S * SLOWNESS_MAX)
    assert not thread.is_alive()
    assert isinstance(told[0], dlog.ConfigError)
    assert told[0].outcome is dlog.Outcome.UNKNOWN
