"""What a run of mutants came to, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.mutants.trials import LIVES, NOT_COVERED, NOTICED, Verdict


def row(verdict: Verdict) -> str:
    mutant = verdict.mutant
    outcome = verdict.outcome
    if outcome == LIVES:
        outcome += f" ({verdict.ran} of {verdict.covering} tests{_late(verdict)})"
    told = f"{mutant.number:4} {mutant.where:50} {mutant.edit.operator:12} "
    return f"{told}{verdict.seconds:6.1f} s  {outcome}{' by ' if verdict.by else ''}{verdict.by}"


def survivor(verdict: Verdict) -> str:
    mutant = verdict.mutant
    head = f"mutant {mutant.number}, {mutant.edit.operator}, {verdict.outcome}; "
    head += f"covered by {verdict.covering} tests, {verdict.ran} ran{_late(verdict)}"
    return f"{head}\n{mutant.diff}\n"


def rate(verdicts: Sequence[Verdict]) -> float:
    noticed = sum(1 for verdict in verdicts if verdict.outcome == NOTICED)
    return noticed / len(verdicts) if verdicts else 1.0


def summary(verdicts: Sequence[Verdict], unsteady: Sequence[str]) -> str:
    alive = [verdict for verdict in verdicts if verdict.outcome != NOTICED]
    parts = [survivor(verdict) for verdict in alive]
    if unsteady:
        parts.append("these fail without a mutant, and noticed nothing:")
        parts += [f"    {name}" for name in unsteady]
    parts.append(f"{'room':10} {'drawn':>5} {'noticed':>8}")
    for room in sorted({verdict.mutant.room for verdict in verdicts}):
        of_room = [verdict for verdict in verdicts if verdict.mutant.room == room]
        parts.append(f"{room:10} {len(of_room):5} {rate(of_room):8.0%}")
    covered = [verdict for verdict in verdicts if verdict.outcome != NOT_COVERED]
    parts.append(f"{_noticed(covered)} that a test covers, {len(verdicts) - len(covered)} others")
    parts.append(_noticed(verdicts))
    return "\n".join(parts)


def _noticed(verdicts: Sequence[Verdict]) -> str:
    noticed = sum(1 for verdict in verdicts if verdict.outcome == NOTICED)
    return f"{noticed} of {len(verdicts)} mutants noticed: {rate(verdicts):.1%}"


def as_json(seed: str, verdicts: Sequence[Verdict], unsteady: Sequence[str]) -> str:
    mutants = [
        {
            "number": verdict.mutant.number,
            "path": verdict.mutant.edit.path,
            "line": verdict.mutant.edit.line,
            "operator": verdict.mutant.edit.operator,
            "outcome": verdict.outcome,
            "by": verdict.by,
            "seconds": verdict.seconds,
            "covering": verdict.covering,
            "ran": verdict.ran,
            "time_was_up": verdict.time_was_up,
            "diff": verdict.mutant.diff,
        }
        for verdict in verdicts
    ]
    whole = {"seed": seed, "rate": rate(verdicts), "unsteady": unsteady, "mutants": mutants}
    return json.dumps(whole, indent=1)


def _late(verdict: Verdict) -> str:
    return ", time was up" if verdict.time_was_up else ""
