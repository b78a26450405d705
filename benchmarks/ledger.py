"""Figures of the embedded ledgers, each beside what the bare disk does in the same run.

    python benchmarks/ledger.py [--directory DIR] [--rounds N]

Prints a table and, on the last line, the same as JSON. The payload is random and nothing is
compressed. A pair is measured by turns, several rounds each, and the median is shown: a disk that
others use at the same time changes its mind from second to second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dlog.errors import DlogError
from dlog.ledger.embedded import EmbeddedLedgerStore, committer
from dlog.ledger.embedded.appender import EmbeddedAppender
from dlog.ledger.store import LedgerSpec
from dlog.limits import KIB, MIB
from dlog.meta.memory import MemoryMetaStore, MemoryTree
from dlog.meta.sqlite import SqliteMetaStore

LONE_BYTES = 100
LONE_COUNT = 400
ENTRY_BYTES = 256 * KIB
BLOCK_BYTES = MIB
TOTAL_BYTES = 256 * MIB
WINDOW_ENTRIES = 64
WAKES = 200

Figures = dict[str, float]


class Told:
    def __init__(self) -> None:
        self.last = -1
        self.failed: DlogError | None = None
        self._changed = asyncio.Event()

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        self.last = last_entry
        self._changed.set()

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        pass

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        self.failed = error
        self._changed.set()

    async def until(self, entry: int) -> None:
        while self.last < entry:
            if self.failed is not None:
                raise self.failed
            self._changed.clear()
            await self._changed.wait()


def ms(seconds: float) -> float:
    return round(seconds * 1000, 4)


def quantile(samples: list[float], fraction: float) -> float:
    return sorted(samples)[int(len(samples) * fraction)]


async def started(store: EmbeddedLedgerStore) -> tuple[EmbeddedAppender, Told]:
    appender, told = await store.create(LedgerSpec()), Told()
    appender.listen(told)
    return appender, told


async def lone_adds(store: EmbeddedLedgerStore) -> list[float]:
    appender, told = await started(store)
    await appender.birth([b"birth"])
    entry, taken = os.urandom(LONE_BYTES), []
    for _ in range(LONE_COUNT):
        began = time.perf_counter()
        await told.until(appender.submit([entry]))
        taken.append(time.perf_counter() - began)
    await appender.close()
    return taken


def bare_syncs(directory: Path, *, reserved: bool) -> list[float]:
    fd = os.open(directory / "bare", os.O_RDWR | os.O_CREAT)
    if reserved:
        os.posix_fallocate(fd, 0, MIB)
    block, taken = os.urandom(LONE_BYTES + 64), []
    for _ in range(LONE_COUNT):
        began = time.perf_counter()
        os.write(fd, block)
        os.fdatasync(fd)
        taken.append(time.perf_counter() - began)
    os.close(fd)
    os.unlink(directory / "bare")
    return taken


async def bandwidth(store: EmbeddedLedgerStore) -> tuple[float, EmbeddedAppender]:
    appender, told = await started(store)
    entry, count = os.urandom(ENTRY_BYTES), TOTAL_BYTES // ENTRY_BYTES
    began = time.perf_counter()
    for number in range(count):
        appender.submit([entry])
        await told.until(number - WINDOW_ENTRIES)
    await told.until(count - 1)
    taken = time.perf_counter() - began
    appender.publish()
    return TOTAL_BYTES / taken / 1e6, appender


def bare_bandwidth(directory: Path, block_bytes: int) -> float:
    fd = os.open(directory / "bare", os.O_RDWR | os.O_CREAT)
    block = os.urandom(block_bytes)
    began = time.perf_counter()
    for _ in range(TOTAL_BYTES // block_bytes):
        os.write(fd, block)
        os.fdatasync(fd)
    taken = time.perf_counter() - began
    os.close(fd)
    os.unlink(directory / "bare")
    return TOTAL_BYTES / taken / 1e6


async def read_speed(store: EmbeddedLedgerStore, ledger_id: int) -> float:
    reader = await store.open(ledger_id)
    last = await reader.last_readable()
    began, first = time.perf_counter(), 0
    while first <= last:
        first += len(await reader.read(first, last, bytes_max=4 * MIB))
    taken = time.perf_counter() - began
    await reader.close()
    return TOTAL_BYTES / taken / 1e9


async def random_reads(store: EmbeddedLedgerStore, ledger_id: int) -> float:
    reader = await store.open(ledger_id)
    last = await reader.last_readable()
    taken = []
    for number in range(200):
        entry = number * 7919 % (last + 1)
        began = time.perf_counter()
        await reader.read(entry, entry, bytes_max=1)
        taken.append(time.perf_counter() - began)
    await reader.close()
    return statistics.median(taken)


async def recovery(store: EmbeddedLedgerStore, ledger_id: int) -> float:
    began = time.perf_counter()
    await store.recover(ledger_id)
    return time.perf_counter() - began


def start_appender(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "--append", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


async def wakes(directory: Path) -> list[float]:
    """From a confirmation in another process, which then publishes, to our wait's return."""
    process = start_appender(directory)
    assert process.stdin is not None
    assert process.stdout is not None
    meta = SqliteMetaStore(directory)
    store = EmbeddedLedgerStore(directory, meta)
    reader = await store.open(int(process.stdout.readline()))
    taken = []
    for number in range(WAKES):
        waiting = asyncio.create_task(reader.wait_past(number - 1, 5_000))
        await asyncio.sleep(0.002)
        process.stdin.write("\n")
        process.stdin.flush()
        assert await waiting == number
        woken_ns = time.monotonic_ns()
        taken.append((woken_ns - int(process.stdout.readline())) / 1e9)
    process.stdin.close()
    process.wait()
    process.stdout.close()
    await store.close()
    await meta.close()
    return taken


async def append_when_told(directory: Path) -> None:
    """The other process of `wakes`: a line in, an entry confirmed and published, its time out."""
    meta = SqliteMetaStore(directory)
    store = EmbeddedLedgerStore(directory, meta)
    appender, told = await started(store)
    print(appender.ledger_id, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        await told.until(appender.submit([b"news"]))
        confirmed_ns = time.monotonic_ns()
        appender.publish()
        print(confirmed_ns, flush=True)
    await store.close()
    await meta.close()


async def measure(directory: Path, rounds: int) -> Figures:
    meta = MemoryMetaStore(MemoryTree())
    store = EmbeddedLedgerStore(directory, meta)
    gathered: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        gathered.setdefault(name, []).append(value)

    for _ in range(rounds):
        lone = await lone_adds(store)
        grown = bare_syncs(directory, reserved=False)
        note("lone add p50 ms", ms(quantile(lone, 0.5)))
        note("lone add p99 ms", ms(quantile(lone, 0.99)))
        note("bare write+fdatasync p50 ms", ms(quantile(grown, 0.5)))
        reserved = bare_syncs(directory, reserved=True)
        note("bare, space reserved, p50 ms", ms(quantile(reserved, 0.5)))
        note("add 256 KiB MB/s", (await bandwidth_and_delete(store)))
        note("bare 1 MiB blocks MB/s", bare_bandwidth(directory, BLOCK_BYTES))
        note("bare 4 MiB blocks MB/s", bare_bandwidth(directory, 4 * MIB))
    _, appender = await bandwidth(store)
    for _ in range(rounds):
        note("read GB/s", await read_speed(store, appender.ledger_id))
    note("read one of 1,024 at random ms", ms(await random_reads(store, appender.ledger_id)))
    await appender.close()
    await store.delete(appender.ledger_id)
    for _ in range(rounds):
        _, appender = await bandwidth(store)
        note("recover 256 MiB ms", ms(await recovery(store, appender.ledger_id)))
        await store.delete(appender.ledger_id)
        small, told = await started(store)
        await told.until(small.submit([b"one"]))
        note("recover 1 entry ms", ms(await recovery(store, small.ledger_id)))
        began = time.perf_counter()
        await store.create(LedgerSpec())
        note("create ms", ms(time.perf_counter() - began))
    await store.close()
    await meta.close()
    return {name: round(statistics.median(values), 4) for name, values in gathered.items()}


async def bandwidth_and_delete(store: EmbeddedLedgerStore) -> float:
    speed, appender = await bandwidth(store)
    await appender.close()
    await store.delete(appender.ledger_id)
    return speed


async def main(directory: Path, rounds: int) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as name:
        figures = await measure(Path(name), rounds)
    with tempfile.TemporaryDirectory(dir=directory) as name:
        taken = await wakes(Path(name))
    figures["wake in another process p50 ms"] = ms(quantile(taken, 0.5))
    figures["wake in another process p99 ms"] = ms(quantile(taken, 0.99))
    for what, value in figures.items():
        print(f"{what:36} {value:12,.3f}")
    print(json.dumps(figures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--reserve", choices=("yes", "no"), default="yes", help="space ahead")
    parser.add_argument("--append", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.reserve == "no":
        committer.Committer._reserve = lambda self, end: None  # type: ignore[method-assign]
    if chosen.append is not None:
        asyncio.run(append_when_told(chosen.append))
    else:
        asyncio.run(main(chosen.directory, chosen.rounds))
