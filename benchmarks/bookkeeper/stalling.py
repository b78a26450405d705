"""What writers feel when a bookie of theirs goes: `stall`.

Adds of 1 KB go on with 1,000 outstanding; a bookie of the ensemble is killed (-9), or stopped
(SIGSTOP), for five seconds; the longest silence between two confirmations from then on is the
stall. The bookie comes back, and the next one goes, each time on a ledger of its own. p99 over all
of them, which for so few is the longest; no entry may be missing or other than it was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.bookkeeper.sides import RUN_TIMEOUT_S, ms_text
from benchmarks.bookkeeper.stage import Stage, Stages
from benchmarks.common import KIB, Finding, median, quantile
from dlog.testing.cluster import Bookie

STALLS_S = {"killed": 0.5, "stopped": 1.0}
BEFORE_S, AFTER_S = 1.5, 5.0
LOADS = 20


def stall(stages: Stages) -> list[Finding]:
    setting = stages.setting
    after_s = 1.0 if setting.quick else AFTER_S
    with stages.stage() as stage:
        return [
            _finding(
                what,
                bound_s,
                [_one(stage, what, after_s) for _ in range(setting.pick(LOADS, 1))],
            )
            for what, bound_s in STALLS_S.items()
        ]


def _one(stage: Stage, what: str, after_s: float) -> dict[str, Any]:
    ours = stage.ours
    load = ours.tell("load", count=1_000, size=KIB, outstanding=1_000)
    ledger_id = load["ledger"]
    time.sleep(BEFORE_S)
    bookie = stage.cluster.bookie(_member(stage, ledger_id))
    broken_s = time.monotonic()
    back = _break(bookie, what)
    try:
        time.sleep(after_s)
        state = ours.tell("load_state", ledger=ledger_id)
        assert state["failure"] is None, state["failure"]
    finally:
        back()
    told = dict(ours.tell("end_load", timeout_s=RUN_TIMEOUT_S, ledger=ledger_id))
    told["stall_s"] = max(
        (gap_s for ended_s, gap_s in told["gaps"] if ended_s > broken_s), default=0.0
    )
    bookie.wait_until_serving()
    return told


def _break(bookie: Bookie, what: str) -> Callable[[], None]:
    if what == "killed":
        bookie.kill()
        return bookie.start
    bookie.freeze()
    return bookie.thaw


def _member(stage: Stage, ledger_id: int) -> str:
    return str(stage.ours.tell("bookies", ledger=ledger_id)[0])


def _finding(what: str, bound_s: float, told: list[dict[str, Any]]) -> Finding:
    stalls = [each["stall_s"] for each in told]
    lost = sum(each["lost"] + each["sent"] - each["entries"] for each in told)
    p99_s = quantile(stalls, 0.99)
    return Finding(
        "stall",
        f"bookie {what} under load, longest silence",
        f"p99 {ms_text(p99_s)} (p50 {ms_text(median(stalls))}) of {len(told)}, {lost} lost",
        f"p99 ≤ {bound_s * 1e3:.0f} ms, none lost",
        p99_s <= bound_s and lost == 0,
        beside=f"{sum(each['entries'] for each in told) / 1e6:.2f} M entries read back",
        values={"p99_ms": p99_s * 1e3, "p50_ms": median(stalls) * 1e3, "lost": lost},
        rounds={"stall s": stalls},
    )
