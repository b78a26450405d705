"""Who fills an appender: so many entries, never more than so many unconfirmed. It hears what is
confirmed in runs and refills once for each, as a writer's window does."""

from __future__ import annotations

import asyncio
import time

from dlog.errors import DlogError
from dlog.ledger.store import Appender

GAP_TOLD_S = 0.010  # shorter silences between confirmations are not worth a line


class Pump:
    """`payloads` are used in a circle. `gaps` are pairs: when a silence ended (on the clock that
    all processes share), and how long it was."""

    def __init__(self, appender: Appender, payloads: list[bytes], *, outstanding: int = 1) -> None:
        self._appender = appender
        self._payloads = payloads
        self._outstanding = outstanding
        self._loop = asyncio.get_running_loop()
        self._wanted = 0  # entries that shall have been sent
        self._waking = False
        self._moved: asyncio.Future[None] | None = None
        self._heard_s: float | None = None
        self._published = -1
        self.sent = 0
        self.confirmed = -1  # the last entry
        self.confirmed_ns = 0
        self.failure: DlogError | None = None
        self.gaps: list[tuple[float, float]] = []

    def payload_of(self, entry_id: int) -> bytes:
        return self._payloads[entry_id % len(self._payloads)]

    def begin(self, sent: int) -> None:
        """So many were sent and confirmed by somebody else: the birth."""
        self.sent = self._wanted = sent
        self.confirmed = sent - 1

    def keep_gaps(self) -> None:
        self._heard_s = time.monotonic()

    def send(self, count: int) -> None:
        """So many more."""
        self._wanted += count
        self._refill()

    def stop(self) -> None:
        """Send nothing more; what was sent may still come."""
        self._wanted = self.sent

    async def drained(self) -> None:
        """All that was wanted is confirmed; raises what ended the appender."""
        await self.ended()
        if self.failure is not None:
            raise self.failure.again()

    async def ended(self) -> None:
        """All that was wanted is confirmed, or nothing more will be."""
        while self.failure is None and self.confirmed < self._wanted - 1:
            self._moved = self._loop.create_future()
            await self._moved

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        self.confirmed = last_entry
        self.confirmed_ns = time.monotonic_ns()
        if self._heard_s is not None:
            now_s = self.confirmed_ns / 1e9
            if now_s - self._heard_s >= GAP_TOLD_S:
                self.gaps.append((now_s, now_s - self._heard_s))
            self._heard_s = now_s
        if self.sent < self._wanted:
            if not self._waking:
                self._waking = True
                self._loop.call_soon(self._refill)
        elif last_entry == self._wanted - 1:
            self._wake()

    async def published(self, last_entry: int) -> None:
        """All up to here can be read by anyone, or never will be."""
        while self.failure is None and self._published < last_entry:
            self._moved = self._loop.create_future()
            await self._moved

    def on_published(self, ledger_id: int, last_entry: int) -> None:
        self._published = last_entry
        self._wake()

    def on_failed(self, ledger_id: int, error: DlogError) -> None:
        self.failure = error
        self._wake()

    def _refill(self) -> None:
        self._waking = False
        if self.failure is not None:
            return
        end = min(self._wanted, self.confirmed + 1 + self._outstanding)
        payloads, submit = self._payloads, self._appender.submit
        size = len(payloads)
        for entry_id in range(self.sent, end):
            submit((payloads[entry_id % size],))
        self.sent = max(self.sent, end)

    def _wake(self) -> None:
        if self._moved is not None and not self._moved.done():
            self._moved.set_result(None)


class Published(Pump):
    """Publishes whatever is confirmed, at once."""

    def on_confirmed(self, ledger_id: int, last_entry: int) -> None:
        super().on_confirmed(ledger_id, last_entry)
        self._appender.publish()
