"""What routing a key costs, and how evenly a ring spreads keys. The latter is no matter of the
machine: the same sets give the same figures everywhere."""

from __future__ import annotations

import random
import statistics
import time

from benchmarks.common import Finding, Setting, median
from dlog.streams.routing.ring import Ring
from dlog.streams.routing.router import Router

SETS = 100
KEY_US_MAX = 1.5
MOVED_OFF_MAX = 0.10
DEVIATION_MAX = 0.10
PEAK_MAX = 1.5


def server_sets() -> list[list[str]]:
    """Of 2 to 50 servers with names as people give them."""
    draw = random.Random("server sets")
    sets = []
    for number in range(SETS):
        count = draw.randint(2, 50)
        head = draw.choice(("10.0.{0}.{1}:3181", "bookie-{1}.zone{0}.example:3181", "s{0}/{1}"))
        sets.append([head.format(number, index) for index in range(count)])
    return sets


def moved_fractions() -> list[tuple[int, float]]:
    """For each set of n servers: n, and the part of the hash space that moves as one is added."""
    found = []
    for servers in server_sets():
        before = Ring.of(dict.fromkeys(servers, 1))
        after = Ring.of(dict.fromkeys([*servers, "one-more"], 1))
        edges = sorted({hash for ring in (before, after) for hash, _ in ring.points()})
        starts = [edges[-1] - (1 << 32), *edges]
        moved = sum(
            edge - start
            for start, edge in zip(starts, edges, strict=False)
            if before.owner_of(edge) != after.owner_of(edge)
        )
        found.append((len(servers), moved / (1 << 32)))
    return found


def load_spreads() -> list[tuple[float, float]]:
    """For each set: the standard deviation of load and the greatest one, both to the mean."""
    found = []
    for servers in server_sets():
        loads = list(Ring.of(dict.fromkeys(servers, 1)).shares().values())
        mean = statistics.mean(loads)
        found.append((statistics.pstdev(loads) / mean, max(loads) / mean))
    return found


def route_key(setting: Setting) -> list[Finding]:
    """Of processor time; the hash is part of it."""
    router = Router.of([f"bookie-{number}.example:3181" for number in range(100)])
    keys = [f"user-{number}".encode() for number in range(setting.pick(100_000, 1_000))]
    owner_of = router.owner_of
    rounds = []
    for _ in range(setting.rounds):
        begun_s = time.process_time()
        for key in keys:
            owner_of(key)
        rounds.append((time.process_time() - begun_s) / len(keys) * 1e6)
    us = median(rounds)
    return [
        Finding(
            "route_key",
            "to route a key among 100 servers",
            f"{us:.2f} us",
            f"<= {KEY_US_MAX} us",
            us <= KEY_US_MAX,
            rounds={"us": rounds},
        )
    ]


def route_moves(setting: Setting) -> list[Finding]:
    ratios = [moved * (count + 1) for count, moved in moved_fractions()]
    mean = statistics.mean(ratios)
    return [
        Finding(
            "route_moves",
            f"keys moved to a server that comes, to 1/(n+1), mean of {SETS} sets",
            f"{mean:.3f} ({min(ratios):.2f} to {max(ratios):.2f})",
            f"{1 - MOVED_OFF_MAX:.1f} to {1 + MOVED_OFF_MAX:.1f}",
            abs(mean - 1) <= MOVED_OFF_MAX,
            rounds={"ratio": ratios},
        )
    ]


def route_spread(setting: Setting) -> list[Finding]:
    deviations, peaks = map(list, zip(*load_spreads(), strict=True))
    mean, peak = statistics.mean(deviations), max(peaks)
    return [
        Finding(
            "route_spread",
            f"standard deviation of load to its mean, mean of {SETS} sets",
            f"{mean:.1%}",
            f"<= {DEVIATION_MAX:.0%}",
            mean <= DEVIATION_MAX,
            rounds={"deviation": deviations},
        ),
        Finding(
            "route_spread",
            f"greatest load to the mean, worst of {SETS} sets",
            f"{peak:.2f}",
            f"<= {PEAK_MAX}",
            peak <= PEAK_MAX,
            rounds={"peak": peaks},
        ),
    ]
