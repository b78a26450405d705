"""What a writer and a reader hold while they work on and on: `memory`.

Two children, one appending 1 KB messages at 40 MB/s with a rotation every 64 MiB, one following
the log and taking messages as a list; both are looked at five times a second. The statistic is the
memory of their own (anonymous pages). It swings with what is in the window at the moment, so
flatness is the slope of its floor, the smallest sample of every five seconds of the second half:
the median over all pairs of them, since what leaks lifts the floor again and again. The bound is on
the largest sample above the first one. A second writer without any limit of rate, at the speed of
the disk, must keep within its window: raw and encoded, plus what objects cost.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from benchmarks.common import MIB, Finding, Setting, slope_per_minute
from benchmarks.embedded import children
from dlog import limits

BYTES_PER_S = 40 * MIB
LOOK_S = 0.2
FLOOR_S = 5.0
FLAT_MIB_PER_MINUTE = 1.0
# The window raw and encoded, and once more for objects and what the allocator keeps.
WRITER_MIB_MAX = 3 * limits.WINDOW_BYTES_DEFAULT / MIB
READER_MIB_MAX = 3 * (limits.READ_AHEAD_BYTES_DEFAULT + limits.READ_RUN_BYTES_DEFAULT) / MIB

Samples = list[tuple[float, float]]


def memory(setting: Setting) -> list[Finding]:
    seconds = 2.0 if setting.quick else 60 * setting.minutes
    with setting.scratch() as directory:
        url = f"file:{directory}"
        writer = children.start("write", url, seconds, BYTES_PER_S)
        children.line_of(writer)
        reader = children.start("read", url, seconds)
        children.line_of(reader)
        sampled = _sampled({"writer": writer, "reader": reader}, seconds - LOOK_S)
        children.line_of(writer)
        children.line_of(reader)
        children.end(writer)
        children.end(reader)
    with setting.scratch() as directory:
        fast_s = 1.5 if setting.quick else 10.0
        fast = children.start("write", f"file:{directory}", fast_s, 0)
        children.line_of(fast)
        burst = _sampled({"fast": fast}, fast_s - LOOK_S)["fast"]
        children.line_of(fast)
        children.end(fast)
    return [
        _steady("writer", sampled["writer"], WRITER_MIB_MAX),
        _steady("reader", sampled["reader"], READER_MIB_MAX),
        Finding(
            "memory",
            "writer at the speed of the disk",
            f"at most + {_above(burst):.0f} MiB",
            f"≤ + {WRITER_MIB_MAX:.0f} MiB",
            _above(burst) <= WRITER_MIB_MAX,
            values={"above_mib": _above(burst)},
            rounds={"MiB": [size for _, size in burst]},
        ),
    ]


def _steady(who: str, samples: Samples, above_max: float) -> Finding:
    floors = floors_of(samples[len(samples) // 2 :])
    slope = slope_per_minute([at for at, _ in floors], [size for _, size in floors])
    minutes = samples[-1][0] / 60
    return Finding(
        "memory",
        f"{who}, 40 MB/s for {minutes:.1f} min",
        f"floor {slope:+.2f} MiB/min, at most + {_above(samples):.0f} MiB",
        f"flat (≤ {FLAT_MIB_PER_MINUTE:g} MiB/min), ≤ + {above_max:.0f} MiB",
        slope <= FLAT_MIB_PER_MINUTE and _above(samples) <= above_max,
        values={"slope_mib_per_minute": slope, "above_mib": _above(samples)},
        rounds={"MiB": [size for _, size in samples]},
    )


def floors_of(samples: Samples) -> Samples:
    """The smallest sample of every `FLOOR_S`."""
    floors: dict[int, tuple[float, float]] = {}
    for at, size in samples:
        span = int(at / FLOOR_S)
        floors[span] = min(floors.get(span, (at, size)), (at, size), key=lambda each: each[1])
    return list(floors.values())


def _above(samples: Samples) -> float:
    return max(size for _, size in samples) - samples[0][1]


def _sampled(processes: dict[str, subprocess.Popen[bytes]], seconds: float) -> dict[str, Samples]:
    sampled: dict[str, Samples] = {name: [] for name in processes}
    began = time.monotonic()
    while (at := time.monotonic() - began) < seconds:
        for name, process in processes.items():
            own_mib = _own_mib(process.pid)
            if own_mib is None:
                return sampled  # it had all its time before we had ours
            sampled[name].append((at, own_mib))
        time.sleep(LOOK_S)
    return sampled


def _own_mib(pid: int) -> float | None:
    """None of one that has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return None
