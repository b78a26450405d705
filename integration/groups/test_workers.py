"""Workers as processes on a real cluster: killed, frozen, without metadata, added and removed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dlog.testing.cluster import Cluster
from examples.wordcount.process import Process, wait_until
from integration.conftest import OwnCluster
from integration.groups.scene import FLUSH_MS, TIMEOUT_MS, a_scene, median_ms
from tests.pace import stretched, within

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

TIMEOUT_S, FLUSH_S = TIMEOUT_MS / 1000, FLUSH_MS / 1000
HAND_OFF_MS_MAX = 1_000  # on a machine that others use; `benchmarks.workers` has the figure


def _url(cluster: Cluster, place: str) -> str:
    return cluster.url.replace("/dlog?", f"/{place}?")


def test_one_to_four_and_back_with_nothing_twice(cluster: Cluster, tmp_path: Path) -> None:
    """LH-10, LH-11, LH flaw 4: clean hand-off under load; 0 duplicates, and a short pause."""
    with a_scene(_url(cluster, "scaled"), tmp_path, shards=8) as scene:
        first = scene.start()
        scene.wait_shared(first)
        more = [scene.start() for _ in range(3)]
        scene.wait_shared(first, *more)
        for each in more:
            each.leave()
        scene.wait_shared(first)
        scene.finish()
        assert scene.again == 0
        pauses = scene.hand_offs_s()
        assert len(pauses) >= 6
        print(sorted(round(1000 * p) for p in pauses))
        print(f"hand-off: {len(pauses)}, p50 {median_ms(pauses):.0f} ms, max {max(pauses):.3f} s")
        assert median_ms(pauses) <= HAND_OFF_MS_MAX


def test_a_killed_worker_is_followed_in_time(cluster: Cluster, tmp_path: Path) -> None:
    """LH-02, LH-12, LH-14: its shards go on within the time-out and 2 s; what is counted again is
    no more than what lies behind a checkpoint."""
    with a_scene(_url(cluster, "killed"), tmp_path) as scene:
        first, second = scene.start(), scene.start()
        scene.wait_shared(first, second)
        wait_until(lambda: len(second.all("counted")) > 20, "it counts")
        second.kill()
        took_s = scene.wait_shared(first)
        counted = second.all("counted")
        killed_s = counted[-1]["at_s"]
        late = sum(s["lines"] for s in counted if s["at_s"] > killed_s - FLUSH_S - stretched(0.5))
        scene.finish()
        print(f"kill -9: {took_s:.2f} s, {scene.again} lines again, of {late} not flushed at most")
        assert within(took_s, TIMEOUT_S + 2)
        assert scene.again <= late


def test_a_frozen_worker_does_nothing_when_it_wakes(cluster: Cluster, tmp_path: Path) -> None:
    """LH-12, LH-52, LH flaw 5: 0 checkpoints and 0 guarded effects are accepted of a worker that
    slept for longer than the time-out; it comes back as somebody new."""
    with a_scene(_url(cluster, "frozen"), tmp_path) as scene:
        first, second = scene.start(), scene.start()
        scene.wait_shared(first, second)
        wait_until(lambda: len(second.all("counted")) > 20, "it counts")
        tokens = {each["log"]: each["token"] for each in second.all("begins")}
        second.freeze(scene.counts.is_free)
        committed = scene.counts.next_seqs()  # what it says of these later, it did before
        scene.wait_shared(first)
        heard = len(second.said)
        second.thaw()
        wait_until(lambda: _began_again(second, heard), "it is back")
        scene.wait_shared(first, second)
        scene.finish()
        woken = second.said[heard:]
        stale = [s for s in woken if s["what"] == "counted" and s["token"] == tokens.get(s["log"])]
        refused = [s for s in woken if s["what"] in ("refused", "lost")]
        print(f"frozen: {len(refused)} attempts of the one that woke, {len(stale)} accepted")
        assert [each for each in stale if each["first"] >= committed.get(each["log"], 0)] == []


def _began_again(process: Process, heard: int) -> bool:
    return any(each["what"] == "begins" for each in process.said[heard:])


def test_owned_shards_outlive_metadata_for_a_lease(own_cluster: OwnCluster, tmp_path: Path) -> None:
    """LH-16: without ZooKeeper, work goes on for as long as nobody else can own the shards, then
    stops by itself; all resumes after, and nobody lost anything."""
    cluster = own_cluster()
    with a_scene(_url(cluster, "away"), tmp_path) as scene:
        workers = [scene.start(), scene.start()]
        scene.wait_shared(*workers)
        before = {each.name: each.shards() for each in workers}
        wait_until(lambda: all(len(each.all("counted")) > 20 for each in workers), "they count")
        stopped = threading.Event()
        cluster.zookeeper.freeze()
        froze_s = scene.events("counted")[-1]["at_s"]
        stopped.wait(2 * TIMEOUT_S)
        cluster.zookeeper.thaw()
        thawed = scene.events("counted")
        last_s = thawed[-1]["at_s"]
        wait_until(lambda: len(scene.events("counted")) > len(thawed) + 50, "all resume")
        scene.wait_shared(*workers)
        scene.finish()
        print(f"metadata away: went on for {last_s - froze_s:.2f} s of a lease of {TIMEOUT_S} s")
        assert TIMEOUT_S / 3 < last_s - froze_s < TIMEOUT_S + 0.3
        assert {each.name: each.shards() for each in workers} == before
        assert scene.again == 0
