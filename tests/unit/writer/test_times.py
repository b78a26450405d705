"""How long a takeover took, step by step, by a clock that a test turns."""

from __future__ import annotations

import pytest

from dlog.writer.times import Stopwatch, TakeoverTimes


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_each_lap_is_the_time_since_the_one_before() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    for step, seconds in [("detect", 1), ("claim", 2), ("recover", 4), ("commit", 8), ("seam", 16)]:
        clock.s += seconds
        watch.lap(step)
    assert watch.times == TakeoverTimes(
        detect_ms=1000, claim_ms=2000, recover_ms=4000, commit_ms=8000, seam_ms=16_000
    )
    assert watch.times.total_ms == 31_000


def test_a_lap_that_was_fenced_half_way_is_split() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    clock.s += 1
    watch.lap("claim")
    clock.s += 5
    watch.fenced(clock.s - 2)
    watch.lap("recover")
    assert watch.times == TakeoverTimes(claim_ms=1000, fence_ms=3000, recover_ms=2000)


def test_what_was_fenced_before_the_lap_took_no_time() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    clock.s += 1
    watch.lap("claim")
    watch.fenced(0.0)
    clock.s += 4
    watch.lap("recover")
    assert watch.times == TakeoverTimes(claim_ms=1000, fence_ms=0, recover_ms=4000)


def test_a_step_that_is_taken_again_counts_again_and_one_beside_is_no_part_of_the_sum() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    for seconds in (1, 2):
        clock.s += seconds
        watch.lap("detect")
        watch.beside("birth", 0.5)
    assert watch.times == TakeoverTimes(detect_ms=3000, birth_ms=1000)
    assert watch.times.total_ms == 3000


def test_all_steps_but_the_birth_are_summed_and_told() -> None:
    times = TakeoverTimes(1, 20, 300, 4000, 50_000, 600_000, 7_000_000)
    assert times.total_ms == pytest.approx(654_321)
    assert str(times) == (
        "654321.0 ms: detect 1.0, claim 20.0, fence 300.0, recover 4000.0, commit 50000.0, "
        "seam 600000.0, birth 7000000.0"
    )
