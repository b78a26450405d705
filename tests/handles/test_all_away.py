"""Every store is away for long: what waits goes on, and what is closed comes to an end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dlog
from dlog import limits
from dlog.errors import Handle, Outcome, Retry
from dlog.reason import ReasonCode
from dlog.testing.sim import Simulation, simulate
from tests.handles.faults import EVERY_CALL, Faults
from tests.handles.kinds import LIVES
from tests.handles.lives import LOG
from tests.handles.test_go_on import GOES_ON_S
from tests.handles.writing import Healing, Writing, WritingAStream

AWAY_S = 70.0  # longer than anything here is patient with a store
SEALS_S = limits.SEAL_TIMEOUT_S


def away() -> dlog.Unavailable:
    return dlog.Unavailable("it is away")


async def begun(life: Any) -> Any:
    await life.begin()
    while not life.is_well:
        await life.turn()
    return life


@simulate(histories=1, troubles="none")
async def test_a_writer_whose_ledger_was_ended_heals_once_the_stores_are_back(
    sim: Simulation,
) -> None:
    faults = Faults(sim.pass_time)
    life: Healing = await begun(Healing(sim, faults))
    faults.begin(EVERY_CALL, away, None)
    await life.news()
    for _ in range(int(AWAY_S) // 5):
        await sim.pass_time(5.0)
        reason = life.why()
        assert reason is not None
        assert reason.code in (ReasonCode.HEALING, ReasonCode.METADATA_AWAY), reason
    assert not life.log.closed
    faults.end()
    async with asyncio.timeout(GOES_ON_S):
        while not life.is_well:
            await life.turn()
    await life.end()


@simulate(histories=1, troubles="none")
async def test_a_writer_goes_on_once_its_bookies_are_back(sim: Simulation) -> None:
    """Its ledger gave up after half a minute without any of them."""
    log = await sim.open_writer(LOG)
    await log.append(b"first")
    for server in sim.cluster.servers.values():
        server.stop()
    ticket = await log.submit(b"second")
    for _ in range(int(AWAY_S) // 5):
        await sim.pass_time(5.0)
        assert log.why() is not None
    assert not log.closed
    sim.heal()
    await ticket
    await log.append(b"third")
    async with await sim.open_reader(LOG) as reader:
        assert [each.value async for each in reader] == [b"first", b"second", b"third"]


SEALS: dict[str, Callable[[Any], Awaitable[None]]] = {
    "close": lambda log: log.close(),
    "hand_over": lambda log: log.hand_over(),
    "terminate": lambda log: log.terminate(),
}


@pytest.mark.parametrize("way", SEALS)
@simulate(histories=1, troubles="none")
async def test_a_seal_that_cannot_be_made_is_given_up_in_time(sim: Simulation, way: str) -> None:
    """All is acknowledged: what is left undone, the next writer does."""
    loop = asyncio.get_running_loop()
    faults = Faults(sim.pass_time)
    life: Writing = await begun(Writing(sim, faults))
    faults.begin(EVERY_CALL, away, None)
    began_s = loop.time()
    ending = asyncio.ensure_future(SEALS[way](life.log))
    await sim.pass_time(SEALS_S / 2)
    reason = life.why()
    assert reason is not None, "what it waits for"
    assert reason.code in (ReasonCode.CLOSING, ReasonCode.METADATA_AWAY)
    await asyncio.wait([ending])
    assert loop.time() - began_s < SEALS_S + GOES_ON_S
    error: Any = ending.exception()
    if way == "close":
        assert error is None
    else:
        assert isinstance(error, dlog.Timeout)
        assert (error.handle, error.retry) == (Handle.DEAD, Retry.AFTER_REOPEN)
        assert error.outcome is Outcome.UNKNOWN
        assert "the next writer" in error.message
        assert "it is away" in error.message
    assert life.log.closed
    faults.end()
    await life.client.close()
    async with await sim.open_reader(LOG) as reader:
        assert [each.value async for each in reader] == life.said
    await (await sim.open_writer(LOG)).append(b"the next writer")


@simulate(histories=1, troubles="none")
async def test_a_rotation_under_way_does_not_keep_a_writer_from_closing(sim: Simulation) -> None:
    loop = asyncio.get_running_loop()
    faults = Faults(sim.pass_time)
    life: Writing = await begun(Writing(sim, faults))
    faults.begin("appender.close", away, None)
    rotating = asyncio.ensure_future(life.log.rotate())
    await sim.pass_time(1.0)
    began_s = loop.time()
    await life.log.close()
    assert loop.time() - began_s < SEALS_S + GOES_ON_S
    with pytest.raises(dlog.WriterClosed):
        await rotating
    await life.client.close()


@simulate(histories=1, troubles="none")
async def test_a_cancelled_close_leaves_the_seal_to_the_next_one(sim: Simulation) -> None:
    faults = Faults(sim.pass_time)
    life: Writing = await begun(Writing(sim, faults))
    faults.begin(EVERY_CALL, away, None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await life.log.close()
    faults.end()
    await life.log.close()
    assert (await sim.connect().admin.describe(LOG)).writer is None


@pytest.mark.parametrize("way", LIVES)
@simulate(histories=1, troubles="none")
async def test_a_client_can_be_closed_in_time(sim: Simulation, way: str) -> None:
    """With all that it opened. What it could not delete, it says."""
    loop = asyncio.get_running_loop()
    faults = Faults(sim.pass_time)
    life = await begun(LIVES[way](sim, faults))
    faults.begin(EVERY_CALL, away, None)
    began_s = loop.time()
    with contextlib.suppress(dlog.Unavailable):
        await life.client.close()
    assert loop.time() - began_s < SEALS_S + GOES_ON_S
    if way.startswith("StreamReader"):
        await life.log.close()  # whose stores are well


@simulate(histories=1, troubles="none")
async def test_many_handles_are_closed_beside_each_other(sim: Simulation) -> None:
    loop = asyncio.get_running_loop()
    faults = Faults(sim.pass_time)
    life: Writing = await begun(Writing(sim, faults))
    others = [await life.client.open_writer(f"{LOG}-{number}") for number in range(20)]
    for log in others:
        await log.append(b"one")
    faults.begin(EVERY_CALL, away, None)
    began_s = loop.time()
    await life.client.close()
    assert loop.time() - began_s < SEALS_S + GOES_ON_S


@simulate(histories=1, troubles="none")
async def test_a_stream_writer_is_closed_in_time(sim: Simulation) -> None:
    loop = asyncio.get_running_loop()
    faults = Faults(sim.pass_time)
    life: WritingAStream = await begun(WritingAStream(sim, faults))
    faults.begin(EVERY_CALL, away, None)
    began_s = loop.time()
    await life.log.close()
    assert loop.time() - began_s < SEALS_S + GOES_ON_S
