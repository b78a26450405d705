"""One process: a worker of the group, which counts the words of the shards that it is given, says
what it does on its output, and leaves when its input ends.

    python -m examples.wordcount.worker NAME URL DATABASE [OPTION=VALUE …]
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dlog
from examples.wordcount.counts import Counts, Line, Zombie

GROUP, STREAM = "wordcount", "sentences"
_out = threading.Lock()


def say(what: str, **more: Any) -> None:
    with _out:
        print(json.dumps({"what": what, "at_s": time.monotonic(), **more}), flush=True)


class CountWords:
    """One for each shard."""

    counts: Counts
    delay_s = 0.0
    lock = threading.Lock()

    def initialize(self, shard: dlog.ShardInfo) -> None:
        self.shard = shard
        with self.lock:
            self.counts.begin(shard.log, shard.token)
        start = 0 if shard.start is None else shard.start.next_seq
        say("begins", log=shard.log, token=shard.token, start=start)

    def process(self, batch: dlog.MessageBatch, tracker: dlog.BlockingTracker) -> None:
        lines = [Line(m.seq, (m.value or b"").decode()) for m in batch.to_pylist()]
        if self.delay_s:
            time.sleep(self.delay_s)
        log, token = self.shard.log, self.shard.token
        try:
            with self.lock:
                new = self.counts.add(log, token, lines)
        except Zombie as refused:
            say("refused", log=log, token=token, first=lines[0].seq, why=str(refused))
            raise dlog.LeaseLost(str(refused)) from refused
        again = len(lines) - new
        say("counted", log=log, token=token, first=lines[0].seq, lines=new, again=again)
        try:
            tracker.checkpoint()
        except dlog.LeaseLost as lost:
            say("lost", log=log, token=token, why=str(lost))
            raise

    def shutdown(self, tracker: dlog.BlockingTracker, reason: dlog.StopReason) -> None:
        say("ends", log=self.shard.log, token=self.shard.token, reason=reason.value)


def main(name: str, url: str, database: str, *options: str) -> None:
    given = dict(each.split("=", 1) for each in options)
    CountWords.delay_s = float(given.pop("delay_s", "0"))
    CountWords.counts = Counts(Path(database))
    ways = {key: int(value) if value.isdecimal() else value for key, value in given.items()}
    with dlog.connect(url) as client:
        with client.open_worker(GROUP, STREAM, CountWords, name=name, **ways):
            say("here", name=name)
            sys.stdin.read()  # until whoever started us wants us to leave
        say("left", name=name)
    CountWords.counts.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
