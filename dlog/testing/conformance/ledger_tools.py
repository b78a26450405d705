"""What the checks of a LedgerStore are written with: their registry, a listener that remembers, and
short ways to fill and read a ledger."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from dlog.errors import (
    DlogError,
)
from dlog.ledger.store import (
    Appender,
    LedgerReader,
    LedgerSpec,
    LedgerStore,
)
from dlog.limits import MIB

Make = Callable[[], Awaitable[LedgerStore]]
Check = Callable[[Make], Awaitable[None]]

ALL: dict[str, Check] = {}

SPEC = LedgerSpec(custom={"application": b"dlog", "token": bytes(range(8))})
LONG_MS = 10_000.0
ANY_BYTES = 64 * MIB
_PATIENCE_S = 20.0


def in_time() -> asyncio.Timeout:
    """Every wait for a fact has this bound."""
    return asyncio.timeout(_PATIENCE_S)


def behaviour(check: Check) -> Check:
    if check.__name__ in ALL:
        raise ValueError(f"two checks have one name: {check.__name__}")
    ALL[check.__name__] = check
    return check


class Heard:
    """A listener that keeps every fact, in order, and the thread it came on."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, int]] = []
        self.threads: set[int] = set()
        self.confirmed = -1
        self.published = -1
        self.failed: DlogError | None = None
        self._changed = asyncio.Event()

    def _hear(self, what: str, entry: int) -> None:
        assert self.failed is None, f"{what} after on_failed"
        self.facts.append((what, entry))
        self.threads.add(threading.get_ident())
        self._changed.set()

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        self._hear("confirmed", last_entry)
        assert last_entry > self.confirmed, "confirmations rise"
        self.confirmed = last_entry

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        self._hear("published", last_entry)
        assert self.published < last_entry <= self.confirmed, "published follows confirmed"
        self.published = last_entry

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        self._hear("failed", -1)
        self.failed = error

    async def until(self, holds: Callable[[], bool]) -> None:
        async with in_time():
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    async def until_failed(self) -> None:
        await self.until(lambda: self.failed is not None)

    async def until_confirmed(self, entry: int) -> None:
        await self.until(lambda: self.confirmed >= entry or self.failed is not None)
        if self.failed is not None:
            raise self.failed


@asynccontextmanager
async def refused(kind: type[DlogError]) -> AsyncIterator[None]:
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected, and nothing was raised")


async def new_ledger(store: LedgerStore) -> tuple[Appender, Heard]:
    appender = await store.create(SPEC)
    heard = Heard()
    appender.listen(heard)
    return appender, heard


async def filled(
    store: LedgerStore, entries: Sequence[bytes], *, publish: bool = True
) -> tuple[Appender, Heard]:
    appender, heard = await new_ledger(store)
    for entry in entries:
        appender.submit([entry])
    await heard.until_confirmed(len(entries) - 1)
    if publish:
        await published(appender, heard)
    return appender, heard


async def published(appender: Appender, heard: Heard) -> None:
    """What is confirmed by now can be read by anybody after this."""
    last_entry = heard.confirmed
    appender.publish()
    await heard.until(lambda: heard.published >= last_entry)


async def read_all(reader: LedgerReader, last_entry: int) -> list[bytes]:
    entries: list[bytes] = []
    while len(entries) <= last_entry:
        run = await reader.read(len(entries), last_entry, bytes_max=ANY_BYTES)
        assert run, "a read returns at least one entry"
        entries += map(bytes, run)
    return entries


async def ids_of(store: LedgerStore) -> list[int]:
    return [ledger_id async for ledger_id in store.scan_ids()]


def numbered(count: int) -> list[bytes]:
    return [b"entry %d" % number for number in range(count)]
