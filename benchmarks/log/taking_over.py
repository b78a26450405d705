"""Becoming the writer of a log whose writer was killed: `takeover`.

The writer is a process of its own: 64 tasks append 1 KB each, over and over, and what was
acknowledged it writes down. It is killed (-9) after a second of that; then another process, whose
client is connected and took over once before, becomes the writer. The statistic is the time from
the call of `open_writer`, or of a standby's `take_over`, to the return of the first append (1 KB);
p50 over the takeovers, each of another log. Beside it the medians of the steps that
`takeover_times` tells, and of that append.

- *under load*: killed in the midst of it.
- *idle*: the load has rested for half a second, the writer is open.
- *standby*: under load, and the other process stands by, reading along.
- *frozen bookie*: under load, and one bookie of the ledger's ensemble is stopped (SIGSTOP) right
  behind the kill.

Afterwards every message that was acknowledged is looked for in the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bookkeeper.sides import ms_text
from benchmarks.bookkeeper.stage import Stage, Stages
from benchmarks.common import Finding, interleaved, median
from benchmarks.log.sides import ask, fresh_name, ours
from dlog.testing.cluster.conversation import Program

TASKS = 64
LOAD_S, REST_S = 1.0, 0.5
# Case -> p50 at most.
BOUNDS_S = {"under load": 0.150, "idle": 0.060, "standby": 0.060, "frozen bookie": 2.0}
STEPS = ("detect", "claim", "fence", "recover", "commit", "seam")  # these follow each other

Told = dict[str, Any]


def takeover(stages: Stages) -> list[Finding]:
    setting = stages.setting
    with stages.stage() as stage:
        scene = Scene(stage, ours(stage))
        cases: dict[str, Callable[[], Told]] = {
            "under load": scene.killed,
            "idle": partial(scene.killed, rests=True),
            "standby": partial(scene.killed, stands_by=True),
        }
        frozen = {"frozen bookie": partial(scene.killed, freezes=True)}
        interleaved(setting.pick(1, 0), cases)
        told = interleaved(setting.pick(7 * setting.rounds, 1), cases)
        told |= interleaved(setting.pick(2 * setting.rounds, 1), frozen)
    return [_finding(case, told[case], bound_s) for case, bound_s in BOUNDS_S.items()]


@dataclass
class Scene:
    stage: Stage
    successor: Program
    books: Path = field(init=False)

    def __post_init__(self) -> None:
        self.books = self.stage.cluster.directory

    def killed(
        self, *, rests: bool = False, stands_by: bool = False, freezes: bool = False
    ) -> Told:
        log, writer = fresh_name(), ours(self.stage)
        book = str(self.books / f"{log}.book")
        ask(writer, "load", log=log, tasks=TASKS, book=book)
        if stands_by:
            ask(self.successor, "stand_by", log=log)
        time.sleep(LOAD_S)
        if rests:
            ask(writer, "load_rest", log=log)
            time.sleep(REST_S)
        held = self._held(log) if freezes else None
        writer.kill()
        if held is not None:
            held.freeze()
        try:
            told = ask(self.successor, "succeed", log=log)
        finally:
            if held is not None:
                held.thaw()
                held.wait_until_serving()
        return told | ask(self.successor, "look_for", log=log, book=book)

    def _held(self, log: str) -> Any:
        """A bookie that holds the log's newest ledger."""
        ledger_id = self.successor.tell("newest_ledger", log=log)
        bookie_id = self.stage.ours.tell("bookies", ledger=ledger_id)[0]
        return self.stage.cluster.bookie(bookie_id)


def _finding(case: str, told: list[Told], bound_s: float) -> Finding:
    taken_s = [each["acked_s"] - each["began_s"] for each in told]
    lost = sum(each["lost"] for each in told)
    p50_s = median(taken_s)
    steps_ms = steps_of(told)
    return Finding(
        "takeover",
        f"writer killed, {case}",
        f"p50 {ms_text(p50_s)} (worst {ms_text(max(taken_s))}) of {len(told)}, {lost} lost",
        f"p50 ≤ {bound_s * 1e3:,.0f} ms, none lost",
        p50_s <= bound_s and lost == 0,
        beside=f"{steps_text(steps_ms)}; {sum(each['acked'] for each in told):,} acknowledged "
        "and read back",
        values={"p50_ms": p50_s * 1e3, "lost": lost} | medians_of(steps_ms),
        rounds={"takeover s": taken_s} | {f"{step} ms": each for step, each in steps_ms.items()},
    )


def steps_of(told: list[Told]) -> dict[str, list[float]]:
    """Every step of every takeover in milliseconds, the first append behind it, and what passed
    beside."""
    steps = {step: [each["steps_ms"][f"{step}_ms"] for each in told] for step in STEPS}
    steps["append"] = [(each["acked_s"] - each["opened_s"]) * 1e3 for each in told]
    steps["birth"] = [each["steps_ms"]["birth_ms"] for each in told]
    return steps


def medians_of(steps_ms: dict[str, list[float]]) -> dict[str, float]:
    return {f"{step} p50 ms": median(each) for step, each in steps_ms.items()}


def steps_text(steps_ms: dict[str, list[float]]) -> str:
    parts = [f"{step} {median(steps_ms[step]):.1f}" for step in (*STEPS, "append")]
    return f"{', '.join(parts)} ms; beside: birth {median(steps_ms['birth']):.1f}"
