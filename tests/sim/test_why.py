"""What handles say of their waits, with the real drivers in virtual time: by themselves, in a
warning, and when they are asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

import dlog
from dlog import ReasonCode
from dlog.testing.sim import Simulation, simulate

STALL_MS = 500


class Ear(logging.Handler):
    """What handles say by themselves of their stalls."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "reason") or "goes on" in record.getMessage():
            self.told.append(record)


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    loggers = [logging.getLogger(name) for name in ("dlog.writer", "dlog.reader")]
    for logger in loggers:
        logger.addHandler(ear)
        logger.setLevel(logging.WARNING)
    yield ear
    for logger in loggers:
        logger.removeHandler(ear)
        logger.setLevel(logging.NOTSET)


def _reason_of(warning: logging.LogRecord) -> dlog.Reason:
    reason = warning.reason  # type: ignore[attr-defined]
    assert isinstance(reason, dlog.Reason)
    assert str(reason) in warning.getMessage()
    return reason


def _reason(handle: dlog.aio.Writer | dlog.aio.Reader) -> dlog.Reason:
    reason = handle.why()
    assert reason is not None
    return reason


@simulate(histories=1, troubles="none")
async def test_two_bookies_of_four_are_stopped(sim: Simulation, ear: Ear) -> None:
    ear.told.clear()
    log = await sim.open_writer("orders", stall_after_ms=STALL_MS, window_bytes=1024)
    await log.append(b"first")
    assert log.why() is None
    servers = list(sim.cluster.servers.values())
    ensemble = log._engine._driver.appenders[
        log._engine.core.current.ledger_id
    ].core.places.ensemble
    stopped = [server for server in servers if server.bookie_id in ensemble][:2]
    for server in stopped:
        server.stop()
    began_us = sim.process.clock.wall_us()
    ticket = await log.submit(b"second" * 200)
    more = asyncio.create_task(log.append(b"it finds no room"))
    await sim.pass_time(1.0)
    reason = _reason(log)
    assert reason.code is ReasonCode.BOOKIES_AWAY
    missing = reason.evidence["missing"]
    assert isinstance(missing, tuple)
    assert {server.bookie_id for server in stopped} & set(missing)
    assert reason.since_us is not None
    assert 0 <= reason.since_us - began_us < 50_000
    assert reason.evidence["window_full"] is True
    assert reason.evidence["taken_bytes"] == 6 * 200 + 16, "what finds no room is not taken"
    (told,) = ear.told
    assert told.levelno == logging.WARNING
    assert _reason_of(told).code is reason.code
    assert "stands still for" in told.getMessage()
    sim.heal()
    await ticket
    await more
    assert log.why() is None
    await sim.pass_time(STALL_MS / 1000)
    first, second = ear.told
    assert first is told
    assert "goes on, after" in second.getMessage()
    await log.close()
    assert _reason(log).code is ReasonCode.CLOSED


@simulate(histories=1, troubles="none")
async def test_the_metadata_store_is_away(sim: Simulation, ear: Ear) -> None:
    ear.told.clear()
    log = await sim.open_writer("orders", stall_after_ms=2_000)
    await log.append(b"first")
    sim.cluster.climate.meta.refused = 1.0
    began_us = sim.process.clock.wall_us()
    rotation = asyncio.create_task(log.rotate())
    await sim.pass_time(3.0)
    await log.append(b"appends go on")
    reason, told = _reason(log), list(ear.told)
    sim.heal()
    assert reason.code is ReasonCode.METADATA_AWAY
    assert reason.evidence["waits"] == "rotation"
    away_s = reason.evidence["metadata_away_s"]
    assert isinstance(away_s, float)
    assert 2.5 < away_s < 3.1
    assert reason.since_us is not None
    assert -1 <= reason.since_us - began_us < 100_000, "but for rounding"
    assert str(reason).startswith("a rotation is under way: a new ledger on 3 bookies")
    assert "the metadata store has not answered for 3.0 s" in str(reason)
    assert [_reason_of(each).code for each in told] == [ReasonCode.METADATA_AWAY]
    await rotation
    await sim.pass_time(1.0)
    assert log.why() is None
    assert len(ear.told) == 2
    await log.close()


@simulate(histories=1, troubles="none")
async def test_one_bookie_holds_back_a_window(sim: Simulation) -> None:
    log = await sim.open_writer("orders", window_bytes=4096, entry_bytes=1024, stall_after_ms=0)
    await log.append(b"first")
    for server in sim.cluster.servers.values():
        server.slow = 300.0
    run = asyncio.create_task(log.append_many([b"." * 1000] * 40))
    await sim.pass_time(0.05)
    reason = _reason(log)
    assert reason.code is ReasonCode.WINDOW_FULL
    assert reason.evidence["window_bytes"] == 4096
    assert reason.evidence["taken_bytes"] >= 4096  # type: ignore[operator]
    assert reason.evidence["slowest"] in sim.cluster.servers
    for server in sim.cluster.servers.values():
        server.slow = 1.0
    await run
    await log.close()


@simulate(histories=1, troubles="none")
async def test_an_opening_says_what_it_waits_for(sim: Simulation, ear: Ear) -> None:
    ear.told.clear()
    first = await sim.open_writer("orders", owner="ana")
    await first.append(b"first")
    opening = asyncio.create_task(
        sim.connect()._open_writer(
            "orders",
            dlog.options.WriterOptions(takeover="wait", stall_after_ms=STALL_MS),
            dlog.LogOptions(),
        )
    )
    await sim.pass_time(2.0)
    (told,) = ear.told
    reason = _reason_of(told)
    assert reason.code is ReasonCode.WRITER_PRESENT
    assert reason.evidence == {"holder": "ana", "epoch": 1}
    await first.close()
    second = await opening
    await sim.pass_time(STALL_MS / 1000)
    assert len(ear.told) == 2
    await second.close()


@simulate(histories=1, troubles="none")
async def test_a_takeover_that_cannot_recover_names_the_bookies(sim: Simulation, ear: Ear) -> None:
    ear.told.clear()
    first = await sim.open_writer("orders")
    await first.append(b"first")
    core = first._engine._driver.appenders[first._engine.core.current.ledger_id].core
    stopped = core.places.ensemble[:2]
    for bookie_id in stopped:
        sim.cluster.servers[bookie_id].stop()
    opening = asyncio.create_task(
        sim.connect()._open_writer(
            "orders", dlog.options.WriterOptions(stall_after_ms=STALL_MS), dlog.LogOptions()
        )
    )
    await sim.pass_time(2.0)
    (told,) = ear.told
    reason = _reason_of(told)
    assert reason.code is ReasonCode.LEDGER_RECOVERY
    assert any(bookie_id in str(reason) for bookie_id in stopped), reason
    sim.heal()
    second = await opening
    await second.close()
    with pytest.raises(dlog.DlogError):
        await first.append(b"it was fenced")
    assert _reason(first).code is ReasonCode.LOST
    await first.close()


# --- readers


@simulate(histories=1, troubles="none")
async def test_a_reader_at_the_tail_waits_for_messages_only(sim: Simulation, ear: Ear) -> None:
    ear.told.clear()
    log = await sim.open_writer("orders")
    reader = await sim.open_reader("orders", follow=True, stall_after_ms=STALL_MS)
    ticket = await log.submit(b"first")
    assert [each.value for each in await reader.read(1)] == [b"first"]
    await ticket
    began_us = sim.process.clock.wall_us()
    await sim.pass_time(5.0)
    reason = _reason(reader)
    assert reason.code is ReasonCode.AT_TAIL
    assert reason.since_us is not None
    assert abs(reason.since_us - began_us) < 100_000
    assert reason.evidence["next_seq"] == 1
    await log.close()
    await sim.pass_time(3.0)
    reason = _reason(reader)
    assert reason.code is ReasonCode.AT_TAIL
    assert reason.evidence["is_closed"] is True
    assert "the log has no writer" in str(reason)
    assert not ear.told
    await reader.close()
    assert _reason(reader).code is ReasonCode.CLOSED


@simulate(histories=1, troubles="none")
async def test_nobody_takes(sim: Simulation, ear: Ear) -> None:
    ear.told.clear()
    log = await sim.open_writer("orders", entry_bytes=1024)
    await log.append_many([b"." * 1000] * 20)
    reader = await sim.open_reader(
        "orders", follow=True, read_ahead_bytes=3000, read_run_bytes=1000, stall_after_ms=STALL_MS
    )
    await sim.pass_time(2.0)
    reason = _reason(reader)
    assert reason.code is ReasonCode.READ_AHEAD_FULL
    assert reason.evidence["read_ahead_bytes"] >= 3000  # type: ignore[operator]
    assert await reader.read(1)
    assert reader.why() is None or _reason(reader).code is ReasonCode.READ_AHEAD_FULL
    assert not ear.told
    await reader.close()
    await log.close()


@simulate(histories=1, troubles="none", bookies=10)
async def test_whoever_takes_over_is_named_to_readers(sim: Simulation, ear: Ear) -> None:
    ear.told.clear()
    log = await sim.open_writer("orders")
    await log.append(b"first")
    reader = await sim.open_reader("orders", follow=True, stall_after_ms=STALL_MS)
    assert await reader.read(1)
    core = log._engine._driver.appenders[log._engine.core.current.ledger_id].core
    for bookie_id in core.places.ensemble[:2]:
        sim.cluster.servers[bookie_id].stop()
    opening = asyncio.create_task(
        sim.connect()._open_writer(
            "orders", dlog.options.WriterOptions(owner="ben"), dlog.LogOptions()
        )
    )
    await sim.pass_time(3.0)
    reason = _reason(reader)
    assert reason.code is ReasonCode.IN_RECOVERY
    assert reason.evidence["recovered_by"] == "ben"
    assert reason.evidence["epoch"] == 2
    (told,) = ear.told
    assert _reason_of(told).code is ReasonCode.IN_RECOVERY
    sim.heal()
    second = await opening
    await second.append(b"second")
    assert [each.value for each in await reader.read(1)] == [b"second"]
    await sim.pass_time(1.0)
    assert len(ear.told) == 2
    await reader.close()
    await second.close()
    await log.close()


@simulate(histories=1, troubles="none")
async def test_bookies_that_do_not_give_an_entry(sim: Simulation, ear: Ear) -> None:
    ear.told.clear()
    async with await sim.open_writer("orders", entry_bytes=1024) as log:
        await log.append_many([b"." * 1000] * 20)
    reader = await sim.open_reader(
        "orders", read_ahead_bytes=2000, read_run_bytes=1000, stall_after_ms=STALL_MS
    )
    assert await reader.read(1)
    await sim.pass_time(1.0)
    for server in sim.cluster.servers.values():
        server.stop()
    while reader.why() is None or _reason(reader).code is ReasonCode.READ_AHEAD_FULL:
        await reader.read(1)
    await sim.pass_time(2.0)
    reason = _reason(reader)
    assert reason.code is ReasonCode.BOOKIES_AWAY
    missing = reason.evidence["missing"]
    assert isinstance(missing, tuple)
    assert len(missing) == 3
    (told,) = ear.told
    assert _reason_of(told).code is ReasonCode.BOOKIES_AWAY
    sim.heal()
    assert await reader.read(1)
    await reader.close()
