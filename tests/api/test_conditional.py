"""Appending only behind the tail that the caller knows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dlog
from tests.api.adapter import Api
from tests.api.waiting import eventually, held_at


async def test_each_append_names_the_one_before(api: Api) -> None:
    async with api.open_writer() as log:
        tail: Any = "empty"
        for number in range(5):
            tail = await log.append(b"%d" % number, if_tail=tail)
        assert await (await log.submit(b"5", if_tail=tail)) > tail
    assert await api.values() == [b"%d" % number for number in range(6)]


async def test_an_old_tail_is_refused_with_the_new_one(api: Api) -> None:
    async with api.open_writer() as log:
        first = await log.append(b"first")
        second = await log.append(b"second")
        for wrong in (first, "empty"):
            with pytest.raises(dlog.Conflict) as caught:
                await log.append(b"third", if_tail=wrong)
            assert caught.value.tail == second
            assert caught.value.outcome is dlog.Outcome.NOT_HAPPENED
            assert caught.value.handle is dlog.Handle.USABLE
            assert caught.value.retry is dlog.Retry.NEVER
            assert str(second) in str(caught.value)
        await log.append(b"third", if_tail=caught.value.tail)
    assert await api.values() == [b"first", b"second", b"third"]


async def test_a_new_writer_goes_by_the_last_message_of_the_log(api: Api) -> None:
    """Whether the writer before it closed, rotated or was taken over; control entries are no
    messages."""
    async with api.open_writer() as log:
        first = await log.append(b"first")
        await log.rotate()
    async with api.open_writer() as log:
        for wrong in ("empty", first._replace(batch_idx=1)):
            with pytest.raises(dlog.Conflict) as caught:
                await log.append(b"x", if_tail=wrong)
            assert caught.value.tail == first
        second = await log.append(b"second", if_tail=first)
        async with api.open_writer() as other:
            with pytest.raises(dlog.Conflict) as caught:
                await other.submit(b"x", if_tail=first)
            assert caught.value.tail == second
            await other.append(b"third", if_tail=second)
        with pytest.raises(dlog.Fenced):
            await log.append(b"zombie", if_tail=second)
    assert await api.values() == [b"first", b"second", b"third"]


async def test_a_message_on_its_way_is_the_tail_and_has_no_name_yet(file_api: Api) -> None:
    log = await file_api.open_writer()
    first = await log.append(b"first")
    with held_at("ledger.synced") as disk:
        ticket = await log.submit(b"second")
        await eventually(disk.reached.is_set)
        queued = await log.submit(b"third")
        with pytest.raises(dlog.Conflict, match="still on its way") as caught:
            await log.submit(b"x", if_tail=first)
        assert caught.value.tail is None
        disk.open()
    second = await ticket
    with pytest.raises(dlog.Conflict):
        await log.append(b"x", if_tail=second)
    await log.append(b"fourth", if_tail=await queued)
    await log.close()
    assert await file_api.values() == [b"first", b"second", b"third", b"fourth"]


async def test_of_many_who_know_the_same_tail_one_gets_in(api: Api) -> None:
    async with api.open_writer() as log:
        tail = await log.append(b"tail")
        tries = [log.append(b"%d" % number, if_tail=tail) for number in range(20)]
        answers = await asyncio.gather(*tries, return_exceptions=True)
    there = [answer for answer in answers if isinstance(answer, dlog.MessageId)]
    assert len(there) == 1
    assert all(isinstance(each, dlog.Conflict) for each in answers if each not in there)
    assert [m.id for m in await api.read_all()] == [tail, *there]


async def test_what_is_no_tail_is_refused(api: Api) -> None:
    async with api.open_writer() as log:
        for wrong in ("1:2:3", 7, "", b"empty"):
            with pytest.raises(dlog.ConfigError, match="if_tail is a MessageId"):
                await log.append(b"x", if_tail=wrong)
    assert await api.values() == []
    with pytest.raises(dlog.WriterClosed):
        await log.append(b"x", if_tail="empty")
