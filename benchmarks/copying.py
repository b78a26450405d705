"""python -m benchmarks.copying [--bytes N] [--kills 20] [--seed N] [--directory DIR] [--to URL]

Copies a log with `dlog copy`, kills that with SIGKILL at random moments, again and again, lets the
last one run to its end, and compares the copy with the log: message by message, all that a message
has, and entry by entry. Ends with 1 if they differ. What it writes is below a directory of its own,
which it removes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dlog
from benchmarks.common import MIB, ROOT, machine

LOG = "log"
BATCH = 256  # messages that are made at a time


@dataclass
class Told:
    bytes: int = 0
    messages: int = 0
    entries: int = 0
    segments_here: int = 0
    segments_there: int = 0
    kills: int = 0
    went_on_at: list[int] = field(default_factory=list)
    undisturbed_s: float = 0.0
    start_s: float = 0.0  # of that: until it copies
    undisturbed_mib_s: float = 0.0
    compared_s: float = 0.0


def fill(url: str, size: int, draw: random.Random) -> int:
    """Messages of all kinds and sizes, with everything that a message may have; how many."""
    count = done = 0
    payload = draw.randbytes(1 << 20)
    options = dlog.LogOptions(segment_bytes=max(size // 16, 1 << 16))
    with dlog.open_writer(LOG, url=url, create=options) as log:
        while done < size:
            for _ in range(BATCH):
                length = int(draw.choice((10, 100, 1_000, 1_000, 10_000)) * draw.random())
                at = draw.randrange(len(payload) - length)
                value = None if draw.random() < 0.01 else payload[at : at + length]
                log.submit(
                    value,
                    key=None if draw.random() < 0.5 else b"key %d" % draw.randrange(1_000),
                    headers=[("n", b"%d" % count)] if draw.random() < 0.1 else None,
                    event_time=count if draw.random() < 0.1 else None,
                )
                count += 1
                done += length + 16
            if draw.random() < 0.2:
                log.append_many([payload[i : i + 500] for i in range(100)], atomic=True)
                count, done = count + 100, done + 51_600
    return count


def command(source: str, target: str, name: str) -> list[str]:
    return [sys.executable, "-m", "dlog", "copy", source, LOG, target, name, "--quiet"]


def run(source: str, target: str, name: str) -> float:
    began = time.monotonic()
    subprocess.run(command(source, target, name), check=True, cwd=ROOT)
    return time.monotonic() - began


def next_seq(client: Any) -> int:
    try:
        return int(client.admin.describe(LOG).next_seq)
    except dlog.DlogError:  # not made yet, or a takeover is at work
        return 0


def copy_with_kills(source: str, target: str, kills: int, draw: random.Random, told: Told) -> None:
    """Some kills come before anything is copied; most of them some time after that began, so that
    all of them together take most of the copy's time."""
    step_s = max(told.undisturbed_s - told.start_s, 1.0) / kills
    with dlog.connect(target) as client:
        while told.kills < kills:
            before = next_seq(client)
            child = subprocess.Popen(command(source, target, LOG), cwd=ROOT)
            if draw.random() < 0.8:
                while child.poll() is None and next_seq(client) == before:
                    time.sleep(0.01)
                pause_s = draw.uniform(0.0, 1.6 * step_s)
            else:
                pause_s = draw.uniform(0.0, told.start_s)
            try:
                child.wait(pause_s)
                print("it was done before it was killed", file=sys.stderr)
                return
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            told.kills += 1
            told.went_on_at.append(next_seq(client))
            print(f"killed {told.kills}: seq {told.went_on_at[-1]} is there", file=sys.stderr)


def compare(source: str, target: str, told: Told) -> str | None:
    """What differs, or None."""
    began = time.monotonic()
    with dlog.open_reader(LOG, url=source) as here, dlog.open_reader(LOG, url=target) as there:
        others = there.batches()
        for batch in here.batches():
            other = next(others, None)
            if other is None or len(other) != len(batch):
                return f"the entry of seq {batch.first_seq} is not there, or is another"
            ours, theirs = batch.to_pylist(), other.to_pylist()
            for message, copy in zip(ours, theirs, strict=True):
                if message[3:9] != copy[3:9]:  # all but the id and the epoch
                    return f"seq {message.seq} differs: {message} {copy}"
            told.messages += len(batch)
            told.entries += 1
        if next(others, None) is not None:
            return "the copy has more"
    told.compared_s = round(time.monotonic() - began, 2)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.copying", description=__doc__)
    parser.add_argument("--bytes", type=int, default=1 << 30, help="of the log (default 1 GiB)")
    parser.add_argument("--kills", type=int, default=20, help="of the copy (default 20)")
    parser.add_argument("--seed", type=int, help="of what is drawn")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="on the disk to use")
    parser.add_argument("--to", metavar="URL", help="where to copy to; a directory by default")
    chosen = parser.parse_args()
    seed = int.from_bytes(os.urandom(4)) if chosen.seed is None else chosen.seed
    print(f"seed {seed}", file=sys.stderr)
    draw, told = random.Random(seed), Told(bytes=chosen.bytes)
    with tempfile.TemporaryDirectory(dir=chosen.directory, prefix="dlog-copying-") as scratch:
        source, target = f"file:{scratch}/here", chosen.to or f"file:{scratch}/there"
        count = fill(source, chosen.bytes, draw)
        print(f"{count} messages are written", file=sys.stderr)
        told.undisturbed_s = run(source, target, "undisturbed")
        told.undisturbed_mib_s = round(chosen.bytes / MIB / told.undisturbed_s, 1)
        told.start_s = run(source, target, "undisturbed")  # nothing is left to be copied
        with dlog.connect(target) as client:
            client.admin.remove("undisturbed")
        copy_with_kills(source, target, chosen.kills, draw, told)
        run(source, target, LOG)
        differs = compare(source, target, told)
        if differs is None and told.messages != count:
            differs = f"{told.messages} messages, of {count} that were written"
        for url, name in ((source, "segments_here"), (target, "segments_there")):
            with dlog.connect(url) as client:
                setattr(told, name, len(client.admin.segments(LOG)))
                if url == target and chosen.to:
                    client.admin.remove(LOG)
        where = machine(Path(scratch))
    print(json.dumps({"seed": seed, "equal": differs is None, **asdict(told), "machine": where}))
    if differs is not None:
        print(differs, file=sys.stderr)
    return differs is not None


if __name__ == "__main__":
    sys.exit(main())
