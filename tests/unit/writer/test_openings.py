"""Openings on the real driver in virtual time: what each step took, and how soon a message can be
read where later will do."""

from __future__ import annotations

import asyncio

import pytest

from dlog import LogOptions
from dlog.testing.sim import Simulation, simulate
from dlog.writer.times import TakeoverTimes

STEPS = ("detect_ms", "claim_ms", "fence_ms", "recover_ms", "commit_ms", "seam_ms", "birth_ms")


def taken(times: TakeoverTimes) -> set[str]:
    """The steps that took time."""
    return {name for name in STEPS if getattr(times, name) > 0}


@simulate(histories=1, troubles="none")
async def test_a_takeover_took_each_of_its_steps_and_their_sum(sim: Simulation) -> None:
    loop = asyncio.get_running_loop()
    first = await sim.open_writer("orders", create=LogOptions())
    await first.append(b"one")
    began_s = loop.time()
    second = await sim.open_writer("orders")
    took_ms = (loop.time() - began_s) * 1000
    times = second.takeover_times
    assert taken(times) == set(STEPS)
    assert 0 < times.total_ms <= took_ms
    assert times.total_ms == pytest.approx(took_ms, rel=0.3)
    assert times.birth_ms <= times.detect_ms + 1e-6  # before anybody is ended for it
    await second.close()


@simulate(histories=1, troubles="none")
async def test_a_log_that_was_left_sealed_needs_no_claim_and_no_fence(sim: Simulation) -> None:
    for create in (LogOptions(), False):  # nor does a new one
        log = await sim.open_writer("orders", create=create)
        await log.append(b"one")
        assert taken(log.takeover_times) == set(STEPS) - {"claim_ms", "fence_ms"}
        await log.close()


@simulate(histories=1, troubles="none")
async def test_each_message_can_be_read_within_its_bound(sim: Simulation) -> None:
    """Again and again, also when nothing follows it."""
    log = await sim.open_writer("orders", visible="within:200ms", create=LogOptions())
    for number in range(4):
        await log.append(b"%d" % number)
        await sim.pass_time(0.4)
        async with await sim.connect().open_reader("orders") as reader:
            values = [message.value async for message in reader]
        assert values == [b"%d" % each for each in range(number + 1)]
    await log.close()
