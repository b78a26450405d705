"""Adding entries to one ledger, E=3 W=3 A=2, CRC32C, random payload; the journals are synced.

- `add_sequential`: p50 of one add of 1 KB that waits for its acknowledgement.
- `add_pipelined`: entries by the time from the first add to the last acknowledgement, with 1,000
  outstanding, 1 KB and 100 B; processor time of the client's process per entry.
- `add_large`: the same in MB/s, with 100 outstanding entries of 100 KB.
"""

from __future__ import annotations

from benchmarks.bookkeeper.sides import (
    OURS,
    ask_all,
    beside,
    best_wire,
    column,
    ms_text,
    named,
    per_entry_us,
    rate_text,
    us_text,
)
from benchmarks.bookkeeper.stage import Stages
from benchmarks.common import KIB, Finding, median, median_ratio, quantile

SEQUENTIAL_RATIO_MAX = 1.1
# Size -> at least so many times Java's rate, and at most so much processor time for each entry.
PIPELINED = {KIB: (1.5, 8.0), 100: (1.0, 5.0)}
LARGE_BYTES = 100 * KIB
LARGE_RATIO_MIN, LARGE_CPU_US_MAX = 1.1, 200.0


def add_sequential(stages: Stages) -> list[Finding]:
    setting = stages.setting
    with stages.stage() as stage:
        answers = ask_all(
            stage,
            "sequential",
            setting.rounds,
            warm=setting.pick(2, 0),
            count=setting.pick(1_500, 20),
            size=KIB,
        )
    p50 = column(answers, lambda run: quantile(run["each_s"], 0.5))
    p99 = column(answers, lambda run: quantile(run["each_s"], 0.99))
    wire = best_wire(p50, high=False)
    ratio = median_ratio(p50[OURS], p50[wire])
    return [
        Finding(
            "add_sequential",
            "add 1 KB, wait, p50",
            f"{ms_text(median(p50[OURS]))} (p99 {ms_text(median(p99[OURS]))}), {ratio:.2f} x Java",
            f"≤ {SEQUENTIAL_RATIO_MAX} x Java",
            ratio <= SEQUENTIAL_RATIO_MAX,
            beside=beside(p50, ms_text),
            values={"ratio": ratio, "p50_ms": median(p50[OURS]) * 1e3},
            rounds=named("p50 s", p50) | named("p99 s", p99),
        )
    ]


def add_pipelined(stages: Stages) -> list[Finding]:
    return [
        _pipelined(stages, size, ratio_min, cpu_us_max)
        for size, (ratio_min, cpu_us_max) in PIPELINED.items()
    ]


def _pipelined(stages: Stages, size: int, ratio_min: float, cpu_us_max: float) -> Finding:
    setting = stages.setting
    count = setting.pick(100_000 if size >= KIB else 300_000, 2_000)
    with stages.stage() as stage:
        answers = ask_all(
            stage,
            "pipelined",
            setting.rounds,
            warm=setting.pick(2, 0),
            count=count,
            size=size,
            outstanding=1_000,
        )
    rates = column(answers, lambda run: count / run["seconds"])
    cpu_us = per_entry_us(answers, count)
    wire = best_wire(rates, high=True)
    ratio, ours_us = median_ratio(rates[OURS], rates[wire]), median(cpu_us[OURS])
    return Finding(
        "add_pipelined",
        f"1,000 outstanding, {_size(size)}",
        f"{rate_text(median(rates[OURS]))}, {us_text(ours_us)} CPU, {ratio:.2f} x Java",
        f"≥ {ratio_min} x Java, ≤ {cpu_us_max:.0f} µs",
        ratio >= ratio_min and ours_us <= cpu_us_max,
        beside=f"{beside(rates, rate_text)}; CPU {beside(cpu_us, us_text)}",
        values={"ratio": ratio, "entries_s": median(rates[OURS]), "cpu_us": ours_us},
        rounds=named("entries/s", rates) | named("CPU µs", cpu_us),
    )


def add_large(stages: Stages) -> list[Finding]:
    setting = stages.setting
    count = setting.pick(2_000, 50)
    with stages.stage() as stage:
        answers = ask_all(
            stage,
            "pipelined",
            setting.rounds,
            warm=setting.pick(2, 0),
            count=count,
            size=LARGE_BYTES,
            outstanding=100,
        )
    speeds = column(answers, lambda run: count * LARGE_BYTES / run["seconds"] / 1e6)
    cpu_us = per_entry_us(answers, count)
    wire = best_wire(speeds, high=True)
    ratio, ours_us = median_ratio(speeds[OURS], speeds[wire]), median(cpu_us[OURS])
    return [
        Finding(
            "add_large",
            "100 outstanding, 100 KB",
            f"{_mb_text(median(speeds[OURS]))}, {us_text(ours_us)} CPU, {ratio:.2f} x Java",
            f"≥ {LARGE_RATIO_MIN} x Java, ≤ {LARGE_CPU_US_MAX:.0f} µs",
            ratio >= LARGE_RATIO_MIN and ours_us <= LARGE_CPU_US_MAX,
            beside=f"{beside(speeds, _mb_text)}; CPU {beside(cpu_us, us_text)}",
            values={"ratio": ratio, "mb_s": median(speeds[OURS]), "cpu_us": ours_us},
            rounds=named("MB/s", speeds) | named("CPU µs", cpu_us),
        )
    ]


def _mb_text(mb_s: float) -> str:
    return f"{mb_s:.0f} MB/s"


def _size(size: int) -> str:
    return f"{size // KIB} KB" if size >= KIB else f"{size} B"
