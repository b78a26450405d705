"""Recovering the ledger of a writer that died: `recover`.

Ledgers are made in pairs by the codecs alone, the same bytes for both clients: 10,000 entries of
1 KB on all three bookies, of which the last 1,000, or the last one, carry the LAC of the entry
before them: what a writer leaves that dies with so many unacknowledged, or idle. Then each client
recovers one of the pair: the time from the call to its return, ledger closed.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.bookkeeper.sides import OURS, ask, ms_text
from benchmarks.bookkeeper.stage import WIRES, Stage, Stages
from benchmarks.bookkeeper.tails import make_tail
from benchmarks.common import Finding, median, median_ratio

ENTRIES = 10_000
# What -> unacknowledged entries, and at most so many times Java's time.
TAILS = {"1,000 outstanding": (1_000, 0.25), "idle tail": (1, 1.1)}
LEDGERS_PER_ROUND = 5


def recover(stages: Stages) -> list[Finding]:
    setting = stages.setting
    found = []
    with stages.stage() as stage:
        for what, (outstanding, ratio_max) in TAILS.items():
            outstanding = setting.pick(outstanding, min(outstanding, 50))
            for _ in range(setting.pick(4, 0)):
                _one_round(stage, outstanding, setting.pick(ENTRIES, 200), 1)
            rounds = [
                _one_round(
                    stage,
                    outstanding,
                    setting.pick(ENTRIES, 200),
                    setting.pick(LEDGERS_PER_ROUND, 1),
                )
                for _ in range(setting.rounds)
            ]
            found.append(_finding(what, ratio_max, rounds))
    return found


def _one_round(
    stage: Stage, outstanding: int, entries: int, ledgers: int
) -> dict[str, list[dict[str, Any]]]:
    answers: dict[str, list[dict[str, Any]]] = {}
    for _ in range(ledgers):
        for side in (*WIRES, OURS):
            made = stage.peer.tell("create", client="v2")
            ledger_id = made["ledger"]
            make_tail(
                stage.cluster, ledger_id, made["bookies"], entries=entries, outstanding=outstanding
            )
            told = ask(stage, side, "recover", ledger=ledger_id)
            assert told["last"] == entries - 1, f"{side} closed at {told['last']}"
            answers.setdefault(side, []).append(told)
    return answers


def _finding(what: str, ratio_max: float, rounds: list[dict[str, list[dict[str, Any]]]]) -> Finding:
    taken = {
        side: [statistics.median(run["seconds"] for run in each[side]) for each in rounds]
        for side in (*WIRES, OURS)
    }
    wire = min(WIRES, key=lambda name: median(taken[name]))
    ratio = median_ratio(taken[OURS], taken[wire])
    return Finding(
        "recover",
        what,
        f"{ms_text(median(taken[OURS]))}, {ratio:.2f} x Java",
        f"≤ {ratio_max} x Java",
        ratio <= ratio_max,
        beside=", ".join(f"Java {each} {ms_text(median(taken[each]))}" for each in WIRES),
        values={"ratio": ratio, "ms": median(taken[OURS]) * 1e3},
        rounds={f"{side} s": runs for side, runs in taken.items()},
    )
