"""Appends while servers are gone. Every message that was acknowledged is looked for in the end.

- `stall`: 64 tasks append 1 KB each, over and over; a bookie of four is killed (-9) for five
  seconds; the stall is the longest append that ended in these. The bookie comes back, and the next
  one goes, each time in a log of its own. p99 over all of them, which for so few is the longest.
- `zookeeper_down`: four tasks append while ZooKeeper is gone for a minute (-9), a reader in another
  process follows the log. A failure is an append that raised, none that was acknowledged meanwhile,
  or a follower that ended or stood still for five seconds. A rotation is asked for meanwhile and
  given 20 seconds: it does not come, and says why.
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks.bookkeeper.sides import RUN_TIMEOUT_S, ms_text
from benchmarks.bookkeeper.stage import Stages
from benchmarks.common import Finding, median, quantile
from benchmarks.log.sides import ask, fresh_name, ours

STALL_S = 0.5
KILLS = 8
STILL_S = 5.0
ROTATION_S = 20  # longer than one call waits for ZooKeeper


def stall(stages: Stages) -> list[Finding]:
    setting = stages.setting
    told: list[dict[str, Any]] = []
    with stages.stage() as stage:
        our_side = ours(stage)
        for number in range(setting.pick(KILLS, 1)):
            log = fresh_name()
            ask(our_side, "load", log=log, tasks=64)
            time.sleep(1.0)
            ask(our_side, "load_state", log=log)
            bookie = stage.cluster.bookies[number % len(stage.cluster.bookies)]
            bookie.kill()
            time.sleep(setting.pick(5, 1))
            state = ask(our_side, "load_state", log=log)
            bookie.start()
            told.append({**ask(our_side, "load_end", log=log), "stall_s": state["longest_s"]})
            bookie.wait_until_serving()
    stalls = [each["stall_s"] for each in told]
    lost = sum(each["lost"] for each in told)
    failures = [failure for each in told for failure in each["failures"]]
    p99_s = quantile(stalls, 0.99)
    return [
        Finding(
            "stall",
            "bookie killed under load, longest append",
            f"p99 {ms_text(p99_s)} (p50 {ms_text(median(stalls))}) of {len(told)}, {lost} lost, "
            f"{len(failures)} failed",
            f"p99 ≤ {STALL_S * 1e3:.0f} ms, none lost",
            p99_s <= STALL_S and lost == 0 and not failures,
            beside=f"{sum(each['acked'] for each in told):,} acknowledged and read back",
            values={"p99_ms": p99_s * 1e3, "lost": lost, "failures": len(failures)},
            rounds={"stall s": stalls},
        )
    ]


def zookeeper_down(stages: Stages) -> list[Finding]:
    setting = stages.setting
    down_s, around_s = setting.pick(60, 3), 2
    log = fresh_name()
    with stages.stage() as stage:
        our_side, reader = ours(stage), ours(stage)
        ask(our_side, "load", log=log, tasks=4)
        following = reader.ask("follow", log=log, seconds=down_s + 2 * around_s)
        time.sleep(around_s)
        before = ask(our_side, "load_state", log=log)
        stage.cluster.zookeeper.kill()
        began = time.monotonic()
        rotation = ask(our_side, "load_rotate", log=log, within_s=setting.pick(ROTATION_S, 1))
        time.sleep(began + down_s - time.monotonic())
        state = ask(our_side, "load_state", log=log)
        stage.cluster.zookeeper.start()
        stage.cluster.zookeeper.wait_until_serving()
        followed = following.result(RUN_TIMEOUT_S)
        told = ask(our_side, "load_end", log=log)
    meanwhile = state["acked"] - before["acked"]
    failures = sum(
        (
            len(told["failures"]),
            meanwhile == 0,
            followed["longest_s"] > STILL_S,
        )
    )
    return [
        Finding(
            "zookeeper_down",
            f"ZooKeeper gone for {down_s} s",
            f"{failures} failures, {told['lost']} lost, longest append "
            f"{ms_text(state['longest_s'])}; a rotation: {rotation['failure'] or 'done'}",
            "0 failures",
            failures == 0 and told["lost"] == 0,
            beside=f"{meanwhile:,} appended meanwhile, {followed['messages']:,} followed",
            values={"failures": failures, "lost": told["lost"]},
            rounds={"longest s": [state["longest_s"], followed["longest_s"]]},
        )
    ]
