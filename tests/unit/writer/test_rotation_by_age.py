"""Rotation by age, on the real driver in virtual time: a segment that holds messages ends at the
age that the log names, however quiet the log is. One without messages never ends by age."""

from __future__ import annotations

from dlog import LogOptions
from dlog.testing.sim import Simulation, simulate
from dlog.writer.engine import AGE_CHECKS

AGE_S = 430
OLD = LogOptions(segment_age_s=AGE_S)
LATE_S = AGE_S / AGE_CHECKS + 1  # the age of a quiet segment is looked at so often


async def _segments(sim: Simulation) -> int:
    """As many as have a place in the list, the one that is written included."""
    return len(await sim.connect().admin.segments("orders"))


@simulate(histories=1, troubles="none")
async def test_a_quiet_segment_is_rotated_when_it_is_old(sim: Simulation) -> None:
    log = await sim.open_writer("orders", create=OLD)
    await log.append(b"one")
    await sim.pass_time(AGE_S - 2)
    assert await _segments(sim) == 1
    await sim.pass_time(2 + LATE_S)
    assert await _segments(sim) == 2
    await log.append(b"two")
    await log.close()


@simulate(histories=1, troubles="none")
async def test_the_age_counts_from_the_beginning_of_each_segment(sim: Simulation) -> None:
    log = await sim.open_writer("orders", create=OLD)
    await log.append(b"one")
    await sim.pass_time(AGE_S + LATE_S)
    assert await _segments(sim) == 2
    await log.append(b"two")
    await sim.pass_time(AGE_S - LATE_S - 2)
    assert await _segments(sim) == 2
    await sim.pass_time(2 * LATE_S + 2)
    assert await _segments(sim) == 3
    await log.close()


@simulate(histories=1, troubles="none")
async def test_an_empty_segment_is_not_rotated_however_old_it_is(sim: Simulation) -> None:
    log = await sim.open_writer("orders", create=OLD)
    await sim.pass_time(5 * AGE_S)
    assert await _segments(sim) == 1
    await log.append(b"late")  # now it holds something, and is old
    await sim.pass_time(LATE_S)
    assert await _segments(sim) == 2
    await log.close()
