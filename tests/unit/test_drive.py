"""How the driver of procedures reads control entries, and does several things at once."""

from __future__ import annotations

import asyncio
from typing import Any

from dlog.drive import Driver
from dlog.effects import ReadEntries, Together
from dlog.ledger.store import ClosedLedger
from dlog.meta.memory import MemoryMetaStore, MemoryTree

LEDGER_ID = 7
CLOSED = ClosedLedger(9, 100)


class Ledgers:
    """One ledger, whose answers wait until `asked` are on their way."""

    def __init__(self, *, asked: int, cut_to: int = 1_000) -> None:
        self.runs: list[tuple[int, int]] = []
        self.opened = self.closed = 0
        self._asked, self._cut_to = asked, cut_to
        self._all_asked = asyncio.Event()

    async def open(self, ledger_id: int, *, digest: str, closed: ClosedLedger | None) -> Any:
        assert (ledger_id, digest, closed) == (LEDGER_ID, "crc32c", CLOSED)
        self.opened += 1
        return self

    async def read(self, first: int, last: int, *, bytes_max: int) -> list[memoryview]:
        self.runs.append((first, last))
        if len(self.runs) == self._asked:
            self._all_asked.set()
        await self._all_asked.wait()
        end = min(last + 1, first + self._cut_to)
        return [memoryview(b"%d" % entry_id) for entry_id in range(first, end)]

    async def close(self) -> None:
        self.closed += 1


async def read(ledgers: Ledgers, *entries: int) -> list[bytes]:
    driver = Driver(MemoryMetaStore(MemoryTree()), ledgers)  # type: ignore[arg-type]
    async with asyncio.timeout(10):
        return list(await driver.perform(ReadEntries(LEDGER_ID, "crc32c", entries, CLOSED)))


async def test_neighbours_are_read_together_and_others_beside_them() -> None:
    ledgers = Ledgers(asked=2)
    assert await read(ledgers, 0, 1, 9) == [b"0", b"1", b"9"]
    assert ledgers.runs == [(0, 1), (9, 9)]
    assert (ledgers.opened, ledgers.closed) == (1, 1)


async def test_an_entry_may_be_asked_for_twice() -> None:
    assert await read(Ledgers(asked=1), 0, 1, 1) == [b"0", b"1", b"1"]


async def test_a_run_that_was_cut_short_goes_on() -> None:
    ledgers = Ledgers(asked=1, cut_to=2)
    assert await read(ledgers, 0, 1, 2) == [b"0", b"1", b"2"]
    assert ledgers.runs == [(0, 2), (2, 2)]


async def test_nothing_at_once_is_done_at_once() -> None:
    """As where a log that is published to has nothing left to recover."""
    driver = Driver(MemoryMetaStore(MemoryTree()), Ledgers(asked=1))  # type: ignore[arg-type]
    assert await driver.perform(Together(())) == []
