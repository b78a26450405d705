"""What metrics cost the append path: `metrics`.

Two writers in one directory, the one told to a Prometheus registry and the other to nobody, take
turns that are short enough that the disk and the neighbours treat both alike: 50 appends of 1 KB
that each wait for their acknowledgement (each a batch of its own, which is the dearest case), or
`append_many` of 2 MiB in messages of 100 B. The figure is the median, over the turns, of the one's
time by the other's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import dlog
from benchmarks.common import KIB, MIB, Finding, Setting, median, median_ratio, random_values

COST_MAX = 0.02
APPENDS_A_TURN = 50


def metrics(setting: Setting) -> list[Finding]:
    singles = random_values(APPENDS_A_TURN if not setting.quick else 5, KIB)
    many = random_values(setting.pick(2 * MIB, 64 * KIB) // 100, 100)

    def one_by_one(log: dlog.Writer) -> None:
        for value in singles:
            log.append(value)

    def at_once(log: dlog.Writer) -> None:
        log.append_many(many)

    turns = setting.pick(200, 2) * setting.rounds
    return [
        _compared(setting, "append 1 KB", one_by_one, turns),
        _compared(setting, "append_many 100 B", at_once, turns),
    ]


def _compared(
    setting: Setting, what: str, act: Callable[[dlog.Writer], None], turns: int
) -> Finding:
    with setting.scratch() as directory, ExitStack() as stack:
        url = f"file:{directory}"
        logs = {
            "off": stack.enter_context(dlog.open_writer("off", url=url)),
            "on": stack.enter_context(dlog.open_writer("on", url=url, metrics=_sink())),
        }
        taken: dict[str, list[float]] = {"off": [], "on": []}
        for log in logs.values():
            act(log)  # warm
        for turn in range(turns):
            for name in ("off", "on") if turn % 2 else ("on", "off"):
                began = time.perf_counter()
                act(logs[name])
                taken[name].append(time.perf_counter() - began)
    cost = median_ratio(taken["on"], taken["off"]) - 1
    return Finding(
        "metrics",
        f"{what}, metrics on by off",
        f"{cost:+.2%}",
        f"≤ {COST_MAX:.0%}",
        cost <= COST_MAX,
        beside=f"a turn {median(taken['off']) * 1e3:.2f} ms",
        values={"cost": cost},
        rounds={f"{name} s": runs for name, runs in taken.items()},
    )


def _sink() -> Any:
    from prometheus_client import CollectorRegistry

    from dlog.metrics.prometheus import PrometheusMetrics

    return PrometheusMetrics(CollectorRegistry())
