"""Reading a log that is closed, from the opening of the reader to its last message; everybody reads
what it wrote itself, again and again, so that bookies have it in memory.

- `read_arrow`: batch by batch, each turned into an Arrow record batch; messages by time.
- `iterate`: message by message, each one's value looked at.

DistributedLog reads record by record, and a thousand at a time, waiting or with futures; the
fastest counts in both rows. It copies no payload.
"""

from __future__ import annotations

from benchmarks.bookkeeper.sides import rate_text, us_text
from benchmarks.bookkeeper.stage import Stages
from benchmarks.common import KIB, Finding, median, median_ratio
from benchmarks.log.appending import size_text
from benchmarks.log.sides import (
    OURS,
    THEIRS,
    ask,
    beside,
    best_of,
    cpu_us,
    distributed_log,
    fresh_name,
    measured,
    ours,
    rates_of,
    reading,
)
from dlog.limits import WINDOW_BYTES_DEFAULT

ARROW_RATIO_MIN = {100: 2.0, KIB: 1.3}
ITERATE_RATIO_MIN = 0.6
WAYS = ("next", "bulk", "async")  # of DistributedLog to read


def read_arrow(stages: Stages) -> list[Finding]:
    return [
        _read(stages, "read_arrow", "arrow", size, ratio_min)
        for size, ratio_min in ARROW_RATIO_MIN.items()
    ]


def iterate(stages: Stages) -> list[Finding]:
    return [_read(stages, "iterate", "iterate", 100, ITERATE_RATIO_MIN)]


def _read(stages: Stages, row: str, what: str, size: int, ratio_min: float) -> Finding:
    setting = stages.setting
    count = setting.pick(100_000 if size >= KIB else 600_000, 2_000)
    log, details = fresh_name(), {"count": count, "size": size}
    with stages.stage() as stage:
        our_side, theirs = ours(stage), distributed_log(stage)
        ask(our_side, "append_many", log=log, **details)
        ask(
            theirs,
            "write",
            log=log,
            way="async",
            outstanding_bytes=WINDOW_BYTES_DEFAULT,
            **details,
        )
        cases = {OURS: reading(our_side, what, log=log, **details)}
        for way in WAYS:
            cases[f"{THEIRS}, {way}"] = reading(theirs, "read", log=log, way=way, **details)
        runs = measured(cases, setting.rounds, warm=setting.pick(1, 0))
    rates, cpu = rates_of(runs), cpu_us(runs)
    best = best_of(rates)
    ratio = median_ratio(rates[OURS], rates[best])
    return Finding(
        row,
        f"{'batches to Arrow' if what == 'arrow' else 'message by message'}, {size_text(size)}",
        f"{rate_text(median(rates[OURS]))}, {us_text(median(cpu[OURS]))} CPU, {ratio:.2f} x {best}",
        f"≥ {ratio_min} x",
        ratio >= ratio_min,
        beside=f"{beside(rates, rate_text)}; CPU {beside(cpu, us_text)}",
        values={"ratio": ratio, "messages_s": median(rates[OURS]), "cpu_us": median(cpu[OURS])},
        rounds={f"{name} messages/s": each for name, each in rates.items()}
        | {f"{name} CPU µs": each for name, each in cpu.items()},
    )
