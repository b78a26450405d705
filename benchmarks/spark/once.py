"""Exactly once, with kill -9 again and again: python -m benchmarks.spark once

A streaming query copies one log into another. The processes of Python that work for it die: those
of tasks while they fill ledgers, and that of the driver's side in every phase of the commit, at a
crash point drawn anew each time. Spark runs tasks again; a commit that died ends the query, and it
is started again from its checkpoint. At the end the copy has each message once, and nothing is left
beside the logs.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark.errors

import dlog
from benchmarks.common import Finding, Setting
from benchmarks.spark.session import session
from dlog import trace
from dlog.spark.sink import StreamWriter
from dlog.spark.source import DefaultSource

KILLS, KILLS_QUICK = 200, 4
TASKS_KILLED, COMMITS_KILLED = 0.12, 0.6  # of those that there are
POINTS_MAX = {"task": 40, "commit": 25}  # it dies at one of so many crash points, if it comes there
BATCH = 60
AT_ONCE = 1_200  # messages that wait to be copied, at most
STARTS_MAX = 5 * KILLS
TOLD = "DLOG_ONCE_KILLS"  # the file that tells of each kill


@contextmanager
def doomed(who: str, share: float) -> Iterator[None]:
    """Dies in here, now and then."""
    chance = random.Random(os.urandom(8))
    left = chance.randrange(POINTS_MAX[who]) if chance.random() < share else -1

    def listener(point: str, side: str) -> None:
        nonlocal left
        left -= 1
        if left == -1:
            with open(os.environ[TOLD], "a") as told:
                told.write(f"{who} {point} {side}\n")
            os.kill(os.getpid(), signal.SIGKILL)

    if left < 0:
        yield
        return
    trace.listen(listener)
    try:
        yield
    finally:
        trace.listen(None)


class DoomedWriter(StreamWriter):
    def write(self, batches: Iterator[Any]) -> Any:
        with doomed("task", TASKS_KILLED):
            return super().write(batches)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        with doomed("commit", COMMITS_KILLED):
            super().commit(messages, batchId)


class DoomedSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "dlog_doomed"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        from dlog.spark.options import sink_options

        return DoomedWriter(schema, sink_options(self.options))


def once(setting: Setting) -> list[Finding]:
    wanted = setting.pick(KILLS, KILLS_QUICK)
    with setting.scratch() as scratch:
        told = scratch / "kills"
        told.touch()
        os.environ[TOLD] = str(told)
        url = f"file:{scratch / 'logs'}"
        began_s, written, runs = time.monotonic(), 0, 0
        # So many failures of one task are none of the query's.
        with session(scratch, master=f"local[2,{1000}]") as spark:
            spark.dataSource.register(DoomedSource)
            while len(told.read_text().splitlines()) < wanted:
                with dlog.open_writer("orders", url=url) as log:
                    log.append_many([b"%d" % i for i in range(written, written + AT_ONCE)])
                    written += AT_ONCE
                runs += _drained(spark, url, scratch / "checkpoint", told, wanted)
                done = len(told.read_text().splitlines())
                print(f"{done} of {wanted} killed, {runs} starts", file=sys.stderr, flush=True)
            os.environ[TOLD] = os.devnull
            runs += _drained(spark, url, scratch / "checkpoint", told, None)
        kills = Counter(line.split()[0] for line in told.read_text().splitlines())
        return [_judged(url, written, kills, runs, time.monotonic() - began_s)]


def _drained(spark: Any, url: str, checkpoint: Path, told: Path, wanted: int | None) -> int:
    """The query, run until it has read all, or enough were killed; how often it was started."""
    starts = 0
    while wanted is None or len(told.read_text().splitlines()) < wanted:
        starts += 1
        read = spark.readStream.format("dlog").option("url", url)
        frame = read.options(
            startingOffsets="earliest", maxOffsetsPerTrigger=BATCH, minPartitions=2
        ).load("orders")
        form = "dlog" if wanted is None else "dlog_doomed"
        query = (
            frame.select("key", "value")
            .writeStream.format(form)
            .options(url=url, topic="copy", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
            return starts
        except pyspark.errors.StreamingQueryException as error:
            if "dlog.errors" in str(error) or starts > STARTS_MAX:
                raise  # of us; that a process died Spark says in its own words
    return starts


def _judged(url: str, written: int, kills: Counter[str], runs: int, took_s: float) -> Finding:
    with dlog.open_reader("copy", url=url) as reader:
        found = Counter(int(message.value or b"-1") for message in reader)
    lost = sum(number not in found for number in range(written))
    doubled = sum(count - 1 for count in found.values())
    strange = sum(not 0 <= number < written for number in found)
    with dlog.connect(url) as client:
        left = client.admin.fsck(grace_s=0).findings
        orphans = sum(each.kind.value == "orphan" for each in left)
        damages = sum(each.is_damage for each in left) - orphans
    total = sum(kills.values())
    return Finding(
        "once",
        f"{written} messages, {total} kills ({kills['task']} tasks, {kills['commit']} commits)",
        f"{lost} lost, {doubled} doubled, {strange} strange, {damages} damages; {orphans} ledgers "
        f"for the collector; {runs} starts in {took_s:.0f} s",
        f"0 lost, 0 doubled over {KILLS} failures",
        lost == doubled == strange == damages == 0 and total >= KILLS,
        values={"lost": lost, "doubled": doubled, "kills": total},
    )
