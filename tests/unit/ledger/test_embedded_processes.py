"""Real processes over one directory: killed at every crash point, frozen, tailing each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dlog.ledger.embedded import EmbeddedLedgerStore
from dlog.ledger.store import LedgerState
from dlog.meta.sqlite import SqliteMetaStore
from dlog.testing.conformance.ledger_tools import filled, ids_of, numbered, read_all
from dlog.trace import POINTS
from tests.pace import Deadline

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.name != "posix", reason="kills and freezes by signals"),
]

REPOSITORY = Path(__file__).parents[3]
CHILD = Path(__file__).with_name("child.py")
LEDGER_POINTS = sorted(
    point
    for point in POINTS
    if point.startswith("ledger.") or point in ("recover.scanned", "recover.closed")
)


class Child:
    def __init__(self, directory: Path, *args: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), str(directory), *args],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            bufsize=0,
        )
        self.lines: list[list[str]] = []

    def read_until(self, *words: str) -> list[str]:
        """The next line that begins so; every line before it is kept in `lines`."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            self.lines.append(line.decode().split())
            if self.lines[-1][: len(words)] == list(words):
                return self.lines[-1]
        raise AssertionError(f"the child ended without saying {' '.join(words)}: {self.lines}")

    def read_to_end(self) -> int:
        assert self._process.stdout is not None
        self.lines += [line.decode().split() for line in self._process.stdout]
        return self._process.wait(30)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def last(self, word: str) -> int:
        return max((int(line[1]) for line in self.lines if line[0] == word), default=-1)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(30)
        if self._process.stdout is not None:
            self._process.stdout.close()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    running: list[Child] = []
    yield running
    for child in running:
        child.end()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedLedgerStore]:
    meta = SqliteMetaStore(tmp_path)
    made = EmbeddedLedgerStore(tmp_path, meta)
    yield made
    await made.close()
    await meta.close()


def start(children: list[Child], directory: Path, *args: str) -> Child:
    children.append(Child(directory, *args))
    return children[-1]


def payload(entry: int) -> bytes:
    return b"entry %d of the child " % entry * (entry % 5)


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("point", LEDGER_POINTS)
async def test_killed_at_a_crash_point(
    children: list[Child], store: EmbeddedLedgerStore, tmp_path: Path, point: str, side: str
) -> None:
    per_entry = point in ("ledger.written", "ledger.synced", "ledger.looked")
    child = start(children, tmp_path, "live", point, side, "3" if per_entry else "0")
    assert child.read_to_end() == -signal.SIGKILL, f"{point} {side} was never reached"
    confirmed = child.last("confirmed")
    ids = await ids_of(store)
    assert len(ids) == (0 if (point, side) == ("ledger.node_created", "before") else 1)
    for ledger_id in ids:
        closed = await store.recover(ledger_id)
        assert closed.last_entry >= max(confirmed, child.last("closed"))
        assert await store.recover(ledger_id) == closed
        assert (await store.info(ledger_id)).state is LedgerState.CLOSED
        reader = await store.open(ledger_id)
        entries = await read_all(reader, closed.last_entry)
        assert entries == [payload(entry) for entry in range(closed.last_entry + 1)]
        assert closed.bytes == sum(map(len, entries))
    after, _ = await filled(store, numbered(3))
    assert after.ledger_id > max(ids, default=-1)


async def test_every_ledger_crash_point_is_in_the_list() -> None:
    assert len(LEDGER_POINTS) == 8, "a new crash point wants a place in the child's life"


async def test_a_frozen_appender_is_fenced_when_it_wakes(
    children: list[Child], store: EmbeddedLedgerStore, tmp_path: Path
) -> None:
    for wanted in (5, 17, 60):
        child = start(children, tmp_path, "append")
        ledger_id = int(child.read_until("ledger")[1])
        child.read_until("confirmed", str(wanted))
        child.signal(signal.SIGSTOP)
        closed = await store.recover(ledger_id)
        assert closed.last_entry >= wanted
        child.signal(signal.SIGCONT)
        assert child.read_to_end() == 0
        assert ["failed", "Fenced"] in child.lines
        assert child.last("confirmed") <= closed.last_entry, "told above the end"
        assert await store.recover(ledger_id) == closed
        entries = await read_all(await store.open(ledger_id), closed.last_entry)
        assert entries == [payload(entry) for entry in range(closed.last_entry + 1)]


async def test_a_reader_follows_another_process(
    children: list[Child], store: EmbeddedLedgerStore, tmp_path: Path
) -> None:
    child = start(children, tmp_path, "append")
    ledger_id = int(child.read_until("ledger")[1])
    reader = await store.open(ledger_id)
    seen: list[bytes] = []
    deadline = Deadline(20)
    while len(seen) < 300:
        assert not deadline.passed()
        last = await reader.wait_past(len(seen) - 1, 5_000)
        while len(seen) <= last:
            seen += map(bytes, await reader.read(len(seen), last, bytes_max=1_000))
    assert seen == [payload(entry) for entry in range(len(seen))]
    child.signal(signal.SIGKILL)
    child.read_to_end()
    closed = await store.recover(ledger_id)
    assert closed.last_entry >= max(child.last("confirmed"), len(seen) - 1)
    assert await reader.last_readable() == closed.last_entry


async def test_two_processes_share_a_store(
    children: list[Child], store: EmbeddedLedgerStore, tmp_path: Path
) -> None:
    both = [start(children, tmp_path, "append") for _ in range(2)]
    ids = [int(child.read_until("ledger")[1]) for child in both]
    assert ids[0] != ids[1]
    for child in both:
        child.read_until("confirmed", "20")
    ends = [await store.recover(ledger_id) for ledger_id in ids]
    for child, end in zip(both, ends, strict=True):
        assert child.read_to_end() == 0
        assert 20 <= child.last("confirmed") <= end.last_entry
