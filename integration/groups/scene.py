"""A stream that somebody writes to, and processes that consume it, on a cluster."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dlog
from examples.wordcount.counts import Counts
from examples.wordcount.process import Process, wait_until
from examples.wordcount.story import Author
from examples.wordcount.worker import GROUP, STREAM

TIMEOUT_MS = 2_000
FLUSH_MS = 500


class Scene:
    def __init__(self, url: str, directory: Path, shards: int) -> None:
        self.url = url
        self.shards = shards
        self.database = directory / "counts.db"
        self.processes: list[Process] = []
        self.client = dlog.connect(url)
        self.client.create_stream(STREAM, shards=shards)
        self.author = Author(self.client)
        self.author.start()
        self.counts = Counts(self.database)

    def start(self, **ways: Any) -> Process:
        ways = {"timeout_ms": TIMEOUT_MS, "flush_ms": FLUSH_MS, **ways}
        made = Process(f"w{len(self.processes) + 1}", self.url, self.database, ways)
        self.processes.append(made)
        return made

    def is_shared_by(self, *workers: Process) -> bool:
        many = [len(each.shards()) for each in workers]
        return sum(many) == self.shards and max(many) - min(many) <= 1

    def wait_shared(self, *workers: Process) -> float:
        names = ", ".join(each.name for each in workers)
        return wait_until(lambda: self.is_shared_by(*workers), f"{names} share the shards")

    def events(self, what: str) -> list[dict[str, Any]]:
        """Of all processes, by their time."""
        found = [{**s, "who": p.name} for p in self.processes for s in p.all(what)]
        return sorted(found, key=lambda each: each["at_s"])

    @property
    def again(self) -> int:
        return sum(each["again"] for each in self.events("counted"))

    def finish(self) -> None:
        """All is counted, once, and it is what was written."""
        self.author.stop()
        wait_until(lambda: self.counts.lines() >= self.author.lines, "all lines are counted")
        assert self.counts.lines() == self.author.lines
        assert self.counts.words() == self.author.words

    def hand_offs_s(self) -> list[float]:
        """For each shard that went over in order: from when the one was told that it ends, with
        all its messages processed, to when the next one was told that it begins."""
        pauses: list[float] = []
        ended: dict[str, float] = {}
        for each in sorted([*self.events("ends"), *self.events("begins")], key=_at_s):
            if each["what"] == "ends":
                ended[each["log"]] = each["at_s"]
            elif each["log"] in ended:
                pauses.append(each["at_s"] - ended.pop(each["log"]))
        return pauses

    def told(self) -> dlog.GroupDescription:
        return self.client.group(GROUP, STREAM).describe()

    def close(self) -> None:
        self.author.stop()
        for each in self.processes:
            each.end()
        self.counts.close()
        self.client.close()


def _at_s(event: dict[str, Any]) -> float:
    return float(event["at_s"])


@contextmanager
def a_scene(url: str, directory: Path, shards: int = 6) -> Iterator[Scene]:
    scene = Scene(url, directory, shards)
    try:
        yield scene
    finally:
        scene.close()


def median_ms(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1000
