"""Short ways to fill ledgers from our side, and to say what is in them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from dlog.ledger.store import Appender, LedgerReader, LedgerSpec, LedgerStore
from dlog.limits import KIB, MIB
from dlog.testing.conformance.ledger_tools import Heard
from integration.interop.java_ledgers import Payload, bytes_of

SIZES = [0, 1, KIB, 4 * KIB - 1, 4 * KIB, 4 * KIB + 1, MIB]
ANY_BYTES = 64 * MIB


class Ours:
    """An appender of ours with its listener."""

    def __init__(self, appender: Appender) -> None:
        self.appender = appender
        self.ledger_id = appender.ledger_id
        self.heard = Heard()
        appender.listen(self.heard)
        self._next = 0

    async def birth(self, payload: Payload) -> None:
        await self.appender.birth([bytes_of(payload)])
        self._next = 1

    def send(self, *payloads: Payload) -> int:
        """The last one's id."""
        for payload in payloads:
            self._next = self.appender.submit([bytes_of(payload)]) + 1
        return self._next - 1

    async def add(self, *payloads: Payload) -> int:
        """All at once, until all are confirmed; the last one's id."""
        last = self.send(*payloads)
        await self.heard.until_confirmed(last)
        return last

    async def publish(self) -> int:
        """Until others can read all that is confirmed."""
        last = self.heard.confirmed
        self.appender.publish()
        await self.heard.until(lambda: self.heard.published >= last)
        return last


async def new(store: LedgerStore, *, digest: str = "crc32c") -> Ours:
    return Ours(await store.create(LedgerSpec(digest=digest, custom={"who": b"ours"})))


async def closed(
    store: LedgerStore, payloads: Sequence[Payload], *, digest: str = "crc32c"
) -> tuple[int, int]:
    """A closed ledger with these: its id and its last entry."""
    ours = await new(store, digest=digest)
    await ours.birth(payloads[0])
    last = await ours.add(*payloads[1:]) if len(payloads) > 1 else 0
    end = await ours.appender.close()
    assert (end.last_entry, end.bytes) == (last, sum(len(bytes_of(each)) for each in payloads))
    return ours.ledger_id, last


@contextlib.asynccontextmanager
async def reading(store: LedgerStore, ledger_id: int) -> AsyncIterator[LedgerReader]:
    reader = await store.open(ledger_id)
    try:
        yield reader
    finally:
        await reader.close()


async def payloads_in(store: LedgerStore, ledger_id: int) -> list[bytes]:
    """Everything that may be read of it now."""
    async with reading(store, ledger_id) as reader:
        last = await reader.last_readable()
        found: list[bytes] = []
        while len(found) <= last:
            found += map(bytes, await reader.read(len(found), last, bytes_max=ANY_BYTES))
    return found
