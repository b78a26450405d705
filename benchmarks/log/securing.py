"""What TLS costs: `tls`.

One set of servers offers both. Two processes of ours write and read the same sizes in turn, one of
them with `tls=required` to ZooKeeper and to every bookie: `append_many` of 100 B and 1 KB, messages
by the time from the call to its return, and batches to Arrow of what it wrote, messages by the time
from the opening of the reader to the last one. The statistic is the rate with TLS by the rate
without, per round, median. Links stand before a run begins, so handshakes do not count.
"""

from __future__ import annotations

from benchmarks.bookkeeper.sides import rate_text, us_text
from benchmarks.bookkeeper.stage import Stages
from benchmarks.common import KIB, Finding, median, median_ratio
from benchmarks.log.appending import size_text
from benchmarks.log.sides import (
    Runs,
    ask,
    cpu_us,
    fresh_name,
    measured,
    ours,
    ours_secured,
    rates_of,
    reading,
    writing,
)

RATIO_MIN = 0.4
PLAIN, TLS = "plain", "TLS"


def tls(stages: Stages) -> list[Finding]:
    setting = stages.setting
    found = []
    for size in (100, KIB):
        details = {"count": setting.pick(100_000 if size >= KIB else 600_000, 2_000), "size": size}
        with stages.stage(tls=True) as stage:
            sides = {PLAIN: ours(stage), TLS: ours_secured(stage)}
            logs = {name: fresh_name() for name in sides}
            for name, side in sides.items():
                ask(side, "append_many", log=logs[name], **details)
            writes = {name: writing(side, "append_many", **details) for name, side in sides.items()}
            reads = {
                name: reading(side, "arrow", log=logs[name], **details)
                for name, side in sides.items()
            }
            warm = setting.pick(1, 0)
            wrote = measured(writes, setting.rounds, warm=warm)
            read = measured(reads, setting.rounds, warm=warm)
        found += [
            _finding(f"append_many, {size_text(size)}", wrote),
            _finding(f"batches to Arrow, {size_text(size)}", read),
        ]
    return found


def _finding(what: str, runs: Runs) -> Finding:
    rates, cpu = rates_of(runs), cpu_us(runs)
    ratio = median_ratio(rates[TLS], rates[PLAIN])
    return Finding(
        "tls",
        what,
        f"{rate_text(median(rates[TLS]))}, {us_text(median(cpu[TLS]))} CPU, {ratio:.2f} x without",
        f"≥ {RATIO_MIN} x",
        ratio >= RATIO_MIN,
        beside=f"without {rate_text(median(rates[PLAIN]))}; CPU {us_text(median(cpu[PLAIN]))}",
        values={"ratio": ratio, "messages_s": median(rates[TLS]), "cpu_us": median(cpu[TLS])},
        rounds={f"{name} messages/s": each for name, each in rates.items()}
        | {f"{name} CPU µs": each for name, each in cpu.items()},
    )
