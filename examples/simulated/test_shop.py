"""Run it with pytest. Each test is some dozens of histories; each history is another world."""

from __future__ import annotations

import asyncio

import pytest

from dlog.testing.sim import Simulation, simulate
from examples.simulated.shop import LOG, orders, place


@simulate(histories=40)
async def test_each_order_is_placed_once(sim: Simulation) -> None:
    async def rivals() -> None:
        for _ in range(3):
            await asyncio.sleep(sim.chance.delay(0.01))
            await sim.take_over(LOG)

    rivalry = asyncio.create_task(rivals())
    for number in range(3):
        await sim.trouble()
        await place(sim.url, b"order %d" % number)
    await rivalry
    assert await orders(sim.url) == [b"order %d" % number for number in range(3)]


@simulate(histories=20)
async def test_two_shops_and_one_is_killed(sim: Simulation) -> None:
    async def open_shop(name: str) -> None:
        for number in range(3):
            await place(sim.url, f"{name} {number}".encode())

    first = sim.start(open_shop("first"), name="first")
    second = sim.start(open_shop("second"), name="second")
    await asyncio.sleep(sim.chance.delay(0.05))
    first.kill()
    await second.result()
    found = await orders(sim.url)
    assert len(found) == len(set(found))
    assert [each for each in found if each and each.startswith(b"second")] == [
        b"second 0",
        b"second 1",
        b"second 2",
    ]


@simulate(histories=20)
async def test_a_shop_that_overslept_is_fenced(sim: Simulation) -> None:
    log = await sim.open_writer(LOG)
    await log.append(b"order 0")
    await sim.take_over(LOG, b"order 1")
    with pytest.raises(Exception, match="took over"):
        await log.append(b"order 2")
    assert await orders(sim.url) == [b"order 0", b"order 1"]
