"""Patience that a stall of our own does not use up."""

from __future__ import annotations

import asyncio

import pytest

from dlog.patience import AwakeClock, AwakeTimeout
from tests.sim.virtual_loop import LoopClock, VirtualLoop, pass_time, run_virtually


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def wall_us(self) -> int:
        return 7

    def monotonic_s(self) -> float:
        return self.now_s


def test_of_a_late_look_only_a_step_counts() -> None:
    clock = Clock()
    awake = AwakeClock(clock, 0.5)
    assert awake.monotonic_s() == 100.0
    clock.now_s += 0.4
    assert awake.monotonic_s() == pytest.approx(100.4)
    clock.now_s += 60.0
    assert awake.monotonic_s() == pytest.approx(100.9)
    clock.now_s += 0.1
    assert awake.monotonic_s() == pytest.approx(101.0)
    assert awake.wall_us() == 7


def _loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def test_silence_is_given_up_after_the_time_that_was_said() -> None:
    async def wait() -> None:
        with pytest.raises(TimeoutError):
            async with AwakeTimeout(4.0):
                await asyncio.Event().wait()
        assert _loop().time() == pytest.approx(4.0, abs=0.01)

    run_virtually(wait())


@pytest.mark.parametrize("at_s", [0.0, 0.3, 3.0])
def test_what_came_while_we_stood_still_is_heard(at_s: float) -> None:
    """After SIGCONT timers run before what has arrived."""

    async def wait() -> None:
        heard = asyncio.Event()

        def stop() -> None:
            _loop().stand_still(30.0)
            _loop().call_soon(lambda: _loop().call_soon(_loop().call_soon, heard.set))

        _loop().call_later(at_s, stop)
        async with AwakeTimeout(4.0):
            await heard.wait()

    run_virtually(wait())


def test_what_is_over_in_time_leaves_no_timer() -> None:
    async def wait() -> None:
        async with AwakeTimeout(4.0):
            await pass_time(1.0)
        began_s = LoopClock(_loop()).monotonic_s()
        with pytest.raises(ValueError, match="its own"):
            async with AwakeTimeout(4.0):
                raise ValueError("its own")
        await pass_time(10.0)
        assert LoopClock(_loop()).monotonic_s() == began_s + 10.0

    run_virtually(wait())
