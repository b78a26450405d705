"""Two writers, in one process or not: the older is fenced, and each policy keeps its word."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dlog
from tests.api.adapter import Api
from tests.api.waiting import DEADLINE_S, eventually, held_at


async def test_the_older_writer_is_fenced_and_told_by_whom(api: Api) -> None:
    old = await api.open_writer(owner="the old one")
    await old.append(b"before")
    async with api.open_writer(owner="the new one") as new:
        await new.append(b"after")
        with pytest.raises(dlog.Fenced) as caught:
            await old.append(b"zombie")
        fenced = caught.value
        assert fenced.handle is dlog.Handle.DEAD
        assert fenced.retry is dlog.Retry.AFTER_REOPEN
        assert fenced.winner.name == "the new one"
        assert fenced.winner.epoch == new.epoch == old.epoch + 1
        assert fenced.winner.since_us > 0
        assert "the new one" in str(fenced)
        assert fenced.log == "log"
        await new.append(b"more")
    assert old.closed
    for late in (old.append(b"x"), old.submit(b"x"), old.append_many([b"x"])):
        with pytest.raises(dlog.Fenced) as caught:
            await late
        assert caught.value.outcome is dlog.Outcome.NOT_HAPPENED
    await old.close()
    assert await api.values() == [b"before", b"after", b"more"]


async def test_a_winner_that_has_closed_by_then_is_still_named(api: Api) -> None:
    old = await api.open_writer(owner="the old one")
    await old.append(b"before")
    async with api.open_writer(owner="the new one") as new:
        await new.append(b"after")
        epoch = new.epoch
    with pytest.raises(dlog.Fenced) as caught:
        await old.append(b"zombie")
    assert (caught.value.winner.name, caught.value.winner.epoch) == ("the new one", epoch)
    await old.close()
    assert await api.values() == [b"before", b"after"]


async def test_two_writers_of_one_client_fence_each_other_as_well(api: Api) -> None:
    async with api.connect() as client:
        old = await client.open_writer("log")
        await old.append(b"old")
        new = await client.open_writer("log")
        with pytest.raises(dlog.Fenced):
            await old.append(b"zombie")
        await new.append(b"new")
    assert await api.values() == [b"old", b"new"]


async def test_flush_rotate_and_hand_over_of_a_fenced_writer_fail(api: Api) -> None:
    for verb in ("flush", "rotate", "hand_over"):
        old = await api.open_writer()
        ticket = await old.submit(b"old")
        await ticket
        async with api.open_writer(owner="winner"):
            pending = await old.submit(b"lost")
            with pytest.raises(dlog.Fenced) as caught:
                await getattr(old, verb)()
            assert caught.value.winner.name == "winner"
            with pytest.raises(dlog.Fenced):
                await pending
        await old.close()
    assert await api.values() == [b"old"] * 3


async def test_what_was_sent_is_unknown_and_what_was_not_did_not_happen(file_api: Api) -> None:
    """The old writer is slow on its disk: one entry is on its way, others queue behind it."""
    old = await file_api.open_writer(window_entries=1, entry_bytes=100)
    await old.append(b"first")
    with held_at("ledger.written", only_first=True) as disk:
        tickets = [await old.submit(b"%d" % number * 90) for number in range(5)]
        await eventually(disk.reached.is_set)
        new = asyncio.ensure_future(_appended(file_api, b"new"))
        await eventually(lambda: _claimed(old, file_api))
        disk.open()
        await new
    outcomes = []
    for ticket in tickets:
        with pytest.raises(dlog.Fenced) as caught:
            await ticket
        assert caught.value.handle is dlog.Handle.DEAD
        assert caught.value.winner is not None
        outcomes.append(caught.value.outcome)
    assert outcomes == [dlog.Outcome.UNKNOWN] + [dlog.Outcome.NOT_HAPPENED] * 4
    await old.close()
    values = await file_api.values()
    assert values[0] == b"first"
    assert values[-1] == b"new"
    assert set(values[1:-1]) <= {b"0" * 90}


def _claimed(old: Any, api: Api) -> bool:
    return (api_words(old)).fenced


def api_words(log: Any) -> Any:
    inner = getattr(log, "inner", log)
    engine = getattr(inner, "_inner", inner)._engine
    (appender,) = engine._driver.appenders.values()
    return appender._words


async def _appended(api: Api, value: bytes) -> dlog.MessageId:
    async with api.open_writer(owner="new") as log:
        return await log.append(value)


async def test_closing_a_fenced_writer_raises_only_for_what_nobody_was_told(api: Api) -> None:
    told = await api.open_writer()
    untold = None
    async with api.open_writer():
        with pytest.raises(dlog.Fenced):
            await told.append(b"lost")
        await told.close()
    untold = await api.open_writer()
    async with api.open_writer():
        await untold.submit(b"lost")
        with pytest.raises(dlog.Fenced) as caught:
            await untold.close()
        assert caught.value.handle is dlog.Handle.DEAD


async def test_policy_never_refuses_and_names_who_is_there(api: Api) -> None:
    async with api.open_writer(owner="me") as log:
        for policy in ("never", "if_dead"):
            with pytest.raises(dlog.Conflict) as caught:
                await api.open_writer(takeover=policy)
            assert caught.value.winner == dlog.Winner("me", log.epoch, caught.value.winner.since_us)
            assert "'me'" in str(caught.value) or "me," in str(caught.value)
            assert caught.value.handle is dlog.Handle.USABLE
            assert caught.value.outcome is dlog.Outcome.NOT_HAPPENED
        await log.append(b"undisturbed")
    for policy in ("never", "if_dead", "wait"):
        async with api.open_writer(takeover=policy) as log:
            await log.append(policy.encode())
    assert await api.values() == [b"undisturbed", b"never", b"if_dead", b"wait"]


async def test_policy_wait_comes_in_when_the_other_leaves(api: Api) -> None:
    old = await api.open_writer(owner="old")
    await old.append(b"old")
    waiting = asyncio.ensure_future(_append_patiently(api))
    await old.append(b"undisturbed")
    assert not waiting.done()
    await old.close()
    async with asyncio.timeout(DEADLINE_S):
        await waiting
    assert await api.values() == [b"old", b"undisturbed", b"patient"]


async def _append_patiently(api: Api) -> None:
    async with api.open_writer(takeover="wait") as log:
        await log.append(b"patient")


async def test_policy_wait_gives_up_in_time(api: Api) -> None:
    async with api.open_writer() as log:
        with pytest.raises(dlog.Timeout):
            await api.open_writer(takeover="wait", open_timeout_ms=100)
        await log.append(b"undisturbed")
        assert log.epoch == 1


async def test_policy_if_dead_takes_over_from_a_client_that_went_away(api: Api) -> None:
    """Its session ended, so nobody is present; the log was never sealed."""
    client = api.connect()
    old = await client.open_writer("log", owner="gone")
    await old.append(b"old")
    inner = getattr(old, "inner", old)
    engine = getattr(inner, "_inner", inner)._engine
    await _abandon(engine, api)
    async with api.connect() as other:
        with pytest.raises(dlog.Conflict):
            await other.open_writer("log", takeover="if_dead")
        await client.close()
        async with other.open_writer("log", takeover="if_dead") as log:
            await log.append(b"new")
    assert await api.values() == [b"old", b"new"]


async def _abandon(engine: Any, api: Api) -> None:
    """As if its process had died: nothing is flushed, closed or sealed; nobody says farewell."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def abandon() -> None:
        engine._presence.withdraw = engine._presence._asked.set
        engine.abandon(dlog.WriterClosed("abandoned by a test"))
        loop.call_soon_threadsafe(done.set)

    engine._loop.call_soon_threadsafe(abandon)
    async with asyncio.timeout(DEADLINE_S):
        await done.wait()


async def test_many_openers_leave_one_winner(api: Api) -> None:
    """Each came in at some moment; the last one is the writer, and every ack stands."""
    acknowledged: set[bytes] = set()

    async def contend(number: int) -> Any:
        log = await api.open_writer(owner=f"w{number}")
        try:
            for turn in range(3):
                value = b"%d.%d" % (number, turn)
                await log.append(value)
                acknowledged.add(value)
        except dlog.Fenced:
            pass
        return log

    async def survive(number: int) -> Any:
        try:
            return await contend(number)
        except dlog.Fenced:
            return None

    opened = [log for log in await asyncio.gather(*map(survive, range(6))) if log is not None]
    alive = []
    for log in opened:
        try:
            await log.append(b"last")
            alive.append(log)
        except dlog.Fenced:
            continue
    assert len(alive) == 1
    assert alive[0].epoch == max(log.epoch for log in opened)
    for log in opened:
        await log.close()
    values = await api.values()
    assert values[-1] == b"last"
    assert acknowledged <= set(values)
    assert len(set(values)) == len(values)
