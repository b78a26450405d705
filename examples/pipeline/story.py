"""Writes orders, kills the job again and again while it works, and holds what came out against what
went in. Nothing is printed that was not checked."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import dlog
from examples.demo.telling import chapter, check, say

ROOT = Path(__file__).resolve().parents[2]
ORDERS, KILLS = 6_000, 3
STARTED_S = (5.0, 14.0)  # a job that was started so long ago is killed
PATIENCE_S = 180.0


class Job:
    """The program, with all processes that belong to it."""

    def __init__(self, url: str, place: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "examples.pipeline.job", url, str(place)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, seconds: float) -> bool:
        """True: it ended a round of its work by then."""
        found: list[str] = []
        stdout = self._process.stdout
        assert stdout is not None
        reading = threading.Thread(target=lambda: found.append(stdout.readline()), daemon=True)
        reading.start()
        reading.join(seconds)
        return found == ["round\n"]

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Spark, its Java and its Pythons: they are one session of processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def finish(self) -> int:
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(PATIENCE_S)


def main() -> int:
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dlog-pipeline-") as directory:
        place = Path(directory)
        url = f"file:{place}/data"
        chapter("A log, to Parquet, into a second log", "examples/pipeline/job.py")
        with dlog.open_writer("orders", url=url) as log:
            log.append_many(
                [b"order %d" % i for i in range(ORDERS)],
                keys=[b"%d" % (i % 9) for i in range(ORDERS)],
            )
        say(f"{ORDERS} orders are in the log")
        killed = kill_while_it_works(url, place)
        job = Job(url, place)
        check(job.wait(PATIENCE_S), "the job that is left alone ends its round")
        check(job.finish() == 0, "and ends in peace")
        chapter("What came out", "dlog.open_reader('again')")
        compare(url)
    say(f"each of {ORDERS} orders once, after {killed} kills, {time.monotonic() - began_s:.0f} s")
    return 0


def kill_while_it_works(url: str, place: Path) -> int:
    killed = 0
    for _ in range(KILLS):
        job = Job(url, place)
        lives_s = random.uniform(*STARTED_S)
        done = job.wait(lives_s)
        job.kill()
        killed += 1
        when = "after its work" if done else f"at it, {lives_s:.1f} s old"
        say(f"pid {job.pid} was killed {when}")
    return killed


def compare(url: str) -> None:
    with dlog.connect(url) as client:
        with client.open_reader("orders") as first, client.open_reader("again") as second:
            wanted = Counter((message.key, message.value) for message in first)
            found = Counter((message.key, message.value) for message in second)
        check(not wanted - found, "no order is lost", list((wanted - found).items())[:3])
        check(not found - wanted, "no order is there twice", list((found - wanted).items())[:3])
        damages = [each for each in client.admin.fsck().findings if each.is_damage]
        wrong = [each for each in damages if each.kind.value != "orphan"]
        check(not wrong, "both logs are whole", wrong)
