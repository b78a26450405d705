"""A handle that was closed says so, also where it could not end as it was asked to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dlog
from dlog.errors import DlogError, Handle, Retry
from dlog.testing.sim import Simulation, simulate
from tests.handles.faults import Faults
from tests.handles.lives import LOG
from tests.handles.writing import Writing, WritingAStream

WAYS: dict[str, tuple[type[Any], str, Callable[[Any], Awaitable[None]]]] = {
    "hand_over": (Writing, "meta.put", lambda log: log.hand_over()),
    "terminate": (Writing, "meta.put", lambda log: log.terminate()),
    "hand_over in a hurry": (Writing, "appender.close", lambda log: log.hand_over(timeout=1.0)),
    "close in a hurry": (Writing, "appender.close", lambda log: log.close(timeout=1.0)),
    "close a stream in a hurry": (
        WritingAStream,
        "appender.close",
        lambda log: log.close(timeout=1.0),
    ),
}


@pytest.mark.parametrize("way", WAYS)
@simulate(histories=1, troubles="none")
async def test_what_could_not_end_well_is_dead(sim: Simulation, way: str) -> None:
    kind, call, end = WAYS[way]
    faults = Faults(sim.pass_time)
    life = kind(sim, faults)
    await life.begin()
    while not life.is_well:
        await life.turn()
    error = dlog.AuthError if call == "meta.put" else dlog.Unavailable
    faults.begin(call, lambda: error("it is refused"), None)
    with pytest.raises(DlogError) as failed:
        await end(life.log)
    assert failed.value.handle is Handle.DEAD
    assert failed.value.retry is not Retry.NOW
    with pytest.raises(dlog.WriterClosed):
        await life.log.append(b"too late", key=b"k")
    faults.end()
    await life.client.close()


@simulate(histories=1, troubles="none")
async def test_a_stream_writer_that_moves_says_what_it_waits_for(sim: Simulation) -> None:
    """It said that it was lost."""
    faults = Faults(sim.pass_time)
    life = WritingAStream(sim, faults)
    await life.begin()
    faults.begin("ledgers.create", lambda: dlog.Unavailable("it is away"), None)
    await life.news()
    await sim.pass_time(3.0)
    (reason,) = life.log.why().values()
    assert reason.code is not dlog.ReasonCode.LOST
    assert "go on in those behind it" in reason.sentence
    faults.end()
    while not life.is_well:
        await life.turn()
    await life.end()


@simulate(histories=1, troubles="none")
async def test_a_range_that_ended_in_an_error_says_so_again(sim: Simulation) -> None:
    log = await sim.open_writer(LOG)
    await log.append(b"one")
    await log.rotate()
    client = sim.connect()
    (wanted,) = await client.admin.plan_ranges(LOG)
    await log.rotate()
    await client.admin.truncate(LOG, before="latest")
    batches = client.read_range(wanted)
    for _ in range(2):
        with pytest.raises(dlog.Truncated):
            await anext(batches)
