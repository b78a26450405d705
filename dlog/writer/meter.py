"""What one writer measures of itself, where somebody wants it measured. Called once for each turn
of the loop that sent or acknowledged something, never once for each message; what is counted there
is told once a second."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from dlog.metrics import Labels, Metrics, catalogue
from dlog.metrics.flusher import Flusher
from dlog.reason import Wait
from dlog.writer.batch import Batch
from dlog.writer.times import TakeoverTimes

TIMES_MAX = 4_096  # of entries, gathered before they are told


class WriterMeter:
    def __init__(self, metrics: Metrics, log: str, now_s: Callable[[], float]) -> None:
        self._metrics = metrics
        self._labels: Labels = {"log": log}
        self._handle: Labels = {"log": log, "role": "writer"}
        self._now_s = now_s
        self._flusher = Flusher(self._flush)
        # Since the last flush:
        self._messages = self._bytes = self._entries = self._acked = 0
        self._taken_bytes = 0
        self._took_s: list[float] = []

    def opened(self, epoch: int, times: TakeoverTimes, window_bytes: int) -> None:
        metrics, labels = self._metrics, self._labels
        metrics.count(catalogue.TAKEOVERS.name, 1, labels)
        metrics.level(catalogue.WRITER_EPOCH.name, epoch, self._handle)
        self.window(window_bytes)
        steps = {field.name: getattr(times, field.name) for field in dataclasses.fields(times)}
        for name, step_ms in (*steps.items(), ("total_ms", times.total_ms)):
            step = {**labels, "step": name.removesuffix("_ms")}
            metrics.observe(catalogue.TAKEOVER_STEP.name, step_ms / 1000, step)

    def window(self, window_bytes: int) -> None:
        self._metrics.level(catalogue.WRITER_WINDOW.name, window_bytes, self._handle)

    def sent(self, batches: list[Batch]) -> None:
        for batch in batches:
            self._messages += len(batch.values)
            self._bytes += batch.bytes
        self._entries += len(batches)
        self._flusher.soon()

    def acked(self, batches: list[Batch], taken_bytes: int) -> None:
        """`taken_bytes` are left."""
        now_s = self._now_s()
        for batch in batches:
            self._acked += len(batch.values)
            self._took_s.append(now_s - batch.sent_s)
        self._taken_bytes = taken_bytes
        self._flusher.soon()
        if len(self._took_s) >= TIMES_MAX:
            self._flusher.now()

    def _flush(self) -> None:
        metrics, labels = self._metrics, self._labels
        for name, n in (
            (catalogue.WRITER_MESSAGES.name, self._messages),
            (catalogue.WRITER_BYTES.name, self._bytes),
            (catalogue.WRITER_ENTRIES.name, self._entries),
            (catalogue.WRITER_ACKED.name, self._acked),
        ):
            metrics.count(name, n, labels)
        self._messages = self._bytes = self._entries = self._acked = 0
        metrics.level(catalogue.WRITER_IN_FLIGHT.name, self._taken_bytes, self._handle)
        took_s, self._took_s = self._took_s, []
        for each_s in took_s:
            metrics.observe(catalogue.WRITER_APPEND.name, each_s, labels)

    def failed(self, batches: list[Batch]) -> None:
        messages = sum(len(batch.values) for batch in batches)
        self._metrics.count(catalogue.WRITER_FAILED.name, messages, self._labels)

    def rotated(self) -> None:
        self._metrics.count(catalogue.WRITER_ROTATIONS.name, 1, self._labels)

    def stalled(self, wait: Wait | None) -> None:
        """None: it goes on."""
        metrics, labels = self._metrics, self._labels
        metrics.level(catalogue.WRITER_STALLED.name, 0 if wait is None else 1, self._handle)
        if wait is not None:
            reason = {**labels, "reason": wait.code.value}
            metrics.count(catalogue.WRITER_STALLS.name, 1, reason)

    def closed(self) -> None:
        self._flusher.now()
        self._metrics.forget(self._handle)
