"""What a worker says that it waits for, and what it says of each shard at work."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from dlog.groups.asks import Fenced, Shutdown, StopFetch
from dlog.groups.consumer import StopReason
from dlog.groups.crew import Crew, watch_over
from dlog.groups.heart import Facts
from dlog.groups.options import WorkerOptions
from dlog.groups.view import WorkerId
from dlog.ids import Position
from dlog.reason import Reason, ReasonCode, Wait
from tests.sim.virtual_loop import LoopClock, pass_time, run_virtually

ME = WorkerId("me", "0" * 32)
WELL = Facts(ME, {}, (), True, 0.1)
STALL_S = 5.0
TIMEOUT_S = 10.0


class Run:
    """A shard at work, as far as its crew looks at it."""

    def __init__(self, **more: Any) -> None:
        self.epoch = 1
        self.doing = "waits"
        self.position: Position | None = None
        self.failures = 0
        self.error: Exception | None = None
        self.refused: str | None = None
        self.unread: str | None = None
        self._reader: Any = None
        self.busy_since_s: float | None = None
        self.told: list[Any] = []
        for name, value in more.items():
            setattr(self, name, value)

    def stop_fetch(self) -> None:
        self.told.append("stop_fetch")

    def shut_down(self, reason: StopReason) -> None:
        self.told.append(reason)

    def fenced(self) -> None:
        self.told.append("fenced")


class Heart:
    group = "billing"

    def __init__(self) -> None:
        self.now = WELL
        self.waits: dict[str, str] = {}
        self.is_abandoned = False
        self.ended: Future[str] = Future()

    def facts(self) -> Facts:
        return self.now

    def tell_waits(self, waits: dict[str, str]) -> None:
        self.waits = waits

    def abandon(self) -> None:
        self.is_abandoned = True


class Hub:
    def __init__(self) -> None:
        self.heart = Heart()
        self.reports: dict[str, str] = {}
        self.options = WorkerOptions(
            timeout_ms=int(TIMEOUT_S * 1000), stall_after_ms=int(STALL_S * 1000)
        )
        self.stalled: list[str] = []
        self.shards: list[int] = []
        self.meter = SimpleNamespace(stalled=self.stalled.append, shards=self.shards.append)


def a_crew(**runs: Run) -> tuple[Any, Hub]:
    crew: Any = Crew(LoopClock(asyncio.get_running_loop()))
    hub = crew.hub = Hub()
    crew.runs.update(runs)
    return crew, hub


async def why(crew: Any) -> Reason | None:
    await heard(crew)
    found: Reason | None = crew.why(STALL_S)
    return found


async def heard(crew: Any) -> None:
    """The loop took its turn just now."""
    crew.ping()
    await asyncio.sleep(0)


# --- why


def test_a_worker_with_shards_that_get_on_waits_for_nothing() -> None:
    async def story() -> None:
        crew, _ = a_crew(a=Run(busy_since_s=0.0))
        assert await why(crew) is None

    run_virtually(story())


def test_a_shard_that_stopped_is_named_with_what_it_failed_of() -> None:
    """Also while it is the only one, and nothing runs."""

    async def story() -> None:
        crew, hub = a_crew()
        hub.heart.now = Facts(ME, {}, ("orders/1",), True, 0.1)
        hub.reports["orders/1"] = "ValueError: 7"
        reason = await why(crew)
        assert reason is not None
        assert reason.code is ReasonCode.PROCESSING_FAILED
        assert "'orders/1' stopped: ValueError: 7" in reason.sentence

    run_virtually(story())


def test_a_shard_that_fails_and_is_tried_again_is_named_with_its_failures() -> None:
    async def story() -> None:
        crew, _ = a_crew(a=Run(), b=Run(failures=3, error=ValueError("7")))
        reason = await why(crew)
        assert reason is not None
        assert reason.code is ReasonCode.PROCESSING_FAILED
        assert "'b' failed 3 times: ValueError: 7" in reason.sentence
        assert reason.evidence["log"] == "b"

    run_virtually(story())


@pytest.mark.parametrize(("quiet", "is_away"), [(0.2, False), (0.55, False), (0.65, True)])
def test_metadata_is_away_when_more_than_one_renewal_in_a_row_is_not_confirmed(
    quiet: float, is_away: bool
) -> None:
    """A renewal comes each third of a time-out: one that is late for a moment is no trouble."""

    async def story() -> None:
        crew, hub = a_crew(a=Run())
        hub.heart.now = Facts(ME, {}, (), True, quiet * TIMEOUT_S)
        reason = await why(crew)
        if is_away:
            assert reason is not None
            assert reason.code is ReasonCode.METADATA_AWAY
        else:
            assert reason is None

    run_virtually(story())


@pytest.mark.parametrize("quiet_s", [None, 0.1])
def test_who_is_no_member_yet_waits_for_that(quiet_s: float | None) -> None:
    async def story() -> None:
        crew, hub = a_crew()
        hub.heart.now = Facts(None, {}, (), False, quiet_s)
        reason = await why(crew)
        assert reason is not None
        assert reason.code is ReasonCode.METADATA

    run_virtually(story())


def test_a_member_without_shards_says_that_there_are_none_for_it() -> None:
    async def story() -> None:
        crew, _ = a_crew()
        reason = await why(crew)
        assert reason is not None
        assert reason.code is ReasonCode.NO_SHARDS

    run_virtually(story())


def test_a_call_that_lasts_is_a_stall_from_when_it_is_longer_than_allowed() -> None:
    async def story() -> None:
        crew, _ = a_crew(a=Run(busy_since_s=0.0))
        await pass_time(STALL_S - 0.5)
        assert await why(crew) is None
        await pass_time(1.0)
        reason = await why(crew)
        assert reason is not None
        assert reason.code is ReasonCode.PROCESSING_STALLED
        assert reason.evidence["log"] == "a"
        crew.runs["a"].busy_since_s = None
        assert await why(crew) is None

    run_virtually(story())


def test_a_program_may_take_its_time_where_no_stall_is_asked_for() -> None:
    async def story() -> None:
        crew, _ = a_crew(a=Run(busy_since_s=0.0))
        await pass_time(1_000_000.0)
        assert crew.why(0.0) is None

    run_virtually(story())


def test_a_loop_that_takes_no_turn_is_told_of_before_all_else() -> None:
    async def story() -> None:
        crew, _ = a_crew(a=Run(busy_since_s=0.0))
        await heard(crew)
        await pass_time(STALL_S + 1.0)  # and nobody was heard of
        reason = crew.why(STALL_S)
        assert reason.code is ReasonCode.LOOP_BLOCKED
        assert await why(crew) != reason

    run_virtually(story())


# --- what it tells by itself


def test_a_stall_is_told_once_when_it_begins_and_once_when_it_ends() -> None:
    async def story() -> None:
        crew, hub = a_crew(a=Run(busy_since_s=0.0))
        said: list[str] = []
        watching = asyncio.create_task(watch_over(crew, hub, crew._clock, said.append))  # type: ignore[arg-type]
        await pass_time(STALL_S - 0.5)
        assert (said, hub.heart.waits) == ([], {})
        await pass_time(20.0)
        assert hub.heart.waits == {"a": ReasonCode.PROCESSING_STALLED.value}
        assert [each for each in said if "'a'" in each] == said[:1]
        assert hub.stalled == [ReasonCode.PROCESSING_STALLED.value]
        crew.runs["a"].busy_since_s = None
        await pass_time(20.0)
        assert hub.heart.waits == {}
        assert len(said) == 2
        assert said[1].endswith("a goes on")
        crew.runs["a"].busy_since_s = crew._clock.monotonic_s()
        await pass_time(20.0)
        assert len(said) == 3, "it stalled again"
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    run_virtually(story())


def test_others_are_told_what_failed_here_and_what_is_tried_again() -> None:
    async def story() -> None:
        crew, hub = a_crew(a=Run(), b=Run(failures=1, error=ValueError()))
        hub.heart.now = Facts(ME, {}, ("c",), True, 0.1)
        await heard(crew)
        failed = ReasonCode.PROCESSING_FAILED.value
        assert crew.codes(STALL_S) == {"b": failed, "c": failed}

    run_virtually(story())


# --- orders


def test_orders_reach_the_shard_that_they_name_and_no_other() -> None:
    async def story() -> None:
        a, b = Run(), Run(epoch=4)
        crew, hub = a_crew(a=a, b=b)
        crew.on_orders([StopFetch("a"), Shutdown("b", StopReason.CLOSING), StopFetch("gone")])
        crew.on_orders([Fenced("b", 3), Fenced("a", 1), Shutdown("gone", StopReason.LOST)])
        await asyncio.sleep(0)
        assert a.told == ["stop_fetch", "fenced"]
        assert b.told == [StopReason.CLOSING], "it was fenced in an earlier epoch"
        assert hub.shards[-1] == 2

    run_virtually(story())


def test_a_worker_whose_loop_is_over_is_given_up() -> None:
    """Nobody closed it: its shards go to others by a time-out, and no renewal keeps them."""

    async def story() -> tuple[Any, Hub]:
        return a_crew()

    crew, hub = asyncio.run(story())
    crew.ping()
    assert hub.heart.is_abandoned
    crew, hub = asyncio.run(story())
    crew.on_orders([StopFetch("a")])
    assert hub.heart.is_abandoned


def test_a_shard_at_work_says_what_it_is_at() -> None:
    async def story() -> None:
        busy = Run(epoch=4, doing="processes", position=Position("u", 7, None), busy_since_s=0.0)
        idle = Run(failures=2, error=ValueError("7"))
        crew, _ = a_crew(b=busy, a=idle)
        await pass_time(3.0)
        first, second = crew.at_work()
        assert (first.log, second.log) == ("a", "b")
        assert (first.failures, first.error) == (2, "ValueError: 7")
        assert (first.next_seq, first.busy_s) == (None, None)
        assert (second.token, second.doing, second.next_seq) == (4, "processes", 7)
        assert (second.error, second.busy_s) == (None, pytest.approx(3.0))

    run_virtually(story())


@pytest.mark.parametrize(("stall_after_ms", "within_s"), [(200, 0.05), (60_000, 2.0), (0, 2.0)])
def test_a_stall_is_told_soon_and_once(stall_after_ms: int, within_s: float) -> None:
    """Within a quarter of the time after which it is one, and within a renewal in any case."""
    told: list[tuple[float, str]] = []
    stall_s = 10.0

    async def story() -> None:
        loop = asyncio.get_running_loop()

        def waits(after_s: float) -> dict[str, Wait]:
            stalled = {"s/0": Wait(ReasonCode.PROCESSING_STALLED, "it computes")}
            return stalled if loop.time() >= stall_s else {}

        crew: Any = SimpleNamespace(ping=lambda: None, codes=lambda after_s: {}, waits=waits)
        options = SimpleNamespace(
            stall_after_ms=stall_after_ms, group_options=lambda: SimpleNamespace(renew_s=2.0)
        )
        hub: Any = SimpleNamespace(
            options=options,
            heart=SimpleNamespace(group="g", tell_waits=lambda codes: None),
            meter=SimpleNamespace(stalled=lambda code: None),
        )
        clock = LoopClock(loop)
        watching = asyncio.create_task(
            watch_over(crew, hub, clock, lambda sentence: told.append((loop.time(), sentence)))
        )
        await pass_time(2 * stall_s)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)

    run_virtually(story())
    ((at_s, sentence),) = told
    assert stall_s <= at_s <= stall_s + within_s + 0.001
    assert sentence == "group 'g': it computes"
