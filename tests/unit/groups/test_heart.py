"""What a heart does by its clock, and whom it leaves waiting: nobody."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from dlog.errors import LeaseLost
from dlog.groups.asks import Register, Renew, Save, Saved
from dlog.groups.charter import Charter
from dlog.groups.consumer import ShardConsumer, StopReason
from dlog.groups.core import WorkerCore
from dlog.groups.heart import Heart
from dlog.groups.homes import SameHome
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.options import WorkerOptions
from dlog.groups.presence import SeenWorker
from dlog.groups.store import Held
from dlog.groups.view import WorkerId
from dlog.groups.workers import WorkerNode
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


# --- what is said to it, and asked of it


def save(found: Heart, seq: int) -> Future[None]:
    waiter: Future[None] = Future()
    found.checkpoint("s/0", 1, at(seq), at_once=True, waiter=waiter)
    return waiter


def kept(found: Heart, core: WorkerCore) -> None:
    """The store takes what is on its way there, and the heart hears of it."""
    (ask,) = [each for each in core.take() if isinstance(each, Save)]
    core.answered(ask, Held(Lease("s/0", 1, ME, ME, ask.checkpoint), 0, 2), None, 1.0)
    effects = core.take()
    (saved,) = [each for each in effects if isinstance(each, Saved)]
    found._mind(core, saved)
    core._effects.extend(each for each in effects if each is not saved)


def hearing() -> tuple[Heart, WorkerCore]:
    found, core = with_a_shard([])
    found.holds = _Holds()  # type: ignore[assignment]
    return found, core


async def test_whoever_saves_is_told_once_that_checkpoint_is_kept_and_not_before() -> None:
    """Two more come while the first is on its way to the store: they go there together."""
    found, core = hearing()
    first, second, third = (save(found, seq) for seq in (3, 5, 7))
    assert not first.done()
    kept(found, core)
    assert (first.done(), second.done(), third.done()) == (True, False, False)
    kept(found, core)
    assert second.done()
    assert third.done()


async def test_a_save_behind_one_that_is_on_its_way_is_kept_with_it() -> None:
    """And does not wait for the one that comes after both."""
    found, core = hearing()
    first, behind, later = (save(found, seq) for seq in (5, 3, 7))
    kept(found, core)
    assert (first.done(), behind.done(), later.done()) == (True, True, False)
    kept(found, core)
    assert later.done()


async def test_all_that_wait_for_less_than_what_is_kept_are_told() -> None:
    """Also if it is none of theirs."""
    found, core = hearing()
    first, second, later = (save(found, seq) for seq in (2, 3, 7))
    found._mind(core, Saved("s/0", at(5)))
    assert (first.done(), second.done(), later.done()) == (True, True, False)


async def test_one_that_waits_no_more_keeps_no_other_from_being_told() -> None:
    found, core = hearing()
    gone, there = save(found, 3), save(found, 3)
    gone.set_result(None)
    kept(found, core)
    if not there.done():
        kept(found, core)
    assert there.done()


async def test_a_checkpoint_that_is_kept_already_is_no_wait() -> None:
    found, core = hearing()
    save(found, 3)
    kept(found, core)
    again: Future[None] = Future()
    found.checkpoint("s/0", 1, at(2), at_once=True, waiter=again)
    assert again.done()


async def test_the_newest_checkpoint_is_what_was_said_last_kept_or_not() -> None:
    found, _ = with_a_shard([])
    newest = found.newest("s/0")
    assert newest is not None
    assert newest.next_seq == 0, "where it began"
    found.checkpoint("s/0", 1, at(4), at_once=False)
    newest = found.newest("s/0")
    assert newest is not None
    assert newest.next_seq == 4
    assert found.newest("s/1") is None
    assert heart([]).newest("s/0") is None, "it has not begun"


async def test_what_does_not_get_on_is_told_with_the_next_renewal() -> None:
    found, core = with_a_shard([])
    core.on_time(0.0)
    (register,) = [each for each in core.take() if isinstance(each, Register)]
    found.tell_waits({"s/0": "processing_stalled"})
    core.answered(register, SeenWorker(WorkerNode(ME), 1), None, 0.0)
    (renewal,) = [each for each in core.take() if isinstance(each, Renew)]
    assert renewal.waits == {"s/0": "processing_stalled"}


class _Holds:
    def move(self, shard: str, position: Position) -> None:
        pass


# --- before it begins


async def test_a_heart_that_has_not_begun_has_nothing_and_lets_nothing_be_delivered() -> None:
    found = heart([])
    assert not found.may_deliver("s/0", 1)
    assert not found.still_owner("s/0", 1)
    assert found.has_lost("s/0", 1)
    assert found.parents("s/0") == ()
    assert found.resume(None) == ()
    with pytest.raises(LeaseLost):
        found.checkpoint("s/0", 1, at(3), at_once=True)
    told = found.facts()
    assert (told.id, told.shards, told.failed) == (None, {}, ())
    assert (told.is_member, told.quiet_s) == (False, None)


async def test_a_shard_is_lost_with_its_epoch_and_when_it_is_fenced() -> None:
    found, core = with_a_shard([])
    assert not found.has_lost("s/0", 1)
    assert found.has_lost("s/0", 2)
    assert found.has_lost("s/1", 1)
    core.consumers["s/0"].is_fenced = True
    assert found.has_lost("s/0", 1)


async def test_only_what_is_being_processed_here_is_delivered() -> None:
    found, core = with_a_shard([])
    found.delivered("s/0", 1, at(12).position)
    found.checkpoint("s/0", 1, at(12), at_once=False)
    for shard, epoch in (("s/0", 2), ("s/1", 1)):
        with pytest.raises(LeaseLost):
            found.delivered(shard, epoch, at(13).position)
    core.consumers["s/0"].stop(StopReason.HANDED_OVER)
    with pytest.raises(LeaseLost):
        found.delivered("s/0", 1, at(13).position)


async def test_where_a_shard_begins_is_kept_if_it_is_still_the_same_shard() -> None:
    found, core = with_a_shard([])
    found.begun_at("s/0", 2, at(20).position)
    found.begun_at("s/1", 1, at(20).position)
    assert not [each for each in core.take() if isinstance(each, Save)]
    found.begun_at("s/0", 1, at(20).position)
    (ask,) = [each for each in core.take() if isinstance(each, Save)]
    assert ask.checkpoint.next_seq == 20


async def test_facts_are_those_of_the_core() -> None:
    found, core = with_a_shard([])
    found._now_s = lambda: 7.0
    told = found.facts()
    assert told.id is None, "it is not registered"
    assert told.shards == {"s/0": "processing"}
    assert told.quiet_s == 7.0
    core.member.seen = SeenWorker(WorkerNode(ME), 1)
    assert found.facts().id == ME


# --- its end


class _Aside:
    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


def that_ends(error: BaseException | None, *, has_begun: bool) -> tuple[Heart, _Aside]:
    aside = _Aside()

    async def open_aside() -> Any:
        return aside

    async def beat(_: Any) -> str:
        if has_begun:
            found.begun.set_result(Charter("u", "nodes", 1000))
        if error is not None:
            raise error
        return "all is done"

    found = Heart("g", "s", "me", WorkerOptions(), open_aside, SameHome(), lambda orders: None)
    found._beat = beat  # type: ignore[method-assign, assignment]
    return found, aside


async def test_a_heart_that_ends_says_why_and_lets_its_client_go() -> None:
    found, aside = that_ends(None, has_begun=True)
    await found.beat()
    assert found.ended.result(0) == "all is done"
    assert aside.closed == 1


async def test_a_heart_that_fails_tells_whoever_waits_for_its_beginning_or_its_end() -> None:
    for has_begun in (False, True):
        found, aside = that_ends(ValueError("7"), has_begun=has_begun)
        await found.beat()
        told = found.ended if has_begun else found.begun
        with pytest.raises(ValueError, match="7"):
            told.result(0)
        assert found.ended.done()
        assert aside.closed == 1


async def test_a_heart_that_is_cancelled_has_ended() -> None:
    found, aside = that_ends(asyncio.CancelledError(), has_begun=True)
    with pytest.raises(asyncio.CancelledError):
        await found.beat()
    assert found.ended.result(0) == "closed"
    assert aside.closed == 1
