"""Becoming the writer while the one before is frozen: `takeover`.

A child fills an open segment with 256 MiB and goes on appending; it is stopped with SIGSTOP in the
middle of that. Then the time of `open_writer` is taken, from the call to its return, the opening of
the client included; p50 over the takeovers. Beside it the p50 of write + fsync of 4 KB in the same
directory, in the same run. The split of the time comes from the crash points that takeover
announces. `reopen` is the same after a clean close: nothing to fence, nothing to recover.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import dlog
from benchmarks.common import MIB, Finding, Setting, median, quantile
from benchmarks.embedded import children
from dlog import trace

FSYNC_FACTOR = 10
SLACK_S = 0.010
FSYNCS = 200


def takeover(setting: Setting) -> list[Finding]:
    rounds = setting.pick(7 * setting.rounds, 1)
    taken, reopened, fsyncs = [], [], []
    steps: dict[str, list[float]] = {}
    for _ in range(rounds):
        with setting.scratch() as directory:
            fsyncs += _fsyncs(directory, setting.pick(FSYNCS, 5))
            seconds, split = _one_takeover(directory, setting.pick(256 * MIB, MIB))
            taken.append(seconds)
            for name, step_s in split.items():
                steps.setdefault(name, []).append(step_s)
            reopened.append(_one_reopening(directory))
    fsync_s = quantile(fsyncs, 0.5)
    bound_s = FSYNC_FACTOR * fsync_s + SLACK_S
    p50_s = median(taken)
    split_ms = {name: median(found) * 1e3 for name, found in steps.items()}
    return [
        Finding(
            "takeover",
            "frozen writer, open segment of 256 MiB",
            f"{p50_s * 1e3:.2f} ms (worst {max(taken) * 1e3:.1f} ms)",
            f"≤ 10 fsync + 10 ms = {bound_s * 1e3:.1f} ms",
            p50_s <= bound_s,
            beside=f"write+fsync {fsync_s * 1e3:.3f} ms",
            values={"p50_ms": p50_s * 1e3, "fsync_p50_ms": fsync_s * 1e3}
            | {f"until {name} ms": at for name, at in split_ms.items()},
            rounds={"takeover s": taken},
        ),
        Finding(
            "takeover",
            "reopen after a clean close",
            f"{median(reopened) * 1e3:.2f} ms",
            values={"p50_ms": median(reopened) * 1e3},
            rounds={"reopen s": reopened},
        ),
    ]


def _one_takeover(directory: Path, size: int) -> tuple[float, dict[str, float]]:
    url = f"file:{directory}"
    child = children.start("fill", url, size)
    try:
        children.line_of(child)
        time.sleep(0.05)  # somewhere in the middle of its appends
        os.kill(child.pid, signal.SIGSTOP)
        reached: dict[str, float] = {}
        trace.listen(lambda point, side: reached.__setitem__(point, time.perf_counter()))
        began = time.perf_counter()
        log = dlog.open_writer("bench", url=url)
        seconds = time.perf_counter() - began
        trace.listen(None)
        log.append(b"ours")
        log.close()
    finally:
        trace.listen(None)
        children.end(child)
    split = {
        point.removeprefix("takeover."): at - began
        for point, at in reached.items()
        if point.startswith("takeover.")
    }
    return seconds, split


def _one_reopening(directory: Path) -> float:
    began = time.perf_counter()
    log = dlog.open_writer("bench", url=f"file:{directory}")
    seconds = time.perf_counter() - began
    log.close()
    return seconds


def _fsyncs(directory: Path, count: int) -> list[float]:
    fd = os.open(directory / "fsyncs", os.O_RDWR | os.O_CREAT, 0o600)
    block, taken = os.urandom(4096), []
    for _ in range(count):
        began = time.perf_counter()
        os.write(fd, block)
        os.fsync(fd)
        taken.append(time.perf_counter() - began)
    os.close(fd)
    os.unlink(directory / "fsyncs")
    return taken
