"""What a rotation costs those who append meanwhile: `rotation`.

Eight tasks append 1 KB each, over and over, and wait for each acknowledgement. Time is cut into
pairs of slots: in the first a rotation is asked for, in the second nothing happens at a random
moment. The statistic is the p99, over the rotations, of the longest append that overlaps ± 50 ms
around the request, by the same over the random moments between them.
"""

from __future__ import annotations

from benchmarks.bookkeeper.sides import ms_text
from benchmarks.bookkeeper.stage import Stages
from benchmarks.common import Finding, median, quantile
from benchmarks.log.sides import ask, fresh_name, ours

RATIO_MAX = 3.0


def rotation(stages: Stages) -> list[Finding]:
    count = stages.setting.pick(500, 3)
    with stages.stage() as stage:
        told = ask(ours(stage), "rotations", log=fresh_name(), count=count)
    near_s, apart_s, taken_s = told["near_s"], told["apart_s"], told["rotate_s"]
    near, apart = quantile(near_s, 0.99), quantile(apart_s, 0.99)
    ratio = near / apart
    return [
        Finding(
            "rotation",
            f"{count} rotations, p99 of the longest append",
            f"{ms_text(near)} = {ratio:.2f} x; rotation {ms_text(median(taken_s))}",
            f"≤ {RATIO_MAX:.0f} x random moments",
            ratio <= RATIO_MAX,
            beside=f"random moments {ms_text(apart)}",
            values={
                "ratio": ratio,
                "near_p50_ms": median(near_s) * 1e3,
                "apart_p50_ms": median(apart_s) * 1e3,
                "rotate_p50_ms": median(taken_s) * 1e3,
                "rotate_p99_ms": quantile(taken_s, 0.99) * 1e3,
                "appends": told["appends"],
            },
            rounds={"near s": near_s, "apart s": apart_s, "rotation s": taken_s},
        )
    ]
