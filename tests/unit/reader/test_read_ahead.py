"""How far a reader reads ahead of whoever takes, on the real driver in virtual time."""

from __future__ import annotations

import pytest

from dlog import LogOptions
from dlog.reason import ReasonCode
from dlog.testing.sim import Simulation, simulate

RUN_BYTES, ENTRY_BYTES = 4096, 1000


@pytest.mark.parametrize("ahead_bytes", [4096, 20_000])
def test_a_reader_that_nobody_takes_from_rests_when_it_has_read_enough(ahead_bytes: int) -> None:
    @simulate(histories=1, troubles="none")
    async def rests(sim: Simulation) -> None:
        log = await sim.open_writer("orders", create=LogOptions())
        for number in range(60):
            await log.append(b"%060d" % number + bytes(ENTRY_BYTES - 100))
        reader = await sim.open_reader(
            "orders", read_ahead_bytes=ahead_bytes, read_run_bytes=RUN_BYTES
        )
        for seq in range(4):
            (message,) = await reader.read(1)
            assert message.seq == seq
            await sim.pass_time(1)
            why = reader.why()
            assert why is not None
            assert why.code is ReasonCode.READ_AHEAD_FULL
            assert ahead_bytes <= why.evidence["read_ahead_bytes"] < ahead_bytes + RUN_BYTES
            assert why.evidence["read_ahead_bytes_max"] == ahead_bytes
        rest = [message.seq async for message in reader]
        assert rest == list(range(4, 60))
        await reader.close()
        await log.close()

    rests()
