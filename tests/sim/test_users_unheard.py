"""A simulated test that is given something that fails, fails: by whatever it was started, held or
left, and whatever the world was asked for that cannot be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

import dlog
from dlog.testing.sim import Simulation, simulate, users
from dlog.testing.sim.simulation import Test, run_history
from dlog.testing.sim.tape import of_tape

HELD: list[object] = []  # beyond the end of a history, as a module may


def failure_of(test: Test) -> BaseException | None:
    HELD.clear()
    return run_history(test, of_tape([]), troubles="none")[1]


async def _fail() -> None:
    raise ValueError("unheard")


def _failed_future() -> asyncio.Future[None]:
    made = asyncio.get_running_loop().create_future()
    made.set_exception(ValueError("unheard"))
    return made


STARTS: dict[str, Callable[[Simulation], Any]] = {
    "a task": lambda sim: asyncio.create_task(_fail()),
    "a task that no loop made": lambda sim: asyncio.Task(_fail()),
    "several, gathered": lambda sim: asyncio.gather(_fail(), asyncio.sleep(0)),
    "a future": lambda sim: _failed_future(),
    "a callback": lambda sim: asyncio.get_running_loop().call_soon(lambda: 1 // 0),
    "a timer": lambda sim: asyncio.get_running_loop().call_later(0.5, lambda: 1 // 0),
    "a process": lambda sim: sim.start(_fail(), name="another"),
    "a process with the name of the test's": lambda sim: sim.start(_fail(), name="test"),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("is_held", [True, False], ids=["held", "dropped"])
@pytest.mark.parametrize("what", STARTS)
def test_what_was_started_and_raised_fails(what: str, is_held: bool) -> None:
    async def test(sim: Simulation) -> None:
        started = STARTS[what](sim)
        if is_held:
            HELD.append(started)
        del started
        await sim.pass_time(1)

    told = str(failure_of(test))
    assert "unheard" in told
    assert "ValueError" in told or "ZeroDivisionError" in told


@pytest.mark.parametrize("is_held", [True, False], ids=["held", "dropped"])
def test_a_process_that_raised_and_has_a_successor_of_its_name_fails(is_held: bool) -> None:
    async def test(sim: Simulation) -> None:
        first = sim.start(_fail(), name="worker")
        if is_held:
            HELD.append(first)
        del first
        await sim.start(sim.pass_time(1), name="worker").result()

    assert "ValueError('unheard')" in str(failure_of(test))


def test_what_a_test_leaves_is_found_beside_a_process_of_its_name() -> None:
    async def test(sim: Simulation) -> None:
        asyncio.get_running_loop().call_later(5000, print)
        await sim.start(asyncio.sleep(0), name="test").result()

    assert "left behind" in str(failure_of(test))


def test_a_thread_that_raised_fails() -> None:
    async def test(sim: Simulation) -> None:
        thread = threading.Thread(target=lambda: 1 // 0)
        thread.start()
        thread.join()

    before = threading.excepthook
    assert "ZeroDivisionError" in str(failure_of(test))
    assert threading.excepthook is before


def test_an_append_that_failed_and_was_not_waited_for_fails() -> None:
    async def test(sim: Simulation) -> None:
        log = await sim.open_writer("orders")
        await sim.take_over("orders")
        HELD.append(await log.submit(b"lost"))
        await sim.pass_time(1)

    assert isinstance(failure_of(test), dlog.Fenced)


def test_an_append_whose_failure_was_told_does_not_fail_again() -> None:
    async def test(sim: Simulation) -> None:
        log = await sim.open_writer("orders")
        await sim.take_over("orders")
        with pytest.raises(dlog.Fenced):
            await log.append(b"lost")

    assert failure_of(test) is None


def test_a_failure_is_told_before_that_of_a_close() -> None:
    async def test(sim: Simulation) -> None:
        log = await sim.open_writer("orders")
        await sim.take_over("orders")
        await log.submit(b"lost")
        raise ValueError("the test's own")

    assert "the test's own" in str(failure_of(test))


def test_the_sync_api_is_refused() -> None:
    """Its logs would be real ones, beside the world."""

    async def test(sim: Simulation) -> None:
        with dlog.open_writer("orders", url="memory:real-beside-the-world") as log:
            log.append(b"x")

    assert "async API" in str(failure_of(test))


WRONG: dict[str, Callable[[Simulation], Awaitable[Any]]] = {
    "a bad name": lambda sim: sim.take_over("/"),
    "lost for less than no time": lambda sim: sim.lose_bookie(-1),
    "stopped for ever": lambda sim: sim.stop_bookie(float("inf")),
    "slow for no number": lambda sim: sim.slow_bookie(10, float("nan")),
    "slower by nothing": lambda sim: sim.slow_bookie(0.5),
    "lost replies": lambda sim: sim.lose_replies(-0.1),
    "slept for less than no time": lambda sim: sim.oversleep(-0.1),
    "back in time": lambda sim: sim.pass_time(-1),
}


@pytest.mark.parametrize("what", WRONG)
def test_trouble_that_cannot_be_is_refused(what: str) -> None:
    error = failure_of(lambda sim: _wrong(sim, WRONG[what]))
    assert isinstance(error, dlog.ConfigError), repr(error)


async def _wrong(sim: Simulation, call: Callable[[Simulation], Awaitable[Any]]) -> None:
    await call(sim)


def test_a_process_is_frozen_for_some_time() -> None:
    async def test(sim: Simulation) -> None:
        sim.start(sim.pass_time(1), name="worker").freeze(-1)

    assert isinstance(failure_of(test), dlog.ConfigError)


def test_the_result_of_what_was_killed_raises() -> None:
    async def test(sim: Simulation) -> None:
        worker = sim.start(sim.pass_time(1), name="worker")
        worker.kill()
        await worker.result()

    assert "worker was killed" in str(failure_of(test))


def test_a_test_that_is_not_async_fails() -> None:
    @simulate(histories=1)
    def test(sim: Simulation) -> None:  # type: ignore[arg-type]
        pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(users, "PLAN", users.Plan(shrink_s=0.0))
        with pytest.raises(users.HistoryFailed):
            test()


def test_a_plan_of_no_histories_is_refused() -> None:
    with pytest.raises(dlog.ConfigError, match="histories=0"):
        users.Plan(histories=0)


@pytest.mark.parametrize("tape", ["x", "1", "1:", "1:x", "-1:0.5", "1:1.0", "1:-0.5", "1:nan"])
def test_a_tape_that_says_nothing_is_refused(tape: str) -> None:
    with pytest.raises(dlog.ConfigError, match="DRAW:VALUE"):
        users.read_tape(tape)


def test_marks_of_a_test_stay_its_marks() -> None:
    @simulate(histories=1)
    @pytest.mark.skip(reason="not now")
    async def test(sim: Simulation) -> None:
        raise AssertionError

    assert [each.name for each in getattr(test, "pytestmark")] == ["skip"]  # noqa: B009


def test_each_history_is_judged_by_its_own_futures() -> None:
    """What another test holds is not of this history."""
    loop = asyncio.new_event_loop()
    stranger = loop.create_future()
    stranger.set_exception(ValueError("of another test"))
    assert failure_of(partial(_wrong, call=lambda sim: sim.pass_time(1))) is None
    stranger.exception()
    loop.close()
