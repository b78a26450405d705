"""Looks after one reader from its side: says why it waits, warns when that lasts too long, and
counts. What a wait means, `reasons` decides; since when it lasts is known here: since the place, or
what is waited for there, last changed."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlog.awaited import longest, metadata_away
from dlog.drive import Stores
from dlog.errors import DlogError
from dlog.ledger.store import Explains
from dlog.metrics import NO_METRICS
from dlog.options import ReaderOptions
from dlog.reader.lag import Lag
from dlog.reader.message import MessageBatch
from dlog.reader.meter import ReaderMeter
from dlog.reader.reasons import ReaderFacts, why_reader
from dlog.reason import Reason, ReasonCode, Wait
from dlog.stalls import StallWatch

if TYPE_CHECKING:
    from dlog.reader.feed import Feed

_log = logging.getLogger("dlog.reader")

LAG_EVERY_S = 10.0  # it costs a look at the list and a question to the ledger store


class ReaderWatch:
    def __init__(self, name: str, stores: Stores, options: ReaderOptions) -> None:
        self._stores = stores
        self._options = options
        self._clock = stores.clock
        self._feed: Feed | None = None
        self._spell: Any = None  # what is waited for, and where
        self._since_s = stores.clock.monotonic_s()
        self._messages = self._bytes = 0  # of entries read
        self.meter: ReaderMeter | None = None
        if stores.metrics is not NO_METRICS:
            self.meter = ReaderMeter(stores.metrics, name)
        self._lagging: asyncio.Task[None] | None = None
        self._stalls = StallWatch(
            f"log {name}: a reader",
            self.wait,
            after_ms=options.stall_after_ms,
            clock=stores.clock,
            log=_log,
            on_change=self._on_stall,
        )

    # --- what the feed tells

    def begin(self, feed: Feed) -> None:
        """This is the feed that counts now."""
        if self._feed is not None:
            self._feed.watch = None
        self._feed, feed.watch = feed, self
        self._spell = None
        self.goes_on(feed)
        self._stalls.start()

    def reconfigure(self, options: ReaderOptions) -> None:
        self._options = options
        self._stalls.reconfigure(options.stall_after_ms)

    def goes_on(self, feed: Feed) -> None:
        """Something is about to be asked for. The same as before, at one place, is one wait."""
        core = feed.core
        blocked = core.blocked or core.recovering
        # Trouble is one wait, whatever is tried meanwhile.
        state = core.state if core.trouble is None else core.trouble.code
        spell = (state, core.place, None if blocked is None else blocked.code, feed.is_full)
        if spell != self._spell:
            self._spell = spell
            self._since_s = self._clock.monotonic_s()

    def read(self, batches: Sequence[MessageBatch], ahead_bytes: int) -> None:
        self._messages += sum(map(len, batches))
        self._bytes += sum(batch.bytes for batch in batches)
        if self.meter is not None:
            self.meter.read(batches, ahead_bytes)

    def taken(self) -> None:
        if self.meter is not None:
            self.meter.taken()

    def measure_lag(self, lag: weakref.WeakMethod[Callable[[], Awaitable[Lag]]]) -> None:
        """From time to time, from now on, if anybody wants to know; for as long as the reader is
        held by somebody else."""
        if self.meter is not None and self._lagging is None:
            self._lagging = asyncio.get_running_loop().create_task(self._tell_lag(lag))

    async def _tell_lag(self, lag: weakref.WeakMethod[Callable[[], Awaitable[Lag]]]) -> None:
        while self.meter is not None:
            ask = lag()
            if ask is None:
                return
            try:
                found = await ask()
            except DlogError as error:  # the level stays where it was
                _log.debug("the lag is not known: %s", error)
            else:
                if self.meter is not None:
                    self.meter.lags(found)
            del ask
            await asyncio.sleep(LAG_EVERY_S)

    def stop(self) -> None:
        """Idempotent."""
        self._stalls.stop()
        if self._lagging is not None:
            self._lagging.cancel()
        if self.meter is not None:
            self.meter.closed()
            self.meter = None

    async def close(self) -> None:
        self.stop()
        if self._lagging is not None:
            await asyncio.gather(self._lagging, return_exceptions=True)

    # --- what is in the way

    @property
    def message_bytes(self) -> float | None:
        """What a message took so far, its part of the entry."""
        return self._bytes / self._messages if self._messages else None

    def why(self, *, has_messages: bool, is_closed: bool) -> Reason | None:
        wait = self.wait(has_messages=has_messages, is_closed=is_closed)
        if wait is None:
            return None
        return wait.told(now_s=self._clock.monotonic_s(), now_us=self._clock.wall_us())

    def wait(self, *, has_messages: bool = False, is_closed: bool = False) -> Wait | None:
        feed = self._feed
        if feed is None:
            return None
        self.goes_on(feed)
        wait = why_reader(
            feed.core,
            ReaderFacts(
                ended_by=feed.error,
                is_closed=is_closed,
                ahead_bytes=feed.ahead_bytes,
                ahead_bytes_max=self._options.read_ahead_bytes,
                is_full=feed.is_full,
                has_messages=has_messages or feed.has_messages,
                awaited=longest(feed.driver.awaited.values()),
            ),
        )
        if wait is None:
            return None
        wait = wait.since(self._since_s)
        if wait.code is ReasonCode.READING and feed.core.trouble is not None:
            wait = wait.because(metadata_away(self._stores.meta, self._clock))
        return wait.because(self._of_ledger(feed, wait))

    def _of_ledger(self, feed: Feed, wait: Wait) -> Wait | None:
        ledger_id = wait.evidence.get("ledger_id")
        if wait.code is not ReasonCode.READING or not isinstance(ledger_id, int):
            return None
        ledger = feed.driver.opened(ledger_id)
        return ledger.why() if isinstance(ledger, Explains) else None

    def _on_stall(self, wait: Wait | None) -> None:
        if self.meter is not None:
            self.meter.stalled(wait)
