"""Logs with a long past, for measuring: their lists of ledgers, pages and all, without the ledgers.

A log whose writer rotated a hundred thousand times is opened, appended to and rotated without one
look at its old ledgers, but for the newest; so only its list is made, by the rules that the writer
keeps, and the counters of ledger ids are set behind it. On bookies the newest ledger is a real one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import dlog
from benchmarks.common import Finding, Setting, median
from dlog.meta.layout import Layout
from dlog.meta.listed import End, Sealed, Segment, WriterMark
from dlog.meta.log_meta import LogMeta
from dlog.meta.store import MetaStore

FEW, MANY, MANY_QUICK = 10, 100_000, 1_000
LEDGERS_BEFORE = MANY + 1  # ids from here on are free
MESSAGES, BYTES, SPAN_US = 1_000, 64 << 20, 60_000_000  # of a segment
RATIO_MAX = 1.25  # of a rotation, with many segments to one with few


def name_of(count: int) -> str:
    return f"history-{count}"


async def write_history(meta: MetaStore, layout: Layout, count: int) -> None:
    """The log was just created, or has one sealed segment. Its list gets `count` sealed segments;
    that one is the last of them."""
    name = name_of(count)
    path = layout.log(name)
    node = await meta.get(path)
    log = LogMeta.from_bytes(node.value, where=path).claimed(WriterMark("gone", "gone", 0))
    real = log.segments
    log = replace(log, segments=())
    began_us = int(time.time() * 1e6) - count * SPAN_US
    for number in range(1, count + 1):
        seq, at_us = MESSAGES * (number - 1), began_us + SPAN_US * (number - 1)
        end_us = at_us + SPAN_US - 1
        sealed = Sealed(MESSAGES + 1, BYTES, seq, seq + MESSAGES, at_us, end_us)
        ledger_id = real[0].ledger_id if real and number == count else number
        segment = Segment(number, ledger_id, log.epoch, sealed)
        log = replace(log, segments=(*log.segments, segment))
        while (cut := log.next_cut()) is not None:
            await meta.create(layout.page(name, cut.ref.number, cut.ref.level), cut.to_bytes())
            log = log.without(cut)
    last = log.segments[-1]
    assert last.sealed is not None
    sealed, ledger_id = last.sealed, last.ledger_id
    end = End(count, ledger_id, sealed.last_entry, sealed.next_seq, sealed.last_time_us)
    log = replace(log, end=end, next_number=count + 1, ledger_floor=ledger_id).handed_over(None)
    await meta.put(path, log.to_bytes(), node.version)


def opened_s(client: dlog.Client, name: str) -> float:
    began = time.perf_counter()
    log = client.open_writer(name)
    taken = time.perf_counter() - began
    log.close()
    return taken


def rotated_s(log: Any) -> float:
    """The next segment: its first message, and all that listing it takes."""
    began = time.perf_counter()
    log.append(b"x")
    log.rotate()
    return time.perf_counter() - began


def counts_of(setting: Setting) -> tuple[int, int]:
    return FEW, setting.pick(MANY, MANY_QUICK)


def findings(
    counts: tuple[int, int],
    opened: dict[str, list[float]],
    rotated: dict[str, list[float]],
    limit_s: float,
) -> list[Finding]:
    few, many = map(name_of, counts)
    open_s, ratio = median(opened[many]), median(rotated[many]) / median(rotated[few])
    best_s, worst_s = min(opened[many]), max(opened[many])
    return [
        Finding(
            "history",
            f"opening a log with {counts[1]:,} sealed segments, p50",
            f"{open_s * 1e3:.1f} ms ({best_s * 1e3:.0f} to {worst_s * 1e3:.0f} ms)",
            f"≤ {limit_s * 1e3:.0f} ms",
            open_s <= limit_s,
            beside=f"with {FEW}: {median(opened[few]) * 1e3:.1f} ms",
            values={"p50_ms": open_s * 1e3},
            rounds={f"{name} s": taken for name, taken in opened.items()},
        ),
        Finding(
            "history",
            "a message and a rotation behind them, p50",
            f"{median(rotated[many]) * 1e3:.1f} ms = {ratio:.2f} x",
            f"≤ {RATIO_MAX} x of that with {FEW}",
            ratio <= RATIO_MAX,
            beside=f"with {FEW}: {median(rotated[few]) * 1e3:.1f} ms",
            values={"ratio": ratio},
            rounds={f"{name} s": taken for name, taken in rotated.items()},
        ),
    ]
