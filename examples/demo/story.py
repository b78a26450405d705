"""The story: append; a second process takes over while the first is frozen; the first wakes and is
told who won; a tailing reader has missed and repeated nothing; seek by id and by time; describe;
and where Spark is, read in parallel.

Nothing is printed that was not checked. A claim that does not hold ends the demo with exit code 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import dlog
from examples.demo.process import ROOT, Process
from examples.demo.spark import tell_spark
from examples.demo.telling import chapter, check, say

LOG = "orders"
LAST = "that-is-all"
FIRST_BY_ANA = ["ordered-1", "paid-1", "ordered-2", "paid-2", "ordered-3"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BY_BEN = ["shipped-1", "shipped-2", "paid-3"]


@dataclass
class Facts:
    """What happened, for the drawing at the end."""

    takeover_ms: float
    ana: int
    ben: int
    read: int
    winner: str
    epoch: int


def main() -> int:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="dlog-demo-") as directory:
        url = f"file:{directory}/data"
        facts = tell(url)
        story_s = time.perf_counter() - began
        spark = tell_spark(url)
    print()
    for line in timeline(facts):
        print(line)
    took = "" if spark is None else f", with Spark {spark[1]:.1f} s ({spark[0]:.1f} s to set it up)"
    print(f"\nEverything above was checked. {story_s:.1f} s{took}.")
    return 0


def tell(url: str) -> Facts:
    chapter("One log, in a directory", f"dlog.open_writer({LOG!r}, url='file:./data')")
    with Process("writer", url, LOG, "ana") as ana:
        opened = ana.hear()
        check(opened["epoch"] == 1, "the first writer has epoch 1", opened)
        with Process("reader", url, LOG, LAST) as reader:
            return with_a_reader(url, ana, reader)


def with_a_reader(url: str, ana: Process, reader: Process) -> Facts:
    acknowledged = ana.ask(" ".join(FIRST_BY_ANA))["ids"]
    check(len(acknowledged) == len(FIRST_BY_ANA), "every append has an id", acknowledged)
    say(f"ana (pid {ana.pid}, epoch 1) appended {len(acknowledged)} messages,")
    say(f"each durable and readable by anyone: {acknowledged[0]} … {acknowledged[-1]}")
    seen = [reader.hear() for _ in FIRST_BY_ANA]
    say(f"a reader in another process (pid {reader.pid}) follows the tail and has them all")

    chapter("A second writer, while the first is frozen", "kill -STOP ana")
    ana.freeze()
    say("ana stands still: no heartbeat to miss, no lock to break")
    started = time.perf_counter()
    with Process("writer", url, LOG, "ben") as ben:
        taken = ben.hear()
        process_ms = (time.perf_counter() - started) * 1000
        check(taken["epoch"] == 2, "the second writer has epoch 2", taken)
        say(f"ben (pid {ben.pid}) is the writer now, with epoch 2,")
        say(f"{process_ms:.0f} ms after his process was started")
        by_ben = ben.ask(" ".join(BY_BEN))["ids"]
        say(f"and appended {len(by_ben)} messages: {by_ben[0]} … {by_ben[-1]}")

        chapter("The first writer wakes up", "kill -CONT ana")
        ana.thaw()
        lost = ana.ask("cancelled-1")
        check("fenced" in lost, "a writer that was taken over is refused", lost)
        check((lost["winner"], lost["epoch"]) == ("ben", 2), "it is told who won", lost)
        say("ana knows nothing of it and appends: refused.")
        say(f"  dlog.Fenced: {lost['fenced']}")
        check(ana.finish() == 0, "a writer that lost ends in peace")

        by_ben += ben.ask(LAST)["ids"]
        acknowledged += by_ben
        chapter("The reader that was there all along", "for message in reader: …")
        wanted = [*FIRST_BY_ANA, *BY_BEN, LAST]
        seen += [reader.hear() for _ in wanted[len(seen) :]]
        check(reader.finish() == 0, "the reader ends at the last message")
        check_seen(seen, wanted, acknowledged)
        say(f"{len(seen)} of {len(wanted)} messages, each once, in order, seq 0 … {len(seen) - 1};")
        say("every id is the one its writer was given; what was refused is not among them")

        seek(url, acknowledged, wanted)
        describe(url)
        check(ben.finish() == 0, "the writer closes")
    return Facts(process_ms, len(FIRST_BY_ANA), len(by_ben), len(seen), lost["winner"], 2)


def check_seen(seen: list[dict[str, Any]], wanted: list[str], ids: list[str]) -> None:
    check([each["value"] for each in seen] == wanted, "nothing is missing or repeated", seen)
    check([each["seq"] for each in seen] == list(range(len(wanted))), "seqs have no gap", seen)
    check([each["id"] for each in seen] == ids, "ids are the acknowledged ones", seen)
    epochs = [each["epoch"] for each in seen]
    check(epochs == sorted(epochs), "one writer after the other", seen)


def seek(url: str, ids: list[str], wanted: list[str]) -> None:
    chapter("Seek", "dlog.open_reader('orders', start=…)")
    third = dlog.MessageId.parse(ids[2])
    with dlog.open_reader(LOG, url=url, start=third) as reader:
        found = [(message.value or b"").decode() for message in reader]
        check(found == wanted[2:], "a reader starts at the id it was given", found)
        say(f"by id {third}: {found[0]} and the {len(found) - 1} after it")
        reader.seek(0)
        messages = list(reader)
        first_of_ben = next(message for message in messages if message.epoch == 2)
        moment = EPOCH + timedelta(microseconds=first_of_ben.timestamp_us)
        reader.seek(moment)
        found = [(message.value or b"").decode() for message in reader]
        check(found == wanted[len(FIRST_BY_ANA) :], "a reader starts at a time", found)
        say(f"by time {moment:%H:%M:%S.%f}: {found[0]} and the {len(found) - 1} after it")


def describe(url: str) -> None:
    chapter("And from the shell", f"dlog describe {LOG}")
    done = subprocess.run(
        [sys.executable, "-m", "dlog", "describe", LOG, "--url", url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    check(done.returncode == 0, "dlog describe works", done.stderr)
    check("ben" in done.stdout, "describe names the writer", done.stdout)
    for line in done.stdout.splitlines():
        say(line)


def timeline(facts: Facts) -> list[str]:
    """The story as a drawing, with what was counted."""
    ana, ben, every = "●" * facts.ana, "●" * facts.ben, facts.read
    took = f"takes over, {facts.takeover_ms:.0f} ms"
    gap = " " * len(took)
    return [
        f"  ana     {ana}  frozen {'·' * (len(took) + facts.ben - 4)} wakes, appends: Fenced, "
        f"{facts.winner} won (epoch {facts.epoch})",
        f"  ben     {' ' * facts.ana}  {took}  {ben}",
        f"  reader  {ana}  {gap}  {ben}  {every} of {every}, each once, in order",
    ]


if os.name != "posix":  # SIGSTOP is how a process is frozen
    raise SystemExit("the demo freezes a process, which needs Linux or macOS")
