"""The three that are compared, asked the same in turn: the Java client on each of its wires, and
ours. Of the two wires the better one counts; which one that is, the median over the rounds says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.bookkeeper.stage import WIRES, Stage
from benchmarks.common import interleaved, median

OURS = "dlog"
RUN_TIMEOUT_S = 300.0

Answers = dict[str, list[dict[str, Any]]]


def ask_all(stage: Stage, what: str, rounds: int, *, warm: int, **details: Any) -> Answers:
    """Each side once per round; before the first one it is warmed up with runs of its own, since a
    JVM compiles while it goes."""
    for _ in range(warm):
        for side in (*WIRES, OURS):
            ask(stage, side, what, **details)
    return interleaved(
        rounds, {side: partial(ask, stage, side, what, **details) for side in (*WIRES, OURS)}
    )


def ask(stage: Stage, side: str, what: str, **details: Any) -> dict[str, Any]:
    if side == OURS:
        program = stage.ours
    else:
        program, details = stage.peer, {"client": side, **details}
    return dict(program.tell(what, timeout_s=RUN_TIMEOUT_S, **details))


def column(answers: Answers, of: Callable[[dict[str, Any]], float]) -> dict[str, list[float]]:
    """One figure of every run."""
    return {side: [of(each) for each in runs] for side, runs in answers.items()}


def best_wire(figures: dict[str, list[float]], *, high: bool) -> str:
    choose = max if high else min
    return choose(WIRES, key=lambda wire: median(figures[wire]))


def beside(figures: dict[str, list[float]], tell: Callable[[float], str]) -> str:
    return ", ".join(f"Java {wire} {tell(median(figures[wire]))}" for wire in WIRES)


def per_entry_us(answers: Answers, count: int) -> dict[str, list[float]]:
    return column(answers, lambda run: run["cpu_s"] / count * 1e6)


def rate_text(entries_s: float) -> str:
    return f"{entries_s / 1e3:.1f} k/s"


def ms_text(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def us_text(microseconds: float) -> str:
    return f"{microseconds:.1f} µs"


def named(what: str, figures: dict[str, list[float]]) -> dict[str, list[float]]:
    """For the JSON file."""
    return {f"{side} {what}": list(runs) for side, runs in figures.items()}
