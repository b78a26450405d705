"""Stories of readers beside servers that fail, on the real drivers in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

import dlog
from dlog.testing.sim import Simulation, simulate

AWAY_S = 13.0


@simulate(histories=5, troubles="none")
async def test_followers_go_on_behind_a_metadata_store_that_was_away(sim: Simulation) -> None:
    """Behind a segment that was closed meanwhile: four of six were dead, and said "usable"."""
    log = await sim.open_writer("orders", owner="writer")
    await log.append(b"0")
    readers = [await sim.open_reader("orders", follow=True) for _ in range(6)]
    for reader in readers:
        assert await _values(reader) == [b"0"]
    await log.rotate()
    await log.append(b"1")
    sim.cluster.climate.meta.refused = 1.0
    await sim.pass_time(AWAY_S)
    given = [await _values(reader) for reader in readers]  # of whoever crossed before
    waiting = [r for r, each in zip(readers, given, strict=True) if not each]
    assert all(r.why() is not None for r in waiting)
    sim.cluster.climate.meta.refused = 0.0
    await log.append(b"2")
    await sim.pass_time(2.0)
    for reader, before in zip(readers, given, strict=True):
        assert before + await _values(reader) == [b"1", b"2"]


@simulate(histories=5, troubles="none")
async def test_followers_go_on_behind_bookies_that_were_away(sim: Simulation) -> None:
    log = await sim.open_writer("orders", stall_after_ms=0)
    await log.append(b"0")
    reader = await sim.open_reader("orders", follow=True)
    assert await _values(reader) == [b"0"]
    for server in sim.cluster.servers.values():
        server.stop()
    await sim.pass_time(AWAY_S)
    reason = reader.why()
    assert reason is not None
    sim.heal()
    await log.append(b"1")
    await sim.pass_time(2.0)
    assert await _values(reader) == [b"1"]


@simulate(histories=5, troubles="none")
async def test_a_bounded_reader_is_told_once_and_goes_on_with_the_next_call(
    sim: Simulation,
) -> None:
    log = await sim.open_writer("orders")
    for number in range(4):
        await log.append(b"%d" % number)
        await log.rotate()
    reader = await sim.open_reader("orders", read_ahead_bytes=1, read_run_bytes=1)
    assert [each.value for each in await reader.read(1)] == [b"0"]
    for server in sim.cluster.servers.values():
        server.stop()
    with pytest.raises(dlog.DlogError) as told:
        await _until_told(reader)
    assert (told.value.handle, told.value.retry) == (dlog.Handle.USABLE, dlog.Retry.NOW)
    assert reader.why() is not None
    next_seq = reader.position.next_seq
    sim.heal()
    left = [message.value async for message in reader]
    assert left == [b"%d" % number for number in range(next_seq, 4)]


@simulate(histories=1, troubles="none")
async def test_many_handles_of_one_process_outlive_its_servers(sim: Simulation) -> None:
    """Each goes on, or says that it is dead; with all servers back, none is stuck."""
    client = sim.connect()
    names = [f"log-{number}" for number in range(6)]
    logs = [await client.open_writer(name) for name in names]
    readers = [await client.open_reader(name, follow=True) for name in names]
    standbys = [await client.open_standby(name) for name in names]
    numbers = dict.fromkeys(names, 0)
    for _ in range(4):
        for _ in range(2):
            await sim.lose_bookie(4.0)
        tickets = [await log.submit(b"x") for log in logs]
        if sim.chance.hits(0.5, "metadata is away"):
            sim.cluster.climate.meta.refused = 1.0
        await sim.pass_time(6.0)
        sim.cluster.climate.meta.refused = 0.0
        await sim.pass_time(10.0)
        for log, ticket, name in zip(logs, tickets, names, strict=True):
            await ticket
            await log.rotate()
            numbers[name] += 1
        await sim.pass_time(4.0)
        for name, reader, standby in zip(names, readers, standbys, strict=True):
            assert len(await _values(reader)) == 1, name
            assert standby.ready, name
    for name, standby in zip(names, standbys, strict=True):
        async with await standby.take_over() as won:
            assert (await won.append(b"mine")).ledger_id >= 0, name
        await standby.close()
    await client.close()


async def _until_told(reader: Any) -> None:
    while True:
        await reader.read(1)


async def _values(reader: Any) -> list[bytes]:
    return [message.value for message in await reader.read(timeout=0.5)]
