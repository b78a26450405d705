"""What a heart does by its clock, and whom it leaves waiting: nobody."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from dlog.errors import LeaseLost
from dlog.groups.asks import Save
from dlog.groups.consumer import ShardConsumer
from dlog.groups.core import WorkerCore
from dlog.groups.heart import Heart
from dlog.groups.homes import SameHome
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.options import WorkerOptions
from dlog.groups.store import Held
from dlog.groups.view import WorkerId
from dlog.ids import Position

ME = WorkerId("me", "0" * 32)


def at(seq: int) -> Checkpoint:
    return Checkpoint(Position("u", seq, None))


def heart(told: list[Any]) -> Heart:
    async def nowhere() -> Any:
        raise AssertionError("nobody begins")

    return Heart("g", "s", "me", WorkerOptions(), nowhere, SameHome(), told.extend)


def with_a_shard(told: list[Any]) -> tuple[Heart, WorkerCore]:
    """That is at work, and driven by nobody but the test."""
    found = heart(told)
    core = WorkerCore(ME, 0.0)
    core.member.confirmed_s = 0.0
    held = Held(Lease("s/0", 1, ME, ME, at(0)), 0, 1)
    consumer = core.consumers["s/0"] = ShardConsumer("s/0", held, 5.0, 0.0)
    consumer.initialized()
    consumer.delivered(at(9).position)
    found._core, found._is_live = core, True
    return found, core


async def test_a_timer_is_set_earlier() -> None:
    """And later: there is one, at the time that was asked for last."""
    found = heart([])
    woken = asyncio.Event()
    found._wake = woken.set  # type: ignore[method-assign]
    found._arm(3_600.0, 0.0)
    late = found._timer
    found._arm(0.001, 0.0)
    assert late is not None
    assert late.cancelled()
    async with asyncio.timeout(20):
        await woken.wait()


async def test_whoever_saves_is_told_when_the_shard_is_fenced() -> None:
    """Before its program is at its end: which may be what waits."""
    told: list[Any] = []
    found, core = with_a_shard(told)
    found._ending = asyncio.Event()
    waiter: Future[None] = Future()
    found.checkpoint("s/0", 1, at(3), at_once=True, waiter=waiter)
    core.consumers["s/0"].is_fenced = True
    core.take()
    found._meta = _Deaf()  # type: ignore[assignment]
    found._places, found._stream_path = _Somewhere(), "/s"  # type: ignore[assignment]
    found._pump()
    with pytest.raises(LeaseLost):
        waiter.result(0)
    assert [type(each).__name__ for each in told] == ["Fenced"]
    await found._quiet()


async def test_nobody_waits_for_a_heart_that_has_ended() -> None:
    """A thread that waits would keep the process from its end."""
    found, _ = with_a_shard([])
    found._is_live = False
    with pytest.raises(LeaseLost):
        found.checkpoint("s/0", 1, at(4), at_once=True, waiter=Future())


async def test_what_is_lost_is_saved_once_more_and_not_before_its_program_ends() -> None:
    """A store that refuses at once would be asked without a pause, for as long as the program
    takes."""
    _, core = with_a_shard([])
    core.on_checkpoint("s/0", 1, at(3), at_once=True, now_s=1.0)
    (save,) = [each for each in core.take() if isinstance(each, Save)]
    core.answered(save, None, LeaseLost("somebody else has it"), 1.0)
    core.on_time(2.0)
    core.on_time(99.0)
    assert not [each for each in core.take() if isinstance(each, Save)]
    core.on_work_finished("s/0", 100.0)
    core.on_shut_down("s/0", 100.0)
    assert [each for each in core.take() if isinstance(each, Save)]


class _Deaf:
    """Of watches only."""

    def watch(self, path: str) -> Any:
        return self

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def wait(self, timeout_ms: float) -> bool:
        await asyncio.Event().wait()
        return False


class _Somewhere:
    workers, weights = "/workers", "/weights"

    def worker(self, worker: WorkerId) -> str:
        return f"/workers/{worker}"

    def lease(self, shard: str) -> str:
        return f"/leases/{shard}"
