"""Calls of a writer that have time enough."""

from __future__ import annotations

from dlog import aio, backends

ENOUGH_S = 60.0


async def test_a_call_with_time_enough_is_not_out_of_time() -> None:
    try:
        async with aio.connect("memory:timeouts") as client, client.open_writer("log") as log:
            first = await log.append(b"1", timeout=ENOUGH_S)
            second = await log.append(b"2", if_tail=first, timeout=ENOUGH_S)
            await log.append_many([b"3", b"4"], timeout=ENOUGH_S)
            await log.flush(timeout=ENOUGH_S)
            await log.rotate(timeout=ENOUGH_S)
            assert second > first
    finally:
        backends._memory_worlds.pop("timeouts", None)
