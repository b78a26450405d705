"""From the acknowledgement in one process to the message in another: `tail`.

The writer appends 100 B two hundred times a second and waits for each acknowledgement; a reader in
a process of its own follows the log and stamps each message as it is handed out. The statistic is
the stamp minus the acknowledgement, p50 and p99 over all messages. DistributedLog's writer goes on
without waiting, since each acknowledgement waits for a flush.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.bookkeeper.sides import RUN_TIMEOUT_S, ms_text
from benchmarks.bookkeeper.stage import Stages
from benchmarks.common import Finding, interleaved, median, quantile
from benchmarks.log.sides import OURS, THEIRS, ask, distributed_log, fresh_name, ours
from dlog.testing.cluster.conversation import Program

PACE_US = 5_000
P50_S, P99_S = 0.0015, 0.010


def tail(stages: Stages) -> list[Finding]:
    setting = stages.setting
    count = setting.pick(1_500, 20)
    with stages.stage() as stage:
        our_sides = (ours(stage), ours(stage))
        their_sides = (distributed_log(stage), distributed_log(stage))
        cases: dict[str, Callable[[], list[float]]] = {
            THEIRS: lambda: _delays(*their_sides, count),
            OURS: lambda: _delays(*our_sides, count),
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
            beside=f"{THEIRS} p50 {ms_text(median(p50[THEIRS]))}, "
            f"p99 {ms_text(median(p99[THEIRS]))}",
            values={"p50_ms": ours_p50 * 1e3, "p99_ms": ours_p99 * 1e3},
            rounds={f"{name} p50 s": runs for name, runs in p50.items()}
            | {f"{name} p99 s": runs for name, runs in p99.items()},
        )
    ]


def _delays(writer: Program, reader: Program, count: int) -> list[float]:
    log, details = fresh_name(), {"count": count, "size": 100}
    ask(writer, "tail_create", log=log, **details)
    reading = reader.ask("tail_read", log=log, **details)
    writing = writer.ask("tail_write", log=log, pace_us=PACE_US, **details)
    acks = writing.result(RUN_TIMEOUT_S)["stamps"]
    stamps = reading.result(RUN_TIMEOUT_S)["stamps"]
    return [(after - before) / 1e9 for before, after in zip(acks, stamps, strict=True)]
