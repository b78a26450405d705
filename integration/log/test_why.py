"""What handles say of their waits on real servers: ZooKeeper away, bookies down, a frozen bookie, a
full window. And what is seen from outside meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from dlog import LogOptions, Reason, ReasonCode, aio
from dlog.testing.cluster import Bookie, Cluster
from integration.bookkeeper.fault_tools import come_true
from integration.conftest import OwnCluster

pytestmark = pytest.mark.timeout(300)
STALL_MS = 1_000
QUICK = "&meta_timeout_ms=2000"


@asynccontextmanager
async def opened(cluster: Cluster, name: str, **options: object) -> AsyncIterator[aio.Writer]:
    async with aio.connect(cluster.url + QUICK) as client:
        log = await client.open_writer(
            name, create=LogOptions(), **{"stall_after_ms": STALL_MS, **options}
        )
        await log.append(b"first")
        yield log
        await log.close()


def _ensemble(cluster: Cluster, log: aio.Writer) -> list[Bookie]:
    appender = log._engine._driver.appenders[log._engine.core.current.ledger_id]
    return [each for each in cluster.bookies if each.bookie_id in appender.core.places.ensemble]  # type: ignore[attr-defined]


async def told(
    handle: aio.Writer, *codes: ReasonCode, missing: Sequence[Bookie] | None = None
) -> Reason:
    """Its reason, once it is one of these, and names these bookies: on a busy machine one that is
    merely slow is among them for a moment."""
    found: list[Reason] = []
    names = None if missing is None else {each.bookie_id for each in missing}

    def is_told() -> bool:
        reason = handle.why()
        if reason is not None and reason.code in codes:
            there = reason.evidence.get("missing")
            if names is None or (isinstance(there, tuple) and set(there) == names):
                found[:] = [reason]
        return bool(found)

    await come_true(is_told, f"{codes}, not {handle.why()}")
    print(f"{found[0].code.value}: {found[0]} {dict(found[0].evidence)}")
    return found[0]


def _stalls(caplog: pytest.LogCaptureFixture) -> list[Reason]:
    return [each.reason for each in caplog.records if hasattr(each, "reason")]


async def _on_thread(*calls: Callable[[], object]) -> None:
    await asyncio.gather(*(asyncio.to_thread(call) for call in calls))


async def test_zookeeper_is_away(own_cluster: OwnCluster, caplog: pytest.LogCaptureFixture) -> None:
    """DL-35"""
    cluster = own_cluster(bookies=4)
    async with opened(cluster, "away") as log:
        cluster.zookeeper.freeze()
        try:
            rotation = asyncio.ensure_future(log.rotate())
            reason = await told(log, ReasonCode.METADATA_AWAY)
            assert reason.evidence["waits"] == "rotation"
            assert "a rotation" in str(reason)
            await log.append(b"appends go on")
            await come_true(lambda: bool(_stalls(caplog)), "it says so by itself")
        finally:
            cluster.zookeeper.thaw()
        await rotation
        await come_true(lambda: log.why() is None, "nothing is in the way")
        await come_true(
            lambda: any("goes on, after" in each.getMessage() for each in caplog.records),
            "it says that it goes on",
        )
    assert _stalls(caplog)[0].code in (ReasonCode.ROTATION, ReasonCode.METADATA_AWAY)


async def test_two_bookies_are_down(
    own_cluster: OwnCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = own_cluster(bookies=4)
    async with opened(cluster, "two-down", window_bytes=4096) as log:
        other = next(each for each in cluster.bookies if each not in _ensemble(cluster, log))
        victims = [*_ensemble(cluster, log)[:2], other]
        for each in victims:
            each.kill()
        try:
            tickets = [await log.submit(b"." * 3000)]
            reason = await told(log, ReasonCode.BOOKIES_AWAY, missing=victims[:2])
            assert reason.evidence["needed"] == 1
            full = asyncio.ensure_future(log.append(b"." * 3000))
            await come_true(lambda: "the window is full" in str(log.why()), "back-pressure")
            await come_true(lambda: bool(_stalls(caplog)), "it says so by itself")
            async with aio.connect(cluster.url + QUICK) as client:
                seen = None
                wanted = {each.bookie_id for each in victims[:2]}
                for _ in range(60):
                    seen = await client.admin.why("two-down")
                    if wanted <= set(seen.ledgers[0].missing):
                        break
                    await asyncio.wait([full], timeout=0.5)
                assert seen is not None
                print(seen)
                assert wanted <= set(seen.ledgers[0].missing)
                assert [each.code for each in seen.reasons] == [ReasonCode.BOOKIES_AWAY]
        finally:
            for each in victims:
                each.start()
            await _on_thread(*(each.wait_until_serving for each in victims))
        await asyncio.gather(*(ticket for ticket in tickets), full)
        await come_true(lambda: log.why() is None, "nothing is in the way")


async def test_a_frozen_bookie(own_cluster: OwnCluster) -> None:
    cluster = own_cluster(bookies=4)
    async with opened(cluster, "frozen") as log:
        victims = _ensemble(cluster, log)[:2]
        for each in victims:
            each.freeze()
        try:
            waiting = asyncio.ensure_future(log.append(b"nobody says a word"))
            reason = await told(log, ReasonCode.BOOKIES_AWAY, missing=victims)
            assert reason.evidence["slowest"] in [each.bookie_id for each in victims]
            silent_ms = reason.evidence["slowest_silent_ms"]
            assert isinstance(silent_ms, int)
            assert silent_ms >= 500
        finally:
            for each in victims:
                each.thaw()
        await waiting
        await come_true(lambda: log.why() is None, "nothing is in the way")


async def test_a_full_window_names_the_slowest(own_cluster: OwnCluster) -> None:
    cluster = own_cluster(bookies=4)
    async with opened(
        cluster, "full", window_bytes=64 << 10, entry_bytes=8 << 10, stall_after_ms=0
    ) as log:
        run = asyncio.ensure_future(log.append_many([b"." * 1000] * 5_000))
        reason = await told(log, ReasonCode.WINDOW_FULL)
        assert reason.evidence["window_bytes"] == 64 << 10
        assert reason.evidence["taken_bytes"] >= 64 << 10  # type: ignore[operator]
        names = {each.bookie_id for each in cluster.bookies}
        assert reason.evidence.get("slowest", next(iter(names))) in names
        await run
