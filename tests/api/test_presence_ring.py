"""Whoever writes is found by those that ask politely, and by repairs, whatever call of its opening
went wrong: each of them, in each way, once or for long. In virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import dlog
from dlog import aio
from dlog.meta.memory import MemoryMetaStore
from tests.api.faulty_meta import (
    FAULTS,
    LONG_S,
    NAP_S,
    SETTLED_S,
    FaultyMeta,
    at_each_step,
    faulty,
    in_a_world,
    long,
    once,
    presence,
)
from tests.sim.virtual_loop import pass_time

WITHIN_S = 60


# --- how somebody becomes the writer


async def of_a_new_log(url: str, client: aio.Client) -> Any:
    return client.open_writer("log", owner="ada")


async def of_a_log_that_was_left(url: str, client: aio.Client) -> Any:
    async with aio.connect(url) as before, before.open_writer("log") as log:
        await log.append(b"before")
    return client.open_writer("log", owner="ada")


async def of_a_log_whose_writer_died(url: str, client: aio.Client) -> Any:
    async with aio.connect(url) as before:
        log = await before.open_writer("log")
        await log.append(b"before")
        log._engine.abandon(dlog.WriterClosed("dead"))
    return client.open_writer("log", owner="ada", takeover="if_dead")


async def over_a_living_writer(url: str, client: aio.Client) -> Any:
    before = aio.connect(url)
    log = await before.open_writer("log")
    await log.append(b"before")

    async def opening() -> Any:
        try:
            return await client.open_writer("log", owner="ada", takeover="always")
        finally:
            await asyncio.gather(log.close(), before.close(), return_exceptions=True)

    return opening()


async def as_a_standby(url: str, client: aio.Client) -> Any:
    async with aio.connect(url) as before, before.open_writer("log") as log:
        await log.append(b"before")
    standby = await client.open_standby("log", owner="ada")

    async def opening() -> Any:
        try:
            return await standby.take_over()
        finally:
            await standby.close()

    return opening()


WAYS = [
    of_a_new_log,
    of_a_log_that_was_left,
    of_a_log_whose_writer_died,
    over_a_living_writer,
    as_a_standby,
]


async def is_left_alone(url: str, writer: aio.Writer) -> None:
    """By all that push nobody out who lives."""
    async with aio.connect(url) as other:
        with pytest.raises(dlog.Conflict, match="ada"):
            await other.open_writer("log", takeover="if_dead")
        async with await other.open_standby("log") as standby:
            assert not await standby.wait(0)
        report = await other.admin.fsck("log", grace_s=0)
        assert not [each for each in report.findings if each.kind.value == "tail_unsealed"]
        await other.admin.repair(report)
    await writer.append(b"it goes on")


async def can_be_had(url: str) -> None:
    """Nobody is there: who asks politely gets it."""
    async with aio.connect(url) as other:
        async with asyncio.timeout(WITHIN_S):
            log = await other.open_writer("log", takeover="wait", open_timeout_ms=WITHIN_S * 1000)
        await log.append(b"another one")
        await log.close()


async def opened(url: str, way: Any, fault: str, hits: Any) -> tuple[FaultyMeta, Any, aio.Client]:
    client = aio.connect(url)
    opening = await way(url, client)
    meta = await faulty(client, fault, hits)
    try:
        return meta, await opening, client
    except dlog.DlogError as error:
        return meta, error, client


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("way", WAYS)
def test_whoever_opened_is_found_whatever_went_wrong_while_it_opened(way: Any, name: str) -> None:
    fault, when = FAULTS[name]

    async def story(url: str, step: int) -> bool:
        meta, log, client = await opened(url, way, fault, when(step))
        if isinstance(log, dlog.DlogError):
            await can_be_had(url)
        else:
            if fault == "session":
                await pass_time(SETTLED_S)
            await is_left_alone(url, log)
            await pass_time(LONG_S)
            await is_left_alone(url, log)
            await log.close()
            await can_be_had(url)
        await meta.settled()
        await client.close()
        return meta.hit_at is not None

    at_each_step(story)


@pytest.mark.parametrize("fault", ["refused", "request", "late"])
@pytest.mark.parametrize("way", WAYS)
def test_a_presence_that_cannot_be_made_for_long_is_made_as_soon_as_it_can(
    way: Any, fault: str
) -> None:
    async def story(url: str) -> bool:
        meta, log, client = await opened(url, way, fault, presence(long(0)))
        assert not isinstance(log, dlog.DlogError), log
        assert meta.hit_at is not None
        await pass_time(LONG_S + SETTLED_S)
        await is_left_alone(url, log)
        await log.close()
        await can_be_had(url)
        await meta.settled()
        await client.close()
        return True

    assert in_a_world(story)


# --- openers of a log at the same time


POLITE = ("if_dead", "never", "wait")


async def _tried(url: str, policy: Any, step: int | None = None) -> tuple[Any, aio.Client]:
    """A writer, or what it was refused with. Before the call of that step it falls asleep."""
    client = aio.connect(url)
    if step is not None:
        await faulty(client, "nap", once(step))
    try:
        return await client.open_writer("log", takeover=policy, open_timeout_ms=20_000), client
    except dlog.DlogError as error:
        return error, client


@pytest.mark.parametrize("policies", list(itertools.product(POLITE, POLITE)))
@pytest.mark.parametrize("rivals", [1, 3])
@pytest.mark.parametrize("is_new", [True, False], ids=["new", "left"])
def test_nobody_polite_pushes_out_who_opened_at_the_same_time(
    policies: tuple[str, str], rivals: int, is_new: bool
) -> None:
    async def story(url: str, step: int) -> bool:
        if not is_new:
            async with aio.connect(url) as before, before.open_writer("log") as log:
                await log.append(b"before")
        sleeper = asyncio.create_task(_tried(url, policies[0], step))
        await pass_time(NAP_S / 2)
        was_asleep = not sleeper.done()
        others = [asyncio.create_task(_tried(url, policies[1])) for _ in range(rivals)]
        came = await asyncio.gather(sleeper, *others)
        winners = [each for each, _ in came if not isinstance(each, dlog.DlogError)]
        assert len(winners) == 1, f"step {step}: {came}"
        await winners[0].append(b"undisturbed")
        for refused, _ in came:
            assert refused is winners[0] or isinstance(refused, (dlog.Conflict, dlog.Timeout))
        for _, client in came:
            await client.close()
        return was_asleep

    at_each_step(story)


# --- repairs


def test_a_repair_waits_for_who_lost_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection is cut for almost a session's time-out: it is not there when the repair is
    planned, nor when the repair begins."""
    timeout_s = 10.0
    monkeypatch.setattr(MemoryMetaStore, "session_timeout_s", timeout_s, raising=False)

    async def story(url: str) -> bool:
        client, other = aio.connect(url), aio.connect(url)
        await client.admin.create("log")
        log = await client.open_writer("log", owner="ada")
        segment = await client.admin.open_segment("log", job="job")
        await segment.append_many([b"1"])
        filled = await segment.close()
        stores: Any = await client._stores(True)
        stores.sessions.living = unreachable(stores.sessions.living, timeout_s - SETTLED_S)
        store = stores.meta.inner
        store._tree.expire(store._session.id)
        report = await other.admin.fsck("log", grace_s=0)
        assert [step.action.value for step in report.plan] == ["seal_tail", "delete_ledger"]
        done = await other.admin.repair(report)
        assert {step.ended.value for step in done.steps} <= {"not_needed", "refused"}, done
        await is_left_alone(url, log)
        assert (await other.admin.publish_segments("log", [filled], key=("query", 0))).published
        await log.close()
        await client.close()
        await other.close()
        return True

    assert in_a_world(story)


def unreachable(genuine: Callable[[], Awaitable[Any]], for_s: float) -> Any:
    back_s = asyncio.get_running_loop().time() + for_s

    async def living() -> Any:
        if asyncio.get_running_loop().time() < back_s:
            raise dlog.Unavailable("cut off by a test")
        return await genuine()

    return living
