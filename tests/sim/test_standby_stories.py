"""Stories of standbys, and of who is said to be present, on the real drivers in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import dlog
from dlog.testing.sim import Simulation, simulate


@simulate(histories=30, troubles="none")
async def test_a_takeover_ends_with_its_standby(sim: Simulation) -> None:
    """Whenever it is closed: either there is a writer, or there is none and the log is as it was.
    What was ready was once deleted under the takeover that listed it."""
    await _one(sim)
    standby = await sim.open_standby("orders", owner="new")
    taking = asyncio.create_task(standby.take_over())
    await sim.pass_time(sim.chance.random() * 0.02)
    await standby.close()
    try:
        writer = await taking
    except dlog.ReaderClosed:
        pass
    else:
        await writer.append(b"two")
        await writer.close()
    later = await sim.open_writer("orders", owner="later")
    await later.append(b"three")
    assert (await _values(sim))[-1] == b"three"


@simulate(histories=30, troubles="none")
async def test_a_takeover_ends_with_its_client(sim: Simulation) -> None:
    """A writer on stores that are closed would wait for ever."""
    await _one(sim)
    client = sim.connect()
    busy = await client.open_writer("first")  # to close it takes a while
    await busy.submit(b"it stays on its way")
    standby = await client.open_standby("orders", owner="new")
    taking = asyncio.create_task(standby.take_over())
    await sim.pass_time(sim.chance.random() * 0.02)
    await client.close()
    try:
        writer = await taking
    except dlog.ReaderClosed:
        pass
    else:
        assert writer.closed
    later = await sim.open_writer("orders", owner="later")
    await later.append(b"three")


@simulate(histories=3, troubles="none")
async def test_who_waits_for_a_vacancy_is_told_that_the_standby_was_closed(sim: Simulation) -> None:
    await _one(sim)
    standby = await sim.open_standby("orders")
    calls = [
        asyncio.create_task(work)
        for work in (standby.wait(), standby.wait(60), standby.take_over("wait"), _all(standby))
    ]
    await sim.pass_time(0.1)
    await standby.close()
    ends = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(end) for end in ends] == [*[dlog.ReaderClosed] * 3, list]


@simulate(histories=3, troubles="none")
async def test_an_opening_that_failed_leaves_nobody_present(sim: Simulation) -> None:
    """Its own name, left behind, kept its next try out."""
    await (await _one(sim)).close()
    client = sim.connect()
    for server in sim.cluster.servers.values():
        server.stop()
    with pytest.raises(dlog.DlogError):
        await client.open_writer("orders", open_timeout_ms=500)
    sim.heal()
    async with client.open_writer("orders", takeover="if_dead") as log:
        await log.append(b"two")


@simulate(histories=3, troubles="none")
async def test_a_standby_does_not_wait_for_itself(sim: Simulation) -> None:
    """Its takeover failed half-way, while metadata was away as well."""
    await _one(sim)
    standby = await sim.open_standby("orders", open_timeout_ms=500)
    for server in sim.cluster.servers.values():
        server.stop()
    taking = asyncio.create_task(standby.take_over())
    while not standby._stores.ledgers._recovery._running:  # type: ignore[attr-defined]
        await sim.pass_time(0.001)
    sim.cluster.climate.meta.refused = 1.0
    with pytest.raises(dlog.DlogError):
        await taking
    await sim.pass_time(5.0)
    sim.heal()
    assert await standby.wait(20)
    async with await standby.take_over("wait") as log:
        await log.append(b"two")
    await standby.close()


@simulate(histories=3, troubles="none")
async def test_a_writer_that_died_is_not_present(sim: Simulation) -> None:
    old = await sim.open_writer("orders", owner="old")
    await old.append(b"one")
    old._engine.break_down(RuntimeError("a defect"))
    with pytest.raises(dlog.DlogError):
        await old.append(b"nobody takes it")
    await sim.pass_time(1.0)  # its name is taken away behind that
    log = await sim.open_writer("orders", takeover="if_dead")
    await log.append(b"two")


@simulate(histories=3, troubles="none")
async def test_a_standby_stays_one_while_metadata_is_away(sim: Simulation) -> None:
    """DL-35: it reads on, and whoever waits for a vacancy waits on."""
    old = await _one(sim)
    standby = await sim.open_standby("orders")
    reading = asyncio.create_task(_all(standby))
    waiting = asyncio.create_task(standby.wait())
    taking = asyncio.create_task(standby.take_over("wait"))
    await sim.pass_time(1.0)
    sim.cluster.climate.meta.refused = 1.0
    await sim.pass_time(5.0)
    await old.append(b"two")
    await sim.pass_time(5.0)
    with pytest.raises(dlog.Unavailable):
        await standby.wait(0)
    assert not await standby.wait(0.5)
    sim.cluster.climate.meta.refused = 0.0
    await sim.pass_time(5.0)
    assert not reading.done()
    assert not waiting.done()
    await old.close()
    async with await taking as log:
        assert await waiting
        assert await reading + await _all(standby) == [b"one", b"two"]
        await log.append(b"three")
    await standby.close()


@simulate(histories=3, troubles="none")
async def test_a_standby_that_cannot_begin_says_why(sim: Simulation) -> None:
    for server in sim.cluster.servers.values():
        server.stop()
    with pytest.raises(dlog.Timeout, match="standing by within 500 ms"):
        await sim.open_standby("orders", open_timeout_ms=500)
    sim.cluster.climate.meta.refused = 1.0
    with pytest.raises(dlog.Unavailable, match="metadata"):
        await sim.open_standby("orders", open_timeout_ms=500)
    sim.heal()


@simulate(histories=5, troubles="none")
async def test_what_was_offered_in_vain_is_let_go(sim: Simulation) -> None:
    await _one(sim)
    standby = await sim.open_standby("orders", open_timeout_ms=400)
    ready, meta = standby._core.ready, sim.cluster.climate.meta
    genuine = ready.offered

    def offered() -> None:
        genuine()
        meta.reply_lost = 1.0  # whether it was listed, nobody is told

    ready.offered = offered  # type: ignore[method-assign]
    for _ in range(4):
        with pytest.raises(dlog.DlogError):
            await standby.take_over()
        meta.reply_lost = 0.0
        while not standby.ready:
            await sim.pass_time(0.1)
        assert list(standby._driver.appenders) == [ready.ledger_id]
    del ready.offered  # type: ignore[method-assign]
    await standby.close()


@simulate(histories=3, troubles="none")
async def test_nobody_is_refused_for_what_a_standby_saw_before(sim: Simulation) -> None:
    old = await _one(sim)
    standby = await sim.open_standby("orders")
    await standby._stop_keeping(patience_s=1)  # it is about to look again, and did not yet
    await old.close()
    async with await standby.take_over("never") as log:
        await log.append(b"two")
    await standby.close()


@simulate(histories=3, troubles="none")
async def test_a_stranger_at_a_newborn_ledger_costs_another_one(sim: Simulation) -> None:
    """Whoever recovers what it finds says nothing about who has the log."""
    await _one(sim)
    standby = await sim.open_standby("orders")
    stores: Any = standby._stores
    genuine = stores.ledgers.create
    strangers = 0

    async def create(spec: Any) -> Any:
        nonlocal strangers
        appender = await genuine(spec)
        if strangers < 2:
            strangers += 1
            await stores.ledgers.recover(appender.ledger_id)
        return appender

    stores.ledgers.create = create
    other = await sim.open_writer("orders")  # and the floor rises
    await other.append(b"two")
    while not (strangers == 2 and standby.ready):
        await sim.pass_time(0.1)
    async with await standby.take_over() as log:
        await log.append(b"three")
    await standby.close()
    del stores.ledgers.create


@simulate(histories=10, troubles="none")
async def test_what_is_brought_may_have_failed_meanwhile(sim: Simulation) -> None:
    """A stranger ends the ready ledger while the takeover lists it: healing takes another."""
    await _one(sim)
    standby = await sim.open_standby("orders")
    stores: Any = standby._stores
    ready = standby._core.ready.ledger_id
    taking = asyncio.create_task(standby.take_over())
    await sim.pass_time(sim.chance.random() * 0.005)
    await stores.ledgers.recover(ready)
    async with await taking as log:
        await log.append(b"two")
    assert await _values(sim) == [b"one", b"two"]
    await standby.close()


# --- tools


async def _one(sim: Simulation) -> dlog.aio.Writer:
    log = await sim.open_writer("orders", owner="old")
    await log.append(b"one")
    return log


async def _all(standby: dlog.aio.Standby) -> list[bytes | None]:
    return [message.value async for message in standby.messages()]


async def _values(sim: Simulation) -> list[bytes | None]:
    async with dlog.aio.open_reader("orders", url=sim.url) as reader:
        return [message.value async for message in reader]


@simulate(histories=3, troubles="none")
async def test_a_standby_whose_ledger_could_not_be_born_takes_over_later(sim: Simulation) -> None:
    """The appender of that ledger was dead, and the standby said so of itself, for ever: "nothing
    was confirmed for 5026 ms"."""
    old = await _one(sim)
    standby = await sim.open_standby("orders", open_timeout_ms=8_000)
    await old.rotate()  # what is ready is too old now
    for server in sim.cluster.servers.values():
        server.stop()
    await sim.pass_time(20.0)
    assert not standby.ready
    reason = standby.why()
    assert reason is not None
    assert reason.code in (dlog.ReasonCode.LEDGER_CREATION, dlog.ReasonCode.BOOKIES_AWAY)
    with pytest.raises(dlog.DlogError) as told:
        await standby.take_over()
    assert (told.value.handle, told.value.retry) == (dlog.Handle.USABLE, dlog.Retry.NOW)
    patient = asyncio.create_task(standby.take_over("wait"))
    await sim.pass_time(20.0)
    assert not patient.done()
    assert standby.why() is not None
    sim.heal()
    await old.close()  # no opening that failed has fenced it
    async with await patient as log:
        await log.append(b"two")
    assert standby.why() is None
    assert (await _values(sim))[-1] == b"two"
    assert standby._driver.appenders == {}, "what was not born is let go"
    await standby.close()


@simulate(histories=3, troubles="none")
async def test_a_standby_is_ready_again_by_itself(sim: Simulation) -> None:
    old = await _one(sim)
    standby = await sim.open_standby("orders")
    await old.rotate()
    for server in sim.cluster.servers.values():
        server.stop()
    await sim.pass_time(30.0)
    sim.heal()
    await sim.pass_time(2.0)
    assert standby.ready
    assert standby.why() is None
    await standby.close()


@simulate(histories=3, troubles="none")
async def test_a_standby_that_lost_a_takeover_says_that_it_goes_on(sim: Simulation) -> None:
    await _one(sim)
    standby = await sim.open_standby("orders")
    with pytest.raises(dlog.Conflict) as told:
        await standby.take_over("never")
    assert (told.value.handle, told.value.retry) == (dlog.Handle.USABLE, dlog.Retry.NOW)
    async with await standby.take_over() as log:
        await log.append(b"two")
    await standby.close()


@simulate(histories=3, troubles="none")
async def test_a_standby_of_a_removed_log_says_each_time_that_it_is_dead(sim: Simulation) -> None:
    old = await _one(sim)
    standby = await sim.open_standby("orders")
    await old.close()
    await sim.connect().admin.remove("orders")
    await sim.pass_time(2.0)
    for _ in range(2):
        with pytest.raises(dlog.NotFound) as told:
            await standby.wait(0)
        assert told.value.handle is dlog.Handle.DEAD
    reason = standby.why()
    assert reason is not None
    assert reason.code is dlog.ReasonCode.LOST
    await standby.close()
