"""Tickets and runs of ids: waiting for them, looking at them, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import dlog
from tests.api.adapter import Api, on_thread
from tests.api.waiting import eventually, held_at


async def test_a_ticket_answers_as_often_as_it_is_asked(api: Api) -> None:
    async with api.open_writer() as log:
        ticket = await log.submit(b"x")
        first = await ticket
        assert ticket.done
        assert await ticket == first
        assert ticket.result() == ticket.result(0) == first
        assert repr(ticket.inner if api.name == "sync" else ticket) == f"<Ticket {first}>"


async def test_tickets_resolve_in_order_to_rising_ids(api: Api) -> None:
    async with api.open_writer(entry_bytes=200) as log:
        tickets = [await log.submit(b"%d" % number) for number in range(500)]
        last = await tickets[-1]
        assert all(ticket.done for ticket in tickets)
        ids = [ticket.result() for ticket in tickets]
    assert ids == sorted(set(ids))
    assert ids[-1] == last
    assert ids == [message.id for message in await api.read_all()]


async def test_a_ticket_of_one_loop_can_be_awaited_on_another(api: Api) -> None:
    async with api.open_writer() as log:
        ticket = await log.submit(b"x")
        ticket = getattr(ticket, "inner", ticket)

        async def elsewhere() -> dlog.MessageId:
            return await ticket

        assert await on_thread(asyncio.run, elsewhere()) == ticket.result(20)


async def test_a_timeout_abandons_the_wait_and_not_the_message(file_api: Api) -> None:
    with held_at("ledger.synced") as disk:
        opening = asyncio.ensure_future(_opened(file_api))
        await eventually(disk.reached.is_set)
        disk.open()
        log = await opening
    with held_at("ledger.synced") as disk:
        ticket = await log.submit(b"slow")
        with pytest.raises(dlog.Timeout) as caught:
            await on_thread(ticket.result, 0.02)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.outcome is dlog.Outcome.UNKNOWN
        assert caught.value.handle is dlog.Handle.USABLE
        with pytest.raises(dlog.Timeout):
            await log.append(b"slow too", timeout=0.02)
        with pytest.raises(dlog.Timeout):
            await log.append_many([b"slow", b"as well"], timeout=0.02)
        with pytest.raises(dlog.Timeout):
            await log.flush(timeout=0.02)
        assert not ticket.done
        disk.open()
        assert (await ticket).batch_idx == 0
    await log.close()
    assert await file_api.values() == [b"slow", b"slow too", b"slow", b"as well"]


async def _opened(api: Api) -> Any:
    return await api.open_writer()


async def test_waits_that_were_given_up_leave_no_waiter(file_api: Api) -> None:
    """Who asks again and again for a slow message must not grow it."""
    async with file_api.open_writer() as log:
        with held_at("ledger.synced") as disk:
            ticket = await log.submit(b"slow")
            batch = getattr(ticket, "inner", ticket)._batch
            for _ in range(20):
                with pytest.raises(dlog.Timeout):
                    await on_thread(ticket.result, 0.001)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.001):
                        await getattr(ticket, "inner", ticket)
                with pytest.raises(dlog.Timeout):
                    await log.flush(timeout=0.001)
            if file_api.name == "sync":  # its loop notices a given up flush by itself
                await eventually(lambda: not batch.waiters)
            assert len(batch.waiters) == 0
            disk.open()
        await ticket


async def test_callbacks_are_called_once_whenever_they_come(api: Api) -> None:
    called: list[tuple[str, object]] = []
    everything = threading.Event()

    def note(when: str) -> None:
        called.append((when, threading.get_ident()))
        if len(called) == 3:
            everything.set()

    async with api.open_writer() as log:
        ticket = await log.submit(b"x")
        ticket.add_done_callback(lambda same: note("early"))
        ticket.add_done_callback(lambda same: note(f"early {same.result()}"))
        first = await ticket
        await eventually(lambda: len(called) == 2)
        ticket.add_done_callback(lambda same: note("late"))
        assert everything.is_set()
        assert called[-1] == ("late", threading.get_ident())
    assert [when for when, _ in called] == ["early", f"early {first}", "late"]


async def test_a_failing_callback_harms_nobody_else(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """It is called on the client's loop thread: its error must not stop the acknowledgements."""
    seen: list[dlog.MessageId] = []

    def fail(ticket: dlog.Ticket) -> None:
        raise ZeroDivisionError

    async with api.open_writer() as log:
        ticket = await log.submit(b"x")
        ticket.add_done_callback(fail)
        ticket.add_done_callback(lambda same: seen.append(same.result()))
        first = await ticket
        await eventually(lambda: seen == [first])
        assert await log.append(b"y") > first
        ticket.add_done_callback(fail)
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError] * 2
    assert await api.values() == [b"x", b"y"]


async def test_a_run_of_ids_is_a_lazy_sequence(api: Api) -> None:
    async with api.open_writer(entry_bytes=200) as log:
        run = await log.append_many(b"%d" % number for number in range(100))
    ids = [message.id for message in await api.read_all()]
    assert (run.first, run.last, len(run)) == (ids[0], ids[-1], 100)
    assert list(run) == ids
    assert (run[0], run[57], run[-1], run[-100]) == (ids[0], ids[57], ids[-1], ids[0])
    assert run[10:20] == ids[10:20]
    assert run[::-7] == ids[::-7]
    assert run[95:300] == ids[95:]
    assert run[50:50] == []
    assert ids[33] in run
    assert run.index(ids[33]) == 33
    for outside in (100, -101):
        with pytest.raises(IndexError):
            run[outside]
    assert repr(run) == f"<IdRun {ids[0]} … {ids[-1]}, 100>"
    assert len(run._pieces) < 100


async def test_flush_waits_for_everything_submitted(api: Api) -> None:
    async with api.open_writer(entry_bytes=100) as log:
        await log.flush()
        tickets = [await log.submit(b"x" * 50) for _ in range(50)]
        await log.flush()
        assert all(ticket.done for ticket in tickets)
        await log.flush(timeout=5)


async def test_last_id_is_the_last_acknowledged(api: Api) -> None:
    async with api.open_writer() as log:
        assert log.last_id is None
        first = await log.append(b"x")
        assert log.last_id == first
        run = await log.append_many([b"y"] * 10)
        assert log.last_id == run.last
        await log.rotate()
        assert log.last_id == run.last
    assert log.last_id == run.last
