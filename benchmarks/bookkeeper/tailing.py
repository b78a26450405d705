"""From the acknowledgement in one process to the entry in another: `tail`.

The writer adds 100 B two hundred times a second, waits for each acknowledgement and publishes it at
once (an explicit LAC); a reader in a process of its own waits for the next entry, reads it and
stamps it. The statistic is the stamp minus the acknowledgement, p50 and p99 over all entries. The
Java client beside it sends its explicit LAC by a timer of 1 ms and polls all bookies at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.bookkeeper.sides import OURS, RUN_TIMEOUT_S, ms_text
from benchmarks.bookkeeper.stage import Stages
from benchmarks.common import Finding, interleaved, median, quantile
from dlog.testing.cluster.conversation import Program

PACE_US = 5_000
P50_S, P99_S = 0.0015, 0.010
JAVA = "Java v3"


def tail(stages: Stages) -> list[Finding]:
    setting = stages.setting
    count = setting.pick(2_000, 20)
    with stages.stage() as stage:
        ours = (stage.new_ours(), stage.new_ours())
        java = (stage.new_peer(explicitLacInterval="1"), stage.new_peer())
        cases: dict[str, Callable[[], list[float]]] = {
            JAVA: lambda: _delays(*java, count),
            OURS: lambda: _delays(*ours, count),
        }
        interleaved(setting.pick(1, 0), cases)
        results = interleaved(setting.rounds, cases)
    p50 = {name: [quantile(run, 0.5) for run in runs] for name, runs in results.items()}
    p99 = {name: [quantile(run, 0.99) for run in runs] for name, runs in results.items()}
    ours_p50, ours_p99 = median(p50[OURS]), median(p99[OURS])
    return [
        Finding(
            "tail",
            "ack to readable elsewhere, 200/s",
            f"p50 {ms_text(ours_p50)}, p99 {ms_text(ours_p99)}",
            f"≤ {P50_S * 1e3} ms, ≤ {P99_S * 1e3:.0f} ms",
            ours_p50 <= P50_S and ours_p99 <= P99_S,
            beside=f"{JAVA} p50 {ms_text(median(p50[JAVA]))}, p99 {ms_text(median(p99[JAVA]))}",
            values={"p50_ms": ours_p50 * 1e3, "p99_ms": ours_p99 * 1e3},
            rounds={f"{name} p50 s": runs for name, runs in p50.items()}
            | {f"{name} p99 s": runs for name, runs in p99.items()},
        )
    ]


def _delays(writer: Program, reader: Program, count: int) -> list[float]:
    details: dict[str, Any] = {"client": "v3", "count": count, "size": 100}
    ledger_id = writer.tell("tail_create", **details)["ledger"]
    reading = reader.ask("tail_read", ledger=ledger_id, **details)
    writing = writer.ask("tail_write", ledger=ledger_id, pace_us=PACE_US, **details)
    acks = writing.result(RUN_TIMEOUT_S)["stamps"]
    stamps = reading.result(RUN_TIMEOUT_S)["stamps"]
    return [(after - before) / 1e9 for before, after in zip(acks, stamps, strict=True)]
