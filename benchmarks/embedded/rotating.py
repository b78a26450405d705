"""What a rotation costs those who append meanwhile: `rotation`.

Eight tasks append 1 KB each, over and over, and wait for each acknowledgement. Time is cut into
pairs of slots: in the first a rotation is asked for, in the second nothing happens at a random
moment. The statistic is the p99, over the rotations, of the longest append that overlaps ± 50 ms
around the request, by the same over the random moments between them.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from bisect import bisect_left
from operator import sub

import dlog
from benchmarks.common import KIB, Finding, Setting, median, quantile, random_values

TASKS = 8
SLOT_S = 0.15
AROUND_S = 0.05
RATIO = 3.0


class Spans:
    """Appends, by the time they ended: millions of them, so no object for each."""

    def __init__(self) -> None:
        self.begins = array("d")
        self.ends = array("d")

    def add(self, begin: float, end: float) -> None:
        self.begins.append(begin)
        self.ends.append(end)

    def longest_around(self, moments: list[float]) -> list[float]:
        """The longest append that overlaps the time around each moment."""
        begins, ends = self.begins, self.ends
        longest_s = max(map(sub, ends, begins), default=0.0)
        found = []
        for moment in moments:
            first = bisect_left(ends, moment - AROUND_S)
            behind = bisect_left(ends, moment + AROUND_S + longest_s)
            found.append(
                max(
                    (
                        ends[at] - begins[at]
                        for at in range(first, behind)
                        if begins[at] <= moment + AROUND_S
                    ),
                    default=0.0,
                )
            )
        return found


def rotation(setting: Setting) -> list[Finding]:
    count = setting.pick(1_000, 3)
    spans, rotations, others, taken = asyncio.run(_measure(setting, count))
    near = spans.longest_around(rotations)
    apart = spans.longest_around(others)
    ratio = quantile(near, 0.99) / quantile(apart, 0.99)
    return [
        Finding(
            "rotation",
            f"{count:,} rotations, p99 of the longest append",
            f"{quantile(near, 0.99) * 1e3:.2f} ms = {ratio:.2f} x",
            "≤ 3 x random moments",
            ratio <= RATIO,
            beside=f"random moments {quantile(apart, 0.99) * 1e3:.2f} ms",
            values={
                "ratio": ratio,
                "near_p50_ms": median(near) * 1e3,
                "apart_p50_ms": median(apart) * 1e3,
                "rotate_p50_ms": median(taken) * 1e3,
                "rotate_p99_ms": quantile(taken, 0.99) * 1e3,
                "appends": len(spans.ends),
            },
            rounds={"near s": near, "apart s": apart},
        )
    ]


async def _measure(
    setting: Setting, count: int
) -> tuple[Spans, list[float], list[float], list[float]]:
    spans = Spans()
    rotations, others, taken = [], [], []
    chance = random.Random(11)
    with setting.scratch() as directory:
        async with dlog.aio.open_writer("bench", url=f"file:{directory}") as log:
            stop = asyncio.Event()

            async def load() -> None:
                (value,) = random_values(1, KIB)
                while not stop.is_set():
                    began = time.perf_counter()
                    await log.append(value)
                    spans.add(began, time.perf_counter())

            tasks = [asyncio.create_task(load()) for _ in range(TASKS)]
            for _ in range(count):
                await asyncio.sleep(AROUND_S)
                rotations.append(time.perf_counter())
                await log.rotate()
                taken.append(time.perf_counter() - rotations[-1])
                await asyncio.sleep(max(0.0, rotations[-1] + SLOT_S - time.perf_counter()))
                began = time.perf_counter()
                others.append(began + chance.uniform(AROUND_S, SLOT_S - AROUND_S))
                await asyncio.sleep(SLOT_S)
            stop.set()
            await asyncio.gather(*tasks)
    return spans, rotations, others, taken
