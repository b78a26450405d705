"""The other processes of the benchmarks, told by their arguments what to be.

    tail URL COUNT      follow the log; at the end print when each message was delivered
    hear COUNT          the same for bytes on standard input: what a pipe between us costs
    fill URL BYTES      fill an open segment, say "full", then append on and on until killed
    write URL SECONDS BYTES_PER_S      sustained appends at that rate, then close
    read URL SECONDS    follow the log until it is told to stop by its parent's death or the time

Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import dlog
from benchmarks.common import KIB, ROOT, random_values


def start(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.embedded.children", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )


def line_of(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError(f"the child ended with {child.wait()} before it said anything")
    return line


def end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()


def tail(url: str, count: int) -> None:
    stamps = []
    with dlog.open_reader("bench", url=url, follow=True) as log:
        print("ready", flush=True)
        for _ in log:
            stamps.append(time.monotonic_ns())
            if len(stamps) == count:
                break
    print(json.dumps(stamps), flush=True)


def hear(count: int) -> None:
    print("ready", flush=True)
    stamps = []
    for _ in range(count):
        os.read(0, 1)
        stamps.append(time.monotonic_ns())
    print(json.dumps(stamps), flush=True)


def fill(url: str, size: int) -> None:
    values = random_values(size // KIB, KIB)
    with dlog.open_writer("bench", url=url) as log:
        log.append_many(values)
        print("full", flush=True)
        while True:
            log.append(values[0])


def write(url: str, seconds: float, bytes_per_s: int) -> None:
    """In small steps, each at its time, so that the rate is even. A rate of 0 is no limit."""
    values = random_values(KIB, KIB)
    options = dlog.LogOptions(segment_bytes=64 << 20)
    with dlog.open_writer("bench", url=url, create=options) as log:
        print("ready", flush=True)
        began, done = time.monotonic(), 0
        while (now := time.monotonic()) - began < seconds:
            for value in values:
                log.submit(value)
            done += len(values) * KIB
            if bytes_per_s > 0:
                time.sleep(max(0.0, began + done / bytes_per_s - now))
    print(done, flush=True)


def read(url: str, seconds: float) -> None:
    seen = 0
    with dlog.open_reader("bench", url=url, follow=True) as log:
        print("ready", flush=True)
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            seen += len(log.read(10_000, timeout=0.2))
    print(seen, flush=True)


def main(what: str, *given: str) -> None:
    match what:
        case "tail":
            tail(given[0], int(given[1]))
        case "hear":
            hear(int(given[0]))
        case "fill":
            fill(given[0], int(given[1]))
        case "write":
            write(given[0], float(given[1]), int(given[2]))
        case "read":
            read(given[0], float(given[1]))
        case _:
            raise SystemExit(f"no such child: {what}")


if __name__ == "__main__":
    main(*sys.argv[1:])
