"""A window far beyond what a bookie takes: `storm`.

The bookies have small write caches and refuse adds from a few hundred waiting ones on ("too many
requests", 106: in the middle of a burst, while later ones are taken). A burst past every client
shows that they do. Then our client adds with 50,000 outstanding until all are confirmed, and every
entry is read back and compared. The statistic is what is missing or other; and how much the process
grew, beside the bytes of the window.
"""

from __future__ import annotations

from benchmarks.bookkeeper.sides import OURS, RUN_TIMEOUT_S, ask, rate_text
from benchmarks.bookkeeper.stage import Stage, Stages
from benchmarks.bookkeeper.tails import frames_of
from benchmarks.common import KIB, MIB, Finding, median
from dlog.testing.raw_ledgers import connected
from dlog.wire.bookie_codes import Answer

WAITING_MAX = 300  # adds that a bookie lets wait
SETTINGS = {
    "maxPendingAddRequestsPerThread": str(WAITING_MAX),
    "dbStorage_writeCacheMaxSizeMb": "4",
    "dbStorage_maxThrottleTimeMs": "100",
}
GROWTH_FACTOR, GROWTH_SLACK_BYTES = 4, 64 * MIB
BURST = 5_000


def storm(stages: Stages) -> list[Finding]:
    setting = stages.setting
    count, outstanding = setting.pick(300_000, 3_000), setting.pick(50_000, 2_000)
    with stages.stage(settings=SETTINGS) as stage:
        refused = _refused_in_a_burst(stage)
        ask(stage, OURS, "pipelined", count=2_000, size=KIB, outstanding=100)
        before_bytes = ask(stage, OURS, "memory")["bytes"]
        runs = [
            dict(
                stage.ours.tell(
                    "storm",
                    timeout_s=RUN_TIMEOUT_S,
                    count=count,
                    size=KIB,
                    outstanding=outstanding,
                )
            )
            for _ in range(setting.rounds)
        ]
    lost = sum(run["lost"] + run["sent"] - run["entries"] for run in runs)
    window_bytes = outstanding * KIB
    growth = max(run["memory_bytes"] for run in runs) - before_bytes
    rates = [run["entries"] / run["seconds"] for run in runs]
    bound = GROWTH_FACTOR * window_bytes + GROWTH_SLACK_BYTES
    return [
        Finding(
            "storm",
            f"{outstanding:,} outstanding, bookies that take {WAITING_MAX}",
            f"{lost} lost of {sum(run['sent'] for run in runs):,}, "
            f"grew by {growth / MIB:.0f} MiB, {rate_text(median(rates))}",
            f"none lost, ≤ {bound / MIB:.0f} MiB",
            lost == 0 and growth <= bound and refused > 0,
            beside=f"a burst of {BURST:,} past every client: {refused:,} refused",
            values={"lost": lost, "growth_bytes": growth, "refused_in_burst": refused},
            rounds={"entries/s": rates},
        )
    ]


def _refused_in_a_burst(stage: Stage) -> int:
    """Adds to one bookie, all at once."""
    made = stage.peer.tell("create", client="v2")
    frames = frames_of(made["ledger"], entries=BURST, outstanding=BURST, size=KIB)
    with connected(stage.cluster.bookie(made["bookies"][0])) as bookie:
        replies = bookie.send_adds(b"".join(frames), len(frames))
    return sum(reply.answer is Answer.BUSY for reply in replies)
