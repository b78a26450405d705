"""A process of its own that appends to embedded ledgers and prints what it was told.

    child.py DIRECTORY append                 appends for ever, one entry at a time
    child.py DIRECTORY live POINT SIDE SKIP   one ledger's whole life; killed at a crash point

Lines: `ledger N`, `confirmed N`, `published N NANOSECONDS`, `failed CLASS`, `closed LAST`, `done`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from dlog import trace
from dlog.errors import DlogError
from dlog.ledger.embedded import EmbeddedLedgerStore
from dlog.ledger.store import LedgerSpec
from dlog.meta.sqlite import SqliteMetaStore


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


class Told:
    def __init__(self) -> None:
        self.last = -1
        self.failed = False
        self.changed = asyncio.Event()

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        say(f"confirmed {last_entry}")
        self.last = last_entry
        self.changed.set()

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        say(f"published {last_entry} {time.monotonic_ns()}")

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        say(f"failed {type(error).__name__}")
        self.failed = True
        self.changed.set()

    async def until(self, entry: int) -> None:
        while self.last < entry and not self.failed:
            self.changed.clear()
            await self.changed.wait()


def payload(entry: int) -> bytes:
    return b"entry %d of the child " % entry * (entry % 5)


async def append(store: EmbeddedLedgerStore) -> None:
    appender = await store.create(LedgerSpec())
    told = Told()
    appender.listen(told)
    say(f"ledger {appender.ledger_id}")
    entry = -1
    while not told.failed:
        entry = appender.submit([payload(entry + 1)])
        await told.until(entry)
        appender.publish()


async def live(store: EmbeddedLedgerStore) -> None:
    appender = await store.create(LedgerSpec())
    told = Told()
    appender.listen(told)
    say(f"ledger {appender.ledger_id}")
    await appender.birth([payload(0)])
    for entry in range(1, 6):
        appender.submit([payload(entry)])
        await told.until(entry)
        appender.publish()
    appender.abandon()
    closed = await store.recover(appender.ledger_id)
    say(f"closed {closed.last_entry}")


async def main(directory: Path, mode: str) -> None:
    meta = SqliteMetaStore(directory)
    store = EmbeddedLedgerStore(directory, meta)
    await (append if mode == "append" else live)(store)
    await store.close()
    await meta.close()
    say("done")


def die_at(point: str, side: str, skip: int) -> None:
    def on_point(reached: str, at: str) -> None:
        nonlocal skip
        if (reached, at) == (point, side):
            skip -= 1
            if skip < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    trace.listen(on_point)


if __name__ == "__main__":
    if sys.argv[2] == "live":
        die_at(sys.argv[3], sys.argv[4], int(sys.argv[5]))
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
