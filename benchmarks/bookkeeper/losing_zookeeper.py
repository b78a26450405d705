"""ZooKeeper is gone for a minute while ledgers are open: `zookeeper_down`.

One appender adds with ten outstanding, one reader follows it, another reads a closed ledger again
and again; ZooKeeper is killed (-9) and started a minute later. A failure is any of them that ended
with an error, or that stood still for five seconds. In the end the appender closes its ledger, and
every entry is read back and compared.
"""

from __future__ import annotations

import time

from benchmarks.bookkeeper.sides import OURS, RUN_TIMEOUT_S, ask
from benchmarks.bookkeeper.stage import Stages
from benchmarks.common import KIB, Finding

STILL_S = 5.0
BEFORE_S, AFTER_S = 2, 3


def zookeeper_down(stages: Stages) -> list[Finding]:
    setting = stages.setting
    down_s = setting.pick(60, 3)
    with stages.stage() as stage:
        ours, reading = stage.ours, stage.new_ours()
        closed = ask(stage, OURS, "pipelined", count=5_000, size=KIB, outstanding=500)
        load = ours.tell("load", count=1_000, size=KIB, outstanding=10)
        seconds = BEFORE_S + down_s + AFTER_S
        readers = [
            reading.ask("follow", ledger=load["ledger"], seconds=seconds),
            reading.ask("reread", ledger=closed["ledger"], seconds=seconds, pause_s=0.5),
        ]
        time.sleep(BEFORE_S)
        before = ours.tell("load_state", ledger=load["ledger"])
        stage.cluster.zookeeper.kill()
        time.sleep(down_s)
        state = ours.tell("load_state", ledger=load["ledger"])
        stage.cluster.zookeeper.start()
        stage.cluster.zookeeper.wait_until_serving()
        followed, reread = (each.result(RUN_TIMEOUT_S) for each in readers)
        told = ours.tell("end_load", timeout_s=RUN_TIMEOUT_S, ledger=load["ledger"])
    lost = told["lost"] + told["sent"] - told["entries"]
    longest_s = max([followed["longest_s"], *(gap_s for _, gap_s in told["gaps"])])
    failures = sum(
        (
            state["failure"] is not None,
            state["confirmed"] <= before["confirmed"],
            followed["longest_s"] > STILL_S,
            any(gap_s > STILL_S for _, gap_s in told["gaps"]),
        )
    )
    return [
        Finding(
            "zookeeper_down",
            f"ZooKeeper gone for {down_s} s",
            f"{failures} failures, {lost} lost, longest silence {longest_s:.2f} s",
            "0 failures",
            failures == 0 and lost == 0,
            beside=f"{state['confirmed'] - before['confirmed']:,} entries added meanwhile, "
            f"{followed['entries']:,} followed, {reread['entries']:,} reread",
            values={"failures": failures, "lost": lost, "longest_s": longest_s},
            rounds={"gaps s": [gap_s for _, gap_s in told["gaps"]] or [0.0]},
        )
    ]
