"""What one reader measures of itself, where somebody wants it measured: once for each run of
entries, never once for each message, and told once a second."""

from __future__ import annotations

from collections.abc import Sequence

from dlog.metrics import Labels, Metrics, catalogue
from dlog.metrics.flusher import Flusher
from dlog.reader.lag import Lag
from dlog.reader.message import MessageBatch
from dlog.reason import Wait


class ReaderMeter:
    def __init__(self, metrics: Metrics, log: str) -> None:
        self._metrics = metrics
        self._labels: Labels = {"log": log}
        self._handle: Labels = {"log": log, "role": "reader"}
        self._flusher = Flusher(self._flush)
        # Since the last flush:
        self._messages = self._bytes = self._entries = self._ahead_bytes = 0

    def read(self, batches: Sequence[MessageBatch], ahead_bytes: int) -> None:
        for batch in batches:
            self._messages += len(batch)
            self._bytes += batch.bytes
        self._entries += len(batches)
        self._ahead_bytes = ahead_bytes
        self._flusher.soon()

    def taken(self) -> None:
        self._ahead_bytes = 0
        self._flusher.soon()

    def _flush(self) -> None:
        metrics, labels = self._metrics, self._labels
        metrics.count(catalogue.READER_MESSAGES.name, self._messages, labels)
        metrics.count(catalogue.READER_BYTES.name, self._bytes, labels)
        metrics.count(catalogue.READER_ENTRIES.name, self._entries, labels)
        self._messages = self._bytes = self._entries = 0
        metrics.level(catalogue.READER_READ_AHEAD.name, self._ahead_bytes, self._handle)

    def lags(self, lag: Lag) -> None:
        level, handle = self._metrics.level, self._handle
        level(catalogue.READER_LAG_MESSAGES.name, lag.messages, handle)
        level(catalogue.READER_LAG_BYTES.name, lag.bytes, handle)
        level(catalogue.READER_LAG_SECONDS.name, lag.seconds, handle)

    def stalled(self, wait: Wait | None) -> None:
        """None: it goes on."""
        metrics, labels = self._metrics, self._labels
        metrics.level(catalogue.READER_STALLED.name, 0 if wait is None else 1, self._handle)
        if wait is not None:
            reason = {**labels, "reason": wait.code.value}
            metrics.count(catalogue.READER_STALLS.name, 1, reason)

    def closed(self) -> None:
        self._flusher.now()
        self._metrics.forget(self._handle)
