"""Looks after one engine from its side: says why it waits, warns when that lasts too long, and
counts. It collects what the driver and the stores know; what it means, `reasons` decides."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dlog.awaited import longest, metadata_away
from dlog.drive import Driver, Stores
from dlog.errors import DlogError
from dlog.ledger.store import Explains, ExplainsRecovery
from dlog.metrics import NO_METRICS
from dlog.reason import Reason, ReasonCode, Wait
from dlog.stalls import StallWatch
from dlog.writer.duties import Duty
from dlog.writer.meter import WriterMeter
from dlog.writer.reasons import DutyFacts, WriterFacts, why_writer

if TYPE_CHECKING:
    from dlog.writer.engine import Engine

_log = logging.getLogger("dlog.writer")

_DUTIES = {
    Duty.HEAL: (ReasonCode.HEALING, "healing"),
    Duty.ROTATE: (ReasonCode.ROTATION, "a rotation"),
    Duty.PREPARE: (ReasonCode.PREPARATION, "the next segment"),
    Duty.NUMBERS: (ReasonCode.NUMBERING, "the first number"),
    Duty.OPTIONS: (ReasonCode.NEW_OPTIONS, "telling the list the log's new options"),
    Duty.RETAIN: (ReasonCode.RETENTION, "retention"),
}
# Of these an appender of ours may know more.
_SENT = frozenset({ReasonCode.UNCONFIRMED, ReasonCode.UNPUBLISHED, ReasonCode.WINDOW_FULL})
_ASKED = frozenset({ReasonCode.UNCONFIRMED, ReasonCode.LEDGER_CREATION})


class WriterWatch:
    def __init__(self, engine: Engine, driver: Driver, stores: Stores) -> None:
        self._engine = engine
        self._driver = driver
        self._stores = stores
        self.meter: WriterMeter | None = None
        if stores.metrics is not NO_METRICS:
            self.meter = WriterMeter(stores.metrics, engine.name, stores.clock.monotonic_s)
        self._stalls = StallWatch(
            f"log {engine.name}: the writer",
            self.wait,
            after_ms=engine.options.stall_after_ms,
            clock=stores.clock,
            log=_log,
            on_change=self._on_stall,
        )
        self._duty: Duty | None = None  # under way
        self._failed: tuple[Duty, DlogError] | None = None  # the last one, and it will be again
        self._tries = 0
        self._since_s: float | None = None  # the duty was first begun, and is not done
        self._is_open = False

    # --- what the engine tells

    def start(self) -> None:
        self._stalls.start()

    def stop(self) -> None:
        """Idempotent."""
        self._stalls.stop()
        if self.meter is not None:
            self.meter.closed()
            self.meter = None

    def reconfigure(self) -> None:
        """The engine has other options."""
        options = self._engine.options
        self._stalls.reconfigure(options.stall_after_ms)
        if self.meter is not None and self._is_open:
            self.meter.window(options.window_bytes)

    def opened(self) -> None:
        self._is_open = True
        engine = self._engine
        if self.meter is not None:
            window_bytes = engine.options.window_bytes
            self.meter.opened(engine.core.epoch, engine.takeover_times, window_bytes)

    def began(self, duty: Duty) -> None:
        if self._since_s is None or self._failed is None or self._failed[0] is not duty:
            self._since_s = self._stores.clock.monotonic_s()
        self._duty = duty

    def failed(self, duty: Duty, error: DlogError) -> None:
        self._failed = duty, error
        self._tries += 1

    def done(self, *, rotated: bool) -> None:
        self._failed, self._tries, self._since_s = None, 0, None
        if rotated and self.meter is not None:
            self.meter.rotated()

    def rests(self) -> None:
        """No duty is under way any more."""
        self._duty = None

    # --- what is in the way

    def in_the_way(self) -> DlogError | None:
        """What keeps the duty at hand from being done, as far as it was told."""
        met = self._driver.in_the_way if self._duty is not None else None
        return met or (None if self._failed is None else self._failed[1])

    def why(self) -> Reason | None:
        wait, clock = self.wait(), self._stores.clock
        if wait is None:
            return None
        return wait.told(now_s=clock.monotonic_s(), now_us=clock.wall_us())

    def wait(self) -> Wait | None:
        core = self._engine._core
        wait = why_writer(core, self._facts())
        if wait is None or core is None:
            return wait
        return wait.because(self._of_appender(wait, _SENT))

    def _facts(self) -> WriterFacts:
        engine = self._engine
        options, batcher = engine.options, engine.batcher
        return WriterFacts(
            taken_bytes=batcher.taken_bytes,
            window_bytes=options.window_bytes,
            window_entries=options.window_entries,
            is_full=batcher.is_full,
            has_pending=bool(batcher.pending),
            lingers=engine.lingers,
            is_opening=not self._is_open,
            duty=self._duty_facts(),
            awaited=self._awaited(),
            metadata_away=metadata_away(self._stores.meta, self._stores.clock),
            not_present=engine._presence.wait(),
        )

    def _duty_facts(self) -> DutyFacts | None:
        duty, error = self._duty, self.in_the_way()
        if duty is None and self._failed is not None:
            duty = self._failed[0]
        if duty is None:
            return None
        code, name = _DUTIES[duty]
        return DutyFacts(code, name, self._since_s, error, self._tries)

    def _awaited(self) -> Wait | None:
        """What procedures wait for, and what the stores know of it."""
        wait = longest(self._driver.awaited.values())
        if wait is None:
            return None
        ledger_id = wait.evidence.get("ledger_id")
        ledgers = self._stores.ledgers
        if wait.code is ReasonCode.LEDGER_RECOVERY and isinstance(ledger_id, int):
            told = (
                ledgers.why_recovery(ledger_id) if isinstance(ledgers, ExplainsRecovery) else None
            )
            if told is not None:
                wait = wait.because(Wait(wait.code, f"it waits {told}", {"recovery_waits": told}))
        return wait.because(self._of_appender(wait, _ASKED))

    def _of_appender(self, wait: Wait, codes: frozenset[ReasonCode]) -> Wait | None:
        ledger_id = wait.evidence.get("ledger_id")
        if wait.code not in codes or not isinstance(ledger_id, int):
            return None
        appender = self._driver.appenders.get(ledger_id)
        return appender.why() if isinstance(appender, Explains) else None

    def _on_stall(self, wait: Wait | None) -> None:
        if self.meter is not None:
            self.meter.stalled(wait)
