"""The weather of one history of real workers: who they are, what their programs do, and what goes
wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dlog.testing.sim.driver_swarm import FAULT_ON, draw_climate, fix_weather
from dlog.testing.sim.loop_cluster import Climate
from dlog.testing.sim.tape import Chance

TIMEOUT_MS = 400  # virtual; all other times are in proportion
DRIFT_MAX = 0.02  # of a monotonic clock; the margin takes twice that between two
HOURS_US = 3_600_000_000
_LASTS_MS = 1_500.0


@dataclass(slots=True)
class WorkersWeather:
    climate: Climate = field(default_factory=Climate)
    bookies: int = 4
    leases: str = "nodes"  # or logs
    # who
    workers: int = 2
    lives: int = 1  # of each of them, one behind the other
    joiners: int = 0  # that stay for a moment: storms of rebalancing
    same_name: bool = False
    trusts_name: bool = False
    heart: str = "thread"  # or loop
    hand_over_ms: int | None = None  # None: nobody is fenced by force
    domains: int = 0
    weigh: str = "count"  # or lag, bytes
    # what of
    shards: int = 3
    splits: int = 0
    messages: int = 30
    more: int = 12  # when all is well again
    job: bool = False
    truncations: int = 0
    # programs
    program: str = "async"  # or threads, or plain: on the loop
    checkpoints: str = "explicit"  # or each, save, late, batch
    checkpoint_messages: int = 0
    flush_ms: int = 40
    process_ms: float = 4.0
    fails: float = 0.0  # of calls, for no reason
    shutdown_fails: float = 0.0
    poison: float = 0.0  # of messages
    on_error: str = "retry"  # or dead_letter, stop
    attempts: int = 2
    blocks: float = 0.0  # of calls: the loop of the program takes no turn
    # what befalls them
    dies: float = 0.0  # per life
    freezes: float = 0.0
    cuts: float = 0.0
    cut_ms: float = 1.5 * TIMEOUT_MS
    skewed: bool = False
    drifting: bool = False
    closes: str = "patient"  # or hurried
    span_ms: float = 2_500.0  # the faults end then

    def fix(self, **options: Any) -> None:
        """As of `DriverWeather`."""
        fix_weather(self, self.climate, options)

    def options(self) -> dict[str, Any]:
        """Of each worker."""
        letters = "dead" if self.on_error == "dead_letter" else None
        return {
            "leases": self.leases,
            "weigh": self.weigh,
            "weigh_ms": TIMEOUT_MS,
            "timeout_ms": TIMEOUT_MS,
            "flush_ms": self.flush_ms,
            "hand_over_ms": self.hand_over_ms,
            "trusts_name": self.trusts_name,
            "heart": self.heart,
            "stop_at_end": self.job,
            "threads": 0 if self.program == "plain" else 4,
            "checkpoint_messages": self.checkpoint_messages if self.checkpoints == "batch" else 0,
            "on_error": self.on_error,
            "dead_letters": letters,
            "attempts": self.attempts,
            "retry_pause_ms": 10,
            "stall_after_ms": TIMEOUT_MS,
        }


def draw_workers_weather(chance: Chance) -> WorkersWeather:
    def rate(what: str, high: float) -> float:
        return chance.rate(0.01, high, on=FAULT_ON, what=what)

    def on(what: str, share: float = FAULT_ON) -> bool:
        return chance.hits(share, what)

    climate = draw_climate(chance)
    climate.trouble.one_at_a_time = True
    climate.trouble.lasts_ms = min(climate.trouble.lasts_ms, _LASTS_MS)
    climate.roads.far_factor = min(climate.roads.far_factor, 10.0)
    weather = WorkersWeather(
        climate=climate,
        leases=chance.pick(("nodes", "nodes", "logs"), "leases are kept in"),
        workers=chance.pick((2, 1, 2, 3), "workers"),
        lives=chance.pick((1, 1, 2, 3), "lives of each"),
        joiners=chance.pick((0, 0, 2, 5), "workers that stay for a moment"),
        same_name=on("lives have one name"),
        heart=chance.pick(("thread", "thread", "thread", "loop"), "the heart beats on a"),
        hand_over_ms=chance.pick((None, None, TIMEOUT_MS, 0), "a hand-over is forced after"),
        domains=chance.pick((0, 0, 2), "failure domains"),
        weigh=chance.pick(("count", "count", "count", "lag", "bytes"), "shares are even in"),
        shards=chance.pick((3, 1, 2, 4, 5), "shards"),
        splits=chance.pick((0, 0, 1, 2), "splits"),
        messages=chance.pick((30, 12, 60), "messages"),
        job=on("a bounded job", 0.15),
        truncations=chance.pick((0, 0, 4), "truncations"),
        program=chance.pick(("async", "async", "threads", "plain"), "the program is"),
        checkpoints=chance.pick(("explicit", "each", "save", "late", "batch"), "checkpoints"),
        checkpoint_messages=chance.pick((0, 3), "a checkpoint is saved after"),
        flush_ms=chance.pick((40, 0, 400), "checkpoints are flushed every"),
        process_ms=chance.pick((4.0, 0.5, 30.0), "a batch takes, in ms"),
        fails=rate("programs fail", 0.3),
        shutdown_fails=rate("shutdowns fail", 0.5),
        poison=chance.pick((0.0, 0.0, 0.05, 0.3), "poisoned messages"),
        on_error=chance.pick(
            ("retry", "retry", "dead_letter", "dead_letter", "stop"), "when it fails"
        ),
        blocks=rate("programs block their loop", 0.1),
        dies=chance.pick((0.0, 0.0, 0.5), "workers die"),
        freezes=chance.pick((0.0, 0.0, 0.5), "workers freeze"),
        cuts=chance.pick((0.0, 0.0, 0.4), "workers are cut off"),
        skewed=on("clocks are hours apart"),
        drifting=on("clocks drift"),
        closes=chance.pick(("patient", "patient", "hurried"), "workers are closed"),
    )
    weather.trusts_name = weather.same_name and on("names are trusted", 0.2)
    return weather
