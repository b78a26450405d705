"""Reading a closed ledger of 1 KB entries from its first to its last: `read_closed`.

One ledger for all, written once; each side opens it and reads it in ranges, four of them in flight:
entries by the time from the first question to the last answer, and processor time of the client's
process per entry. Java asks for batches, of 100 entries and of 1,000, and single entries in ranges
of 100 on its other wire; the best of them counts. We ask for what a reader of logs asks for at a
time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.bookkeeper.sides import OURS, RUN_TIMEOUT_S, ask, rate_text, us_text
from benchmarks.bookkeeper.stage import Stage, Stages
from benchmarks.common import KIB, MIB, Finding, interleaved, median, median_ratio
from dlog.limits import READ_RUN_BYTES_DEFAULT

IN_FLIGHT = 4
RATIO_MIN, CPU_US_MAX = 2.0, 4.0
FRAME_BYTES_MAX = 5 * MIB
# Name -> how Java is asked.
JAVA: dict[str, dict[str, Any]] = {
    "Java batches of 100": {"client": "v2", "batches": True, "step": 100},
    "Java batches of 1,000": {"client": "v2", "batches": True, "step": 1_000},
    "Java ranges of 100, v3": {"client": "v3", "batches": False, "step": 100},
}


def read_closed(stages: Stages) -> list[Finding]:
    setting = stages.setting
    count = setting.pick(200_000, 2_000)
    with stages.stage() as stage:
        written = ask(stage, "v2", "pipelined", count=count, size=KIB, outstanding=1_000)
        cases: dict[str, Callable[[], dict[str, Any]]]
        cases = {name: partial(_java, stage, name, written["ledger"], count) for name in JAVA}
        cases[OURS] = partial(_ours, stage, written["ledger"], count)
        interleaved(setting.pick(2, 0), cases)
        answers = interleaved(setting.rounds, cases)
    for name, runs in answers.items():
        assert all(run["entries"] == count or name in JAVA for run in runs), name
    rates = {
        name: [run["entries"] / run["seconds"] for run in runs] for name, runs in answers.items()
    }
    cpu_us = {
        name: [run["cpu_s"] / run["entries"] * 1e6 for run in runs]
        for name, runs in answers.items()
    }
    best = max(JAVA, key=lambda name: median(rates[name]))
    ratio, ours_us = median_ratio(rates[OURS], rates[best]), median(cpu_us[OURS])
    return [
        Finding(
            "read_closed",
            "closed ledger, 1 KB, four in flight",
            f"{rate_text(median(rates[OURS]))}, {us_text(ours_us)} CPU, {ratio:.2f} x {best}",
            f"≥ {RATIO_MIN:.0f} x Java's best, ≤ {CPU_US_MAX:.0f} µs",
            ratio >= RATIO_MIN and ours_us <= CPU_US_MAX,
            beside=", ".join(
                f"{name} {rate_text(median(rates[name]))} {us_text(median(cpu_us[name]))}"
                for name in JAVA
            ),
            values={"ratio": ratio, "entries_s": median(rates[OURS]), "cpu_us": ours_us},
            rounds={f"{name} entries/s": runs for name, runs in rates.items()}
            | {f"{name} CPU µs": runs for name, runs in cpu_us.items()},
        )
    ]


def _java(stage: Stage, name: str, ledger_id: int, count: int) -> dict[str, Any]:
    """Its batches may come back short and it does not ask on by itself: what came is counted."""
    told = stage.peer.tell(
        "read",
        timeout_s=RUN_TIMEOUT_S,
        ledger=ledger_id,
        count=count,
        in_flight=IN_FLIGHT,
        bytes_max=FRAME_BYTES_MAX,
        **JAVA[name],
    )
    return dict(told)


def _ours(stage: Stage, ledger_id: int, count: int) -> dict[str, Any]:
    return ask(
        stage,
        OURS,
        "read",
        ledger=ledger_id,
        count=count,
        step=READ_RUN_BYTES_DEFAULT // KIB,
        in_flight=IN_FLIGHT,
        bytes_max=READ_RUN_BYTES_DEFAULT,
    )
