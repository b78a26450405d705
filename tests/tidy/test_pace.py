"""A deadline is as long as it says on a quiet machine, and up to four times that on a busy one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests import pace


class Clock:
    """Each look costs `step_s`, so that the probe seems to take that long."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    before = list(pace.STRETCHED)
    yield
    pace.STRETCHED[:] = before


@pytest.mark.parametrize(
    ("probe_s", "factor"),
    [(pace.QUIET_PROBE_S / 2, 1.0), (pace.QUIET_PROBE_S * 2, 2.0), (60.0, pace.SLOWNESS_MAX)],
)
def test_slowness_is_between_one_and_four(probe_s: float, factor: float) -> None:
    assert pace.slowness(Clock(probe_s)) == pytest.approx(factor)


def test_what_was_stretched_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pace.STRETCHED.clear()
    monkeypatch.setattr(pace, "slowness", lambda: 1.0)
    assert pace.stretched(2.0) == 2.0
    assert pace.STRETCHED == []
    monkeypatch.setattr(pace, "slowness", lambda: 3.0)
    assert pace.stretched(2.0) == 6.0
    assert pace.STRETCHED == [3.0]


def test_a_deadline_is_moved_once_and_then_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "slowness", lambda: 2.0)
    looks_s = iter([0.0, 9.9, 10.0, 10.0, 19.9, 20.0, 20.0, 20.1, 20.1])
    deadline = pace.Deadline(10.0, lambda: next(looks_s))
    # Once the time is over the clock is read twice, as the deadline may have moved in between.
    assert [deadline.passed() for _ in range(5)] == [False, False, False, True, True]


def test_a_bound_holds_only_as_far_as_the_machine_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "slowness", lambda: 2.0)
    assert pace.within(0.5, 1.0)
    assert pace.within(1.9, 1.0)
    assert not pace.within(2.1, 1.0)


async def test_a_timeout_is_stretched_only_where_it_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "STRETCHED", [])
    measured = list[float]()

    def slowness() -> float:
        measured.append(3.0)
        return 3.0

    monkeypatch.setattr(pace, "slowness", slowness)
    async with pace.timeout(60):
        pass
    assert measured == []
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(TimeoutError):
        async with pace.timeout(0.02):
            await asyncio.Event().wait()
    assert loop.time() - began_s >= 0.06
    assert measured == [3.0]


def test_a_thread_waits_on_where_the_machine_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "STRETCHED", [])
    monkeypatch.setattr(pace, "slowness", lambda: 3.0)
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 2

    assert pace.waited(wait, 2.0)
    assert waits == [2.0, 4.0]
