"""From the acknowledgement in one process to the delivery in another: `tail_latency`.

The writer appends 100 B about 200 times a second, waits for each acknowledgement and writes nothing
else; a reader in a process of its own iterates with `follow=True` and stamps each message as it
gets it. The statistic is delivery minus return of `append`, p50 and p99 over all messages. Beside
it, in the same rounds, one byte through a pipe between two processes at the same pace: what waking
another process costs at least.
"""

from __future__ import annotations

import json
import os
import time

import dlog
from benchmarks.common import Finding, Setting, interleaved, median, quantile, random_values
from benchmarks.embedded import children

PACE_S = 0.005
P50_S = 0.003


def tail_latency(setting: Setting) -> list[Finding]:
    count = setting.pick(1_000, 20)
    cases = {"pipe": lambda: _through_pipe(count), "dlog": lambda: _through_log(setting, count)}
    results = interleaved(setting.rounds, cases)
    p50 = {name: [quantile(run, 0.5) for run in runs] for name, runs in results.items()}
    p99 = {name: [quantile(run, 0.99) for run in runs] for name, runs in results.items()}
    return [
        Finding(
            "tail_latency",
            "ack to readable elsewhere, p50",
            f"{median(p50['dlog']) * 1e3:.3f} ms (p99 {median(p99['dlog']) * 1e3:.3f} ms)",
            "≤ 3 ms",
            median(p50["dlog"]) <= P50_S,
            beside=f"pipe {median(p50['pipe']) * 1e3:.3f} ms",
            values={"p50_ms": median(p50["dlog"]) * 1e3, "p99_ms": median(p99["dlog"]) * 1e3},
            rounds={f"{name} p50 s": runs for name, runs in p50.items()}
            | {f"{name} p99 s": runs for name, runs in p99.items()},
        )
    ]


def _through_log(setting: Setting, count: int) -> list[float]:
    values = random_values(count, 100)
    with setting.scratch() as directory:
        url = f"file:{directory}"
        with dlog.open_writer("bench", url=url) as log:
            child = children.start("tail", url, count)
            try:
                children.line_of(child)
                acks = []
                for value in values:
                    time.sleep(PACE_S)
                    log.append(value)
                    acks.append(time.monotonic_ns())
                stamps = json.loads(children.line_of(child))
            finally:
                children.end(child)
    return _differences(acks, stamps)


def _through_pipe(count: int) -> list[float]:
    child = children.start("hear", count)
    assert child.stdin is not None
    try:
        children.line_of(child)
        sent = []
        for _ in range(count):
            time.sleep(PACE_S)
            sent.append(time.monotonic_ns())
            os.write(child.stdin.fileno(), b"!")
        stamps = json.loads(children.line_of(child))
    finally:
        children.end(child)
    return _differences(sent, stamps)


def _differences(begun: list[int], done: list[int]) -> list[float]:
    return [(after - before) / 1e9 for before, after in zip(begun, done, strict=True)]
