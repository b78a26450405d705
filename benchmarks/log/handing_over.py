"""A planned hand-over from one process to another: `hand_over`.

64 tasks append 1 KB each, over and over, in one process; then no append begins any more, and
`hand_over` is called at once. The statistic is the time from that call to the return of the first
append (1 KB) in the other process, whose client is connected and took over once before; p50 over
the hand-overs, each of another log. Beside it the medians of the way there: until `hand_over`
returned, until that was noticed ("detect"), and the steps that `takeover_times` tells. Every
message that was acknowledged is looked for in the log.

- *told*: the other one calls `open_writer` when it hears that `hand_over` returned; the way of that
  word, two pipes, counts.
- *waiting*: it called `open_writer(takeover="wait")` half a second before.
- *standby*: it stands by, reading along, and called `take_over("wait")` half a second before.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from benchmarks.bookkeeper.sides import RUN_TIMEOUT_S, ms_text
from benchmarks.bookkeeper.stage import Stages
from benchmarks.common import Finding, interleaved, median
from benchmarks.log.sides import ask, fresh_name, ours
from benchmarks.log.taking_over import LOAD_S, STEPS, TASKS, Told, medians_of, steps_of, steps_text
from dlog.testing.cluster.conversation import Program

BOUND_S = 0.100
WAYS = ("told", "waiting", "standby")


def hand_over(stages: Stages) -> list[Finding]:
    setting = stages.setting
    with stages.stage() as stage:
        two, books = (ours(stage), ours(stage)), stage.cluster.directory
        cases = {way: partial(_one, *two, books, way) for way in WAYS}
        interleaved(setting.pick(1, 0), cases)
        told = interleaved(setting.pick(7 * setting.rounds, 1), cases)
    return [_finding(way, told[way]) for way in WAYS]


def _one(leaving: Program, coming: Program, books: Path, way: str) -> Told:
    log = fresh_name()
    book = str(books / f"{log}.book")
    ask(leaving, "load", log=log, tasks=TASKS, book=book)
    if way == "standby":
        ask(coming, "stand_by", log=log)
    time.sleep(LOAD_S / 2)
    waiting = None
    if way != "told":
        waiting = coming.ask("succeed", log=log, takeover="wait")
    time.sleep(LOAD_S / 2)
    left = ask(leaving, "load_hand_over", log=log)
    if waiting is None:
        came = ask(coming, "succeed", log=log)
    else:
        came = waiting.result(RUN_TIMEOUT_S)
    ask(leaving, "load_leave", log=log)
    return came | left | ask(coming, "look_for", log=log, book=book)


def _finding(way: str, told: list[Told]) -> Finding:
    taken_s = [each["acked_s"] - each["left_s"] for each in told]
    closing_s = [each["handed_s"] - each["left_s"] for each in told]
    failures = sum(len(each["failures"]) for each in told)
    lost = sum(each["lost"] for each in told)
    rest = [step for step in STEPS if step != "detect"]
    p50_s, steps_ms = median(taken_s), steps_of(told)
    steps_ms["close"] = [each * 1e3 for each in closing_s]
    # Of one that waited, all the time before counts as detection: here it is what is left between
    # the return of `hand_over` and the other steps.
    steps_ms["detect"] = [
        (each["opened_s"] - each["handed_s"]) * 1e3 - sum(each["steps_ms"][f"{s}_ms"] for s in rest)
        for each in told
    ]
    return Finding(
        "hand_over",
        f"planned, the successor {way}",
        f"p50 {ms_text(p50_s)} (worst {ms_text(max(taken_s))}) of {len(told)}, {lost} lost, "
        f"{failures} failed",
        f"p50 ≤ {BOUND_S * 1e3:.0f} ms, none lost",
        p50_s <= BOUND_S and lost == 0 and failures == 0,
        beside=f"hand_over returned after {ms_text(median(closing_s))}; {steps_text(steps_ms)}",
        values={"p50_ms": p50_s * 1e3, "lost": lost, "failures": failures} | medians_of(steps_ms),
        rounds={"hand-over s": taken_s} | {f"{step} ms": each for step, each in steps_ms.items()},
    )
