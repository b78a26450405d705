"""python -m benchmarks.groups plan|converge [--quick] [--json FILE]

- `plan`: every (shards, workers) of 0..64 x 1..64: every start, up to renaming, where both are at
  most 12, and 100 random starts of each larger pair: even to one, by the fewest moves, and no move
  after. With weights, and over domains, 10 random starts of each pair: within the bounds that
  `dlog.groups.plan` states, and no move after. And how long a plan of 1,000 shards and 50 workers
  takes.
- `converge`: 1,000 shards and 50 workers, simulated: in how many rounds the group is even, and how
  many metadata operations a worker makes when it is.

Exit code 1 if a figure is not reached.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dlog.groups.plan import plan
from dlog.groups.weights import slack_of, weights_of
from dlog.testing.group_plans import (
    check_plan_by_count,
    check_plan_by_weight,
    check_plan_over_domains,
    random_start,
    starts,
    view_of,
)
from dlog.testing.sim.groups_crowd import Crowd, Evened

LARGEST, ALL_UP_TO, RANDOM_STARTS = 64, 12, 100
PLAN_MS_MAX = 20.0
SHARDS, WORKERS, ROUNDS_MAX, ASKED_MAX = 1_000, 50, 3, 2.0


def try_plans(quick: bool) -> dict[str, Any]:
    largest, all_up_to = (16, 6) if quick else (LARGEST, ALL_UP_TO)
    each_pair = 5 if quick else RANDOM_STARTS
    began_s, pairs, exhaustive, drawn, others, moves = time.perf_counter(), 0, 0, 0, 0, 0
    for workers in range(1, largest + 1):
        for shards in range(largest + 1):
            pairs += 1
            rng = random.Random(workers * 1000 + shards)
            for _ in range(each_pair // 10 or 1):
                try_weights(shards, workers, rng)
                try_domains(shards, workers, rng)
                others += 2
            if shards <= all_up_to and workers <= all_up_to:
                for counts, free in starts(shards, workers):
                    moves += len(check_plan_by_count(counts, free))
                    exhaustive += 1
                continue
            for _ in range(each_pair):
                moves += len(check_plan_by_count(*random_start(shards, workers, rng)))
                drawn += 1
    took_s = time.perf_counter() - began_s
    large = [view_of((0,) * 50, free=1000), view_of((50,) * 20 + (0,) * 30)]
    times_ms = []
    for view in large * 5:
        before_s = time.perf_counter()
        plan(view)
        times_ms.append(1000 * (time.perf_counter() - before_s))
    return {
        "pairs": pairs,
        "starts, exhaustive": exhaustive,
        "starts, random": drawn,
        "starts, with weights or domains": others,
        "moves planned": moves,
        "took_s": round(took_s, 1),
        "plan of 1,000 x 50, ms": round(statistics.median(times_ms), 2),
        "passed": statistics.median(times_ms) < PLAN_MS_MAX,
    }


def try_weights(shards: int, workers: int, rng: random.Random) -> None:
    """Lag as it is: most are light, and a few are very heavy."""
    counts, free = random_start(shards, workers, rng)
    measured = {f"{n}": int(rng.paretovariate(0.8)) for n in range(shards)}
    weights = list(weights_of(measured).values())
    slack = rng.choice((0, slack_of(weights, workers)))
    check_plan_by_weight(view_of(counts, free, weights=weights, slack=slack))


def try_domains(shards: int, workers: int, rng: random.Random) -> None:
    counts, free = random_start(shards, workers, rng)
    domains = [f"rack {rng.randrange(1 + workers // 3)}" for _ in range(workers)]
    check_plan_over_domains(view_of(counts, free, domains=domains))


def converge(quick: bool) -> dict[str, Any]:
    shards, workers = (60, 6) if quick else (SHARDS, WORKERS)
    crowd = Crowd(shards)
    told: dict[str, Any] = {}
    few = workers // 5
    events: dict[str, Callable[[], Evened]] = {
        f"{workers} begin within a second": lambda: crowd.begin(workers),
        f"{few} more join within a second": lambda: crowd.join(few),
        f"{few} leave": lambda: crowd.leave(few),
        f"{few} die at one moment": lambda: crowd.lose(few),
    }
    rounds = []
    for what, happen in events.items():
        evened = happen()
        rounds.append(evened.rounds)
        told[what] = f"{evened.rounds} rounds, {evened.moves} moves, {evened.took_ms / 1000:.1f} s"
    average, most = crowd.asked_per_second()
    told["metadata operations a second and worker"] = f"{average:.2f}, the busiest {most:.2f}"
    one_moment = Crowd(shards, seed=1)
    evened = one_moment.begin(workers, within_ms=0.0)
    told[f"{workers} begin at one moment"] = f"{evened.rounds} rounds, {evened.moves} moves"
    rounds.append(evened.rounds)
    told["passed"] = max(rounds) <= ROUNDS_MAX and most <= ASKED_MAX
    return told


ROWS: dict[str, Callable[[bool], dict[str, Any]]] = {"plan": try_plans, "converge": converge}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups")
    parser.add_argument("rows", nargs="*", choices=[[], *ROWS], help="all if none is named")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    told = {row: ROWS[row](chosen.quick) for row in chosen.rows or ROWS}
    for row, figures in told.items():
        sys.stdout.write(f"{row}\n")
        for what, figure in figures.items():
            sys.stdout.write(f"  {what:<40} {figure}\n")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0 if all(each["passed"] for each in told.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
