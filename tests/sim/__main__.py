"""`python -m tests.sim SEED` tells one history as a transcript; `python -m tests.sim FIRST COUNT`
runs many and names those that fail."""

from __future__ import annotations

import sys
import time
from collections import Counter

from tests.sim.history import run_history
from tests.sim.world import Violation


def main(arguments: list[str]) -> int:
    numbers = [int(argument) for argument in arguments]
    if len(numbers) == 1:
        try:
            world = run_history(numbers[0], noted=True)
        except Violation as violation:
            print(violation)
            return 1
        print("\n".join(world.notes or ()))
        return 0
    first, count = numbers
    failed = 0
    marks: Counter[str] = Counter()
    points: Counter[str] = Counter()
    began = time.perf_counter()
    for seed in range(first, first + count):
        try:
            world = run_history(seed)
            marks.update(world.marks)
            points.update(world.points)
        except Violation as violation:
            failed += 1
            print(str(violation).strip().splitlines()[0][:300])
    took_s = time.perf_counter() - began
    print(f"{count} histories in {took_s:.1f} s, {failed} failed")
    print(dict(marks))
    print(dict(points))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
