"""A full window: waiting for room, being refused, and what is then said of the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import dlog
from tests.api.adapter import Api
from tests.api.waiting import Gate, eventually, held_at

SMALL = {"window_bytes": 1024, "entry_bytes": 512, "window_entries": 2}


async def fill(log: Any, value: bytes = b"x" * 300) -> list[Any]:
    """Submit until there is no room."""
    tickets: list[Any] = []
    full: dlog.DlogError | None = None
    while full is None:
        try:
            tickets.append(await log.submit(value, timeout=0.02))
        except (dlog.Timeout, dlog.BufferFull) as error:
            full = error
    assert full.outcome is dlog.Outcome.NOT_HAPPENED
    assert full.handle is dlog.Handle.USABLE
    assert full.retry is dlog.Retry.NOW
    return tickets


async def test_a_full_window_waits_and_times_out_with_nothing_sent(file_api: Api) -> None:
    async with file_api.open_writer(**SMALL) as log:
        with held_at("ledger.synced") as disk:
            tickets = await fill(log)
            assert 2 <= len(tickets) <= 6
            waiting = asyncio.ensure_future(_submit(log, b"patient" * 60))
            await eventually(lambda: batcher_of(log)._waiting)
            assert not waiting.done()
            disk.open()
            tickets.append(await waiting)
        ids = [await ticket for ticket in tickets]
    assert ids == sorted(ids)
    assert await file_api.values() == [b"x" * 300] * (len(ids) - 1) + [b"patient" * 60]


async def _submit(log: Any, value: bytes) -> Any:
    return await log.submit(value)


def batcher_of(log: Any) -> Any:
    inner = getattr(log, "inner", log)
    return getattr(inner, "_inner", inner)._engine.batcher


async def test_on_full_raise_refuses_at_once(file_api: Api) -> None:
    async with file_api.open_writer(on_full="raise", **SMALL) as log:
        with held_at("ledger.synced") as disk:
            tickets = await fill(log)
            with pytest.raises(dlog.BufferFull):
                await log.append(b"x" * 300)
            with pytest.raises(dlog.BufferFull):
                await log.append_many([b"x" * 300], atomic=True)
            disk.open()
            for ticket in tickets:
                await ticket
        await log.append(b"room again")
    assert await file_api.values() == [b"x" * 300] * len(tickets) + [b"room again"]


@pytest.mark.parametrize("window_bytes", [1024, 64 * 1024])
async def test_a_window_smaller_than_an_entry_is_one(file_api: Api, window_bytes: int) -> None:
    """I25: with any `entry_bytes`. It was looked at only where an entry ended: 512 KiB got in."""
    async with file_api.open_writer(on_full="raise", window_bytes=window_bytes) as log:
        with held_at("ledger.synced") as disk:
            tickets = await fill(log, b"x" * 100)
            assert batcher_of(log).taken_bytes < window_bytes + 200
            disk.open()
            for ticket in tickets:
                await ticket
        await log.append(b"room again")


@pytest.mark.parametrize("linger_ms", [0, 60_000])
async def test_a_full_window_has_a_reason_at_once(file_url: str, linger_ms: int) -> None:
    """Behind `BufferFull` nothing was sent yet, and `why()` was None. It waits for no company."""
    async with dlog.aio.open_writer(
        "log", url=file_url, on_full="raise", window_bytes=1024, linger_ms=linger_ms
    ) as log:
        with held_at("ledger.synced") as disk:
            tickets = await fill(log, b"x" * 100)
            reason = log.why()
            assert reason is not None
            assert reason.code is dlog.ReasonCode.WINDOW_FULL
            assert reason.evidence["window_full"] is True
            disk.open()
            for ticket in tickets:
                await ticket
        assert log.why() is None


@pytest.mark.parametrize("on_full", ["wait", "raise"])
async def test_a_run_that_was_cut_by_the_window_says_that_it_may_have_begun(
    file_api: Api, on_full: str
) -> None:
    """Part of it is on its way: `not_happened` would be a lie."""
    async with file_api.open_writer(on_full=on_full, **SMALL) as log:
        with held_at("ledger.synced") as disk:
            with pytest.raises((dlog.Timeout, dlog.BufferFull)) as caught:
                await log.append_many([b"%d" % n * 100 for n in range(10, 50)], timeout=0.05)
            assert caught.value.outcome is dlog.Outcome.UNKNOWN
            disk.open()
        await log.flush()
    there = await file_api.values()
    assert 0 < len(there) < 40
    assert there == [b"%d" % n * 100 for n in range(10, 10 + len(there))]


async def test_a_run_longer_than_the_window_goes_through(api: Api) -> None:
    values = [b"%d" % number * 50 for number in range(400)]
    async with api.open_writer(**SMALL) as log:
        ids = await log.append_many(values)
        ids_2 = await log.append_many(values, keys=[b"k"] * 400)
    assert len(ids) == len(ids_2) == 400
    assert await api.values() == values * 2


async def test_a_message_larger_than_the_window_goes_alone(api: Api) -> None:
    async with api.open_writer(**SMALL) as log:
        for _ in range(3):
            await log.append(b"x" * 100_000)
        await log.append_many([b"y" * 5000] * 3, atomic=True)
    assert len(await api.values()) == 6


async def test_a_crowd_of_waiters_all_come_in(file_api: Api) -> None:
    async with file_api.open_writer(**SMALL) as log:
        with held_at("ledger.synced") as disk:
            tickets = await fill(log)
            crowd = [
                asyncio.ensure_future(_submit(log, b"%d" % number * 250)) for number in range(20)
            ]
            await eventually(lambda: len(batcher_of(log)._waiting) == 20)
            disk.open()
            tickets += [await each for each in crowd]
        ids = {await ticket for ticket in tickets}
        assert len(batcher_of(log)._waiting) == 0
    assert len(ids) == len(tickets)
    assert {message.id for message in await file_api.read_all()} == ids


async def test_waiters_that_gave_up_leave_no_trace_and_take_nobodys_place(file_api: Api) -> None:
    async with file_api.open_writer(**SMALL) as log:
        with held_at("ledger.synced") as disk:
            tickets = await fill(log)
            for _ in range(10):
                with pytest.raises(dlog.Timeout):
                    await log.submit(b"x" * 300, timeout=0.001)
            assert len(batcher_of(log)._waiting) == 0
            patient = asyncio.ensure_future(_submit(log, b"patient" * 50))
            await eventually(lambda: batcher_of(log)._waiting)
            disk.open()
            await (await patient)
        for ticket in tickets:
            await ticket


async def test_waiters_cancelled_as_they_are_woken_pass_their_place_on(file_url: str) -> None:
    """Room was given to each of them; if they kept it, the last one would wait for ever."""
    async with dlog.aio.open_writer("log", url=file_url, **SMALL) as log:
        batcher = log._engine.batcher
        with held_at("ledger.synced") as disk:
            tickets = await fill(log)
            crowd = [asyncio.ensure_future(_submit(log, b"x" * 400)) for _ in range(20)]
            last = asyncio.ensure_future(_submit(log, b"last" * 100))
            await eventually(lambda: len(batcher._waiting) == 21)
            for number, fickle in enumerate(crowd):
                batcher._waiting[number] = _wake_and_cancel(batcher._waiting[number], fickle)
            disk.open()
            async with asyncio.timeout(10):
                tickets.append(await last)
        assert all([fickle.cancelled() for fickle in crowd])
        for ticket in tickets:
            await ticket


def _wake_and_cancel(wake: Callable[[], None], fickle: asyncio.Future[Any]) -> Callable[[], None]:
    def both() -> None:
        wake()
        fickle.cancel()

    return both


async def test_closing_wakes_who_waits_for_room(file_api: Api) -> None:
    log = await file_api.open_writer(**SMALL)
    with held_at("ledger.synced") as disk:
        tickets = await fill(log)
        waiting = asyncio.ensure_future(_submit(log, b"too late" * 60))
        await eventually(lambda: batcher_of(log)._waiting)
        closing = asyncio.ensure_future(_closed(log))
        with pytest.raises(dlog.WriterClosed):
            await waiting
        disk.open()
        await closing
    for ticket in tickets:
        assert ticket.done
    assert await file_api.values() == [b"x" * 300] * len(tickets)


async def _closed(log: Any) -> None:
    await log.close()


def test_a_gate_that_nobody_opens_is_noticed() -> None:
    """The tool of these tests itself: it lets everybody through once it is open, not before."""
    gate = Gate()
    assert not gate.reached.is_set()
    gate.open()
    gate.pass_through()
    assert gate.reached.is_set()
