"""The story: one worker, then three, one killed, one frozen and thawed, then one again; and all the
time somebody writes. Every claim is checked."""

from __future__ import annotations

import random
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import dlog
from examples.wordcount.counts import Counts
from examples.wordcount.process import Process, wait_until
from examples.wordcount.worker import STREAM

SHARDS = 6
TIMEOUT_MS = 1_500
WORDS = "the log is truth and who reads it twice shall count it once".split()


class Author(threading.Thread):
    """Writes on and on, and remembers."""

    def __init__(self, client: dlog.Client) -> None:
        super().__init__(daemon=True)
        self.lines = 0
        self.words: Counter[str] = Counter()
        self._client = client
        self._over = threading.Event()

    def run(self) -> None:
        chance = random.Random(7)
        with self._client.stream(STREAM).open_writer() as writer:
            while not self._over.wait(0.005):
                line = " ".join(chance.choices(WORDS, k=5))
                writer.append(line.encode(), key=b"%d" % chance.randrange(100))
                self.lines += 1
                self.words.update(line.split())

    def stop(self) -> None:
        self._over.set()
        self.join()


def claim(what: str, is_so: object) -> None:
    if not is_so:
        raise SystemExit(f"it is not so: {what}")
    print(f"  ok  {what}", flush=True)


def play(url: str, directory: Path) -> None:
    database = directory / "counts.db"
    processes: list[Process] = []

    def start() -> Process:
        ways = {"timeout_ms": TIMEOUT_MS, "flush_ms": 500, "delay_s": 0.002}
        made = Process(f"w{len(processes) + 1}", url, database, ways)
        processes.append(made)
        return made

    def shared_by(*workers: Process) -> bool:
        many = [len(each.shards()) for each in workers]
        return sum(many) == SHARDS and max(many) - min(many) <= 1

    counts = Counts(database)
    try:
        with dlog.connect(url) as client:
            client.create_stream(STREAM, shards=SHARDS)
            author = Author(client)
            author.start()
            print("one worker")
            first = start()
            wait_until(lambda: shared_by(first), "one has all shards")
            print("three workers")
            second, third = start(), start()
            wait_until(lambda: shared_by(first, second, third), "three share them")
            again = sum(s["again"] for each in processes for s in each.all("counted"))
            claim("nothing was processed twice so far", again == 0)
            print("kill -9 of one")
            second.kill()
            took_s = wait_until(lambda: shared_by(first, third), "two share them")
            claim(f"its shards went on after {took_s:.1f} s", took_s < TIMEOUT_MS / 1000 + 2)
            print("one is frozen for longer than the time-out, and wakes")
            third.freeze(counts.is_free)
            wait_until(lambda: shared_by(first), "one has all shards")
            woke = len(third.said)
            third.thaw()
            wait_until(
                lambda: [s for s in third.said[woke:] if s["what"] == "begins"], "it is back"
            )
            wait_until(lambda: shared_by(first, third), "two share them again")
            print("one worker again")
            third.leave()
            wait_until(lambda: shared_by(first), "one has all shards")
            author.stop()
            wait_until(lambda: counts.lines() >= author.lines, "all lines are counted")
            first.leave()
            claim(f"{author.lines} lines, each counted once", counts.lines() == author.lines)
            claim("each word as often as it was written", counts.words() == author.words)
            told = client.group("wordcount", STREAM).describe()
            claim("nothing is left to do", told.lag_messages == 0)
    finally:
        for each in processes:
            each.end()
        counts.close()


def main(words: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="dlog-wordcount-") as name:
        directory = Path(name)
        play(words[0] if words else f"file:{directory / 'data'}", directory)
    return 0
