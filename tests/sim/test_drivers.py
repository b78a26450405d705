"""The real drivers in virtual time: histories, what planted bugs tell of them, and the
stories of bugs that they had."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import subprocess
import sys

import pytest

import dlog
from dlog.testing.sim import Simulation, simulate
from dlog.testing.sim.loop_process import silence
from dlog.testing.sim.planted import drivers, planted
from dlog.testing.sim.runs import run_many
from dlog.testing.sim.tape import of_seed
from dlog.testing.sim.worlds import WORLDS
from tests.sim.histories import (
    Stretch,
    counts,
    fails_as_it_is,
    names_what_no_longer_tells,
    noticed,
    play,
    stretches,
)
from tests.tidy.source import ROOT

HISTORIES_MAX = 400
CAUGHT = sorted(name for name, plant in drivers.PLANTS.items() if plant.survives is None)
SURVIVORS = sorted(drivers.PLANTS.keys() - set(CAUGHT))

_TRANSCRIPTS = """
from tests.sim.test_drivers import transcripts
print(transcripts(range(5)))
"""


@stretches(40, 2_000, per_minute=960)
def test_no_history_breaks_a_promise(stretch: Stretch) -> None:
    play("drivers", stretch)


@pytest.mark.tier("test")
@names_what_no_longer_tells
@pytest.mark.parametrize("name", CAUGHT)
def test_a_planted_bug_is_noticed(name: str) -> None:
    noticed(drivers.PLANTS[name], count=HISTORIES_MAX)


@counts(5, 100, seconds=6)
@pytest.mark.parametrize("name", SURVIVORS)
def test_a_survivor_does_no_harm(name: str, count: int) -> None:
    """If one of these is noticed one day, it belongs to the others."""
    plant = drivers.PLANTS[name]
    with planted(plant):
        run_many(plant.world, count=count, **plant.fixed).check()


def transcripts(seeds: range) -> str:
    told = hashlib.sha256()
    for seed in seeds:
        world = WORLDS["drivers"](of_seed(seed, told=True), told=True)
        assert world.notes
        told.update("\n".join(world.notes).encode())
    return told.hexdigest()


def test_a_seed_is_one_history_in_every_process() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", _TRANSCRIPTS],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
            timeout=50,
        ).stdout
        for seed in (1, 2)
    }
    assert len(told) == 1


# --- stories of bugs that the histories found


@simulate(histories=10, troubles="none")
async def test_a_closer_in_a_hurry_cancels_nobody_else(sim: Simulation) -> None:
    log = await sim.open_writer("orders")
    for server in sim.cluster.servers.values():
        server.stop()
    await log.submit(b"it stays on its way")
    patient = asyncio.create_task(log.close())
    await sim.pass_time(0.01)
    with pytest.raises(dlog.Timeout):
        await log.close(timeout=0.1)
    with pytest.raises(dlog.WriterClosed):  # and not cancelled: nobody did that
        await patient
    sim.heal()


@simulate(histories=30, troubles="none")
async def test_an_opening_ends_with_its_client(sim: Simulation) -> None:
    """Whenever the client is closed: either there was a writer, and it is closed, too, or there is
    an error. A writer on stores that are closed would wait for ever."""
    client = sim.connect()
    busy = await client.open_writer("first")  # to close it takes a while
    await busy.submit(b"it stays on its way")
    opening = asyncio.create_task(_opened(client))
    await sim.pass_time(sim.chance.random() * 0.02)
    await client.close()
    try:
        log = await opening
    except dlog.ConfigError as told:
        if told.message != "this client is closed":  # as stores say that are closed under it
            raise
        return
    assert log.closed
    with pytest.raises(dlog.WriterClosed):
        await log.append(b"too late")


@pytest.mark.tier("test")
def test_that_story_notices_what_the_world_does_not() -> None:
    with planted(drivers.PLANTS["openings_outlive_their_client"]), silence():
        with fails_as_it_is():
            test_an_opening_ends_with_its_client()
        gc.collect()  # the writer that nobody closed


@simulate(histories=10, troubles="none")
async def test_a_run_that_began_is_not_refused(sim: Simulation) -> None:
    """The writer is closed while `append_many` waits for room: some of the run is there."""
    log = await sim.open_writer("orders", window_bytes=1024, entry_bytes=1024)
    run = asyncio.create_task(log.append_many([b"." * 600] * 200))
    await sim.pass_time(0.01)
    closing = asyncio.create_task(log.close())
    with pytest.raises(dlog.WriterClosed) as told:
        await run
    await closing
    assert told.value.outcome is dlog.Outcome.UNKNOWN
    async with dlog.aio.open_reader("orders", url=sim.url) as reader:
        assert 0 < len([message async for message in reader]) < 200


@simulate(histories=3, troubles="none")
async def test_a_writer_that_rests_is_let_go(sim: Simulation) -> None:
    """A duty failed and waits to be tried again when the writer is closed: nothing may be left,
    which the simulation sees to."""
    log = await sim.open_writer("orders")
    await log.append(b"first")
    sim.cluster.climate.meta.refused = 1.0
    rotation = asyncio.create_task(log.rotate())
    engine = log._engine
    while engine._duty is not None or engine._failures < 4:
        await sim.pass_time(0.05)
    sim.heal()
    await log.close()
    with pytest.raises(dlog.DlogError):
        await rotation


async def _opened(client: dlog.aio.Client) -> dlog.aio.Writer:
    return await client.open_writer("orders")
