"""A thousand logs in one process, by one client: `many_logs`.

All are opened (new ones, 64 at a time); then one message goes to each of them, to all at once,
five times a second or as often as it goes, for three minutes. Memory is what the process has
resident, looked at after each turn: the floor of every five seconds, behind the minute and a half
in which each log fills what it needs, must not rise by more than 1 MiB a minute.
"""

from __future__ import annotations

from benchmarks.bookkeeper.sides import ms_text
from benchmarks.bookkeeper.stage import Stages
from benchmarks.common import MIB, Finding, median, quantile, slope_per_minute
from benchmarks.embedded.memory import floors_of
from benchmarks.log.sides import ask, ours

OPEN_S = 60.0
SLOPE_MIB_MAX = 1.0
SETTLING_S = 90.0


def many_logs(stages: Stages) -> list[Finding]:
    setting = stages.setting
    logs, seconds = setting.pick(1_000, 10), setting.pick(180, 1)
    with stages.stage() as stage:
        told = ask(ours(stage), "crowd", logs=logs, seconds=seconds)
    turns = told["turns_s"]
    memory = [(at, size / MIB) for at, size in told["memory"]]
    floors = [each for each in floors_of(memory) if each[0] >= SETTLING_S]
    slope = slope_per_minute([at for at, _ in floors], [size for _, size in floors])
    return [
        Finding(
            "many_logs",
            f"{logs:,} logs in one process",
            f"opened in {told['opened_s']:.1f} s; a message to each p50 {ms_text(median(turns))}, "
            f"p99 {ms_text(quantile(turns, 0.99))}; {memory[-1][1]:.0f} MiB, {slope:+.2f} a minute",
            f"≤ {OPEN_S:.0f} s, flat",
            told["opened_s"] <= OPEN_S and slope <= SLOPE_MIB_MAX,
            beside=f"{logs * len(turns):,} appends; closed in {told['closed_s']:.1f} s",
            values={
                "opened_s": told["opened_s"],
                "slope_mib_min": slope,
                "turn_p50_ms": median(turns) * 1e3,
            },
            rounds={"turn s": turns, "resident MiB": [size for _, size in memory]},
        )
    ]
