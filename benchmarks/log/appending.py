"""Writing a log on bookies, E=3 W=3 A=2, journals synced, random payload, readable when it is
acknowledged.

- `append_sequential`: p50 of one `append` of 1 KB that waits for its acknowledgement (both APIs;
  the asyncio one counts, the other pays two hand-overs between threads), by p50 of one bare add of
  the stock Java client, which promises nobody that he can read it. DistributedLog stands beside; it
  waits for its flush.
- `append_many`: messages by the time from the call to its return, sync API. DistributedLog writes
  with a future for each record, in bulks of a thousand, and without acknowledgements but the last;
  the fastest counts.
- `submit`: messages by the time from the first `submit` to the return of `flush`, sync API, one
  thread, the tickets are kept. DistributedLog's nearest: a `write` and a future for each record.
"""

from __future__ import annotations

from functools import partial

from benchmarks.bookkeeper.sides import ask as ask_side
from benchmarks.bookkeeper.sides import ms_text, rate_text, us_text
from benchmarks.bookkeeper.stage import WIRES, Stages
from benchmarks.common import KIB, Finding, median, median_ratio, quantile
from benchmarks.log.sides import (
    OURS,
    THEIRS,
    beside,
    best_of,
    cpu_us,
    distributed_log,
    measured,
    ours,
    rates_of,
    writing,
)
from dlog.limits import WINDOW_BYTES_DEFAULT

# A lone append waits for two journals, one after the other: its entry's, and its LAC's (ADR 10).
SEQUENTIAL_RATIO_MAX = 2.2
SYNC_API = "dlog, sync API"
APPEND_MANY_RATIO_MIN = {100: 2.0, KIB: 1.3}
SUBMIT_RATIO_MIN = 0.8
WAYS = ("async", "bulk", "sync")  # of DistributedLog to write


def append_sequential(stages: Stages) -> list[Finding]:
    setting = stages.setting
    details = {"count": setting.pick(1_000, 10), "size": KIB}
    with stages.stage() as stage:
        our_side, theirs = ours(stage), distributed_log(stage)
        cases = {
            f"Java {wire}": partial(ask_side, stage, wire, "sequential", **details)
            for wire in WIRES
        }
        cases[OURS] = writing(our_side, "sequential", way="async", **details)
        cases[SYNC_API] = writing(our_side, "sequential", way="sync", **details)
        cases[THEIRS] = writing(theirs, "sequential", count=setting.pick(100, 5), size=KIB)
        runs = measured(cases, setting.rounds, warm=setting.pick(1, 0))
    p50 = {name: [quantile(run["each_s"], 0.5) for run in each] for name, each in runs.items()}
    p99 = {name: [quantile(run["each_s"], 0.99) for run in each] for name, each in runs.items()}
    wire = min((f"Java {wire}" for wire in WIRES), key=lambda name: median(p50[name]))
    ratio = median_ratio(p50[OURS], p50[wire])
    sync_ratio = median_ratio(p50[SYNC_API], p50[wire])
    return [
        Finding(
            "append_sequential",
            "append 1 KB, wait, p50",
            f"{ms_text(median(p50[OURS]))} (p99 {ms_text(median(p99[OURS]))}), "
            f"{ratio:.2f} x a bare Java add; sync API {sync_ratio:.2f} x",
            f"≤ {SEQUENTIAL_RATIO_MAX} x",
            ratio <= SEQUENTIAL_RATIO_MAX,
            beside=beside(p50, ms_text),
            values={"ratio": ratio, "sync_ratio": sync_ratio, "p50_ms": median(p50[OURS]) * 1e3},
            rounds={f"{name} p50 s": each for name, each in p50.items()}
            | {f"{name} p99 s": each for name, each in p99.items()},
        )
    ]


def append_many(stages: Stages) -> list[Finding]:
    return [_throughput(stages, "append_many", size) for size in APPEND_MANY_RATIO_MIN]


def submit(stages: Stages) -> list[Finding]:
    return [_throughput(stages, "submit", 100)]


def _throughput(stages: Stages, what: str, size: int) -> Finding:
    setting = stages.setting
    count = setting.pick(100_000 if size >= KIB else 600_000, 2_000)
    details = {"count": count, "size": size}
    ways, ratio_min = WAYS, APPEND_MANY_RATIO_MIN[size]
    if what == "submit":
        ways, ratio_min = WAYS[:1], SUBMIT_RATIO_MIN
    with stages.stage() as stage:
        our_side, theirs = ours(stage), distributed_log(stage)
        cases = {OURS: writing(our_side, what, **details)}
        for way in ways:
            cases[f"{THEIRS}, {way}"] = writing(
                theirs, "write", way=way, outstanding_bytes=WINDOW_BYTES_DEFAULT, **details
            )
        runs = measured(cases, setting.rounds, warm=setting.pick(1, 0))
    rates, cpu = rates_of(runs), cpu_us(runs)
    best = best_of(rates)
    ratio = median_ratio(rates[OURS], rates[best])
    return Finding(
        what,
        f"{what}, {size_text(size)}",
        f"{rate_text(median(rates[OURS]))}, {us_text(median(cpu[OURS]))} CPU, {ratio:.2f} x {best}",
        f"≥ {ratio_min} x",
        ratio >= ratio_min,
        beside=f"{beside(rates, rate_text)}; CPU {beside(cpu, us_text)}",
        values={"ratio": ratio, "messages_s": median(rates[OURS]), "cpu_us": median(cpu[OURS])},
        rounds={f"{name} messages/s": each for name, each in rates.items()}
        | {f"{name} CPU µs": each for name, each in cpu.items()},
    )


def size_text(size: int) -> str:
    return f"{size // KIB} KB" if size >= KIB else f"{size} B"
