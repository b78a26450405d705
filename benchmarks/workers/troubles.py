"""What becomes of workers in trouble, as long as the promises say: one that is frozen for half a
minute, and metadata that is away for a whole one."""

from __future__ import annotations

import threading

from benchmarks.common import Finding, Setting

TIMEOUT_MS = 2_000
LEASE_SLACK_S = 0.5  # from the last line counted to the moment that we say is the last


def frozen(setting: Setting) -> list[Finding]:
    """SIGSTOP, and what the worker does when it wakes and does not know."""
    from dlog.testing.cluster import Cluster
    from examples.wordcount.process import wait_until
    from integration.groups.scene import a_scene

    asleep_s = setting.pick(30.0, 4.0)
    with Cluster() as cluster, setting.scratch() as directory:
        with a_scene(cluster.url, directory, shards=6) as scene:
            first = scene.start(timeout_ms=TIMEOUT_MS)
            second = scene.start(timeout_ms=TIMEOUT_MS)
            scene.wait_shared(first, second)
            wait_until(lambda: len(second.all("counted")) > 20, "it counts")
            tokens = {each["log"]: each["token"] for each in second.all("begins")}
            second.freeze(scene.counts.is_free)
            committed = scene.counts.next_seqs()
            scene.wait_shared(first)
            threading.Event().wait(asleep_s)
            heard = len(second.said)
            second.thaw()
            scene.wait_shared(first, second)
            scene.finish()
            woken = second.said[heard:]
    counted = [each for each in woken if each["what"] == "counted"]
    accepted = [
        each
        for each in counted
        if each["token"] == tokens.get(each["log"])
        and each["first"] >= committed.get(each["log"], 0)
    ]
    refused = [each for each in woken if each["what"] in ("refused", "lost")]
    return [
        Finding(
            "frozen",
            f"SIGSTOP for {asleep_s:g} s, time-out {TIMEOUT_MS} ms; {len(refused)} refused",
            f"{len(accepted)} guarded effects accepted",
            "0",
            not accepted,
            "every line counted once",
            rounds={"refused": [len(refused)], "accepted": [len(accepted)]},
        )
    ]


def away(setting: Setting) -> list[Finding]:
    """ZooKeeper is killed, and started again a minute later."""
    from dlog.testing.cluster import Cluster
    from examples.wordcount.process import wait_until
    from integration.groups.scene import a_scene

    away_s = setting.pick(60.0, 5.0)
    with Cluster() as cluster, setting.scratch() as directory:
        with a_scene(cluster.url, directory, shards=6) as scene:
            workers = [scene.start(timeout_ms=TIMEOUT_MS) for _ in range(2)]
            scene.wait_shared(*workers)
            before = {each.name: each.shards() for each in workers}
            wait_until(lambda: all(len(w.all("counted")) > 20 for w in workers), "they count")
            cluster.zookeeper.kill()
            killed_s = scene.events("counted")[-1]["at_s"]
            threading.Event().wait(away_s)
            known = scene.events("counted")
            went_on_s = known[-1]["at_s"] - killed_s
            cluster.zookeeper.start()
            back_s = wait_until(
                lambda: len(scene.events("counted")) > len(known) + 50, "it is back"
            )
            scene.wait_shared(*workers)
            same = {each.name: each.shards() for each in workers} == before
            scene.finish()
            again = scene.again
    most_s = TIMEOUT_MS / 1000 + LEASE_SLACK_S
    return [
        Finding(
            "away",
            f"ZooKeeper away for {away_s:g} s, time-out {TIMEOUT_MS} ms",
            f"went on for {went_on_s:.2f} s, resumed {back_s:.2f} s after its start",
            f"<= {most_s:g} s, then stopped; all resume",
            went_on_s <= most_s,
            f"{again} messages twice, {'the same' if same else 'other'} shards",
            rounds={"went_on_s": [went_on_s], "resumed_s": [back_s]},
        )
    ]
