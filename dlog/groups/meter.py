"""What a worker measures, by shard."""

from __future__ import annotations

from dlog.metrics import Metrics, catalogue


class GroupMeter:
    def __init__(self, metrics: Metrics, group: str) -> None:
        self._metrics = metrics
        self._group = group

    def _labels(self, log: str) -> dict[str, str]:
        return {"group": self._group, "log": log}

    def processed(self, log: str, messages: int) -> None:
        self._metrics.count(catalogue.GROUP_MESSAGES.name, messages, self._labels(log))

    def failed(self, log: str) -> None:
        self._metrics.count(catalogue.GROUP_FAILURES.name, 1, self._labels(log))

    def buried(self, log: str) -> None:
        self._metrics.count(catalogue.GROUP_DEAD_LETTERS.name, 1, self._labels(log))

    def waited(self, log: str) -> None:
        self._metrics.count(catalogue.GROUP_PAUSES.name, 1, self._labels(log))

    def stalled(self, reason: str) -> None:
        labels = {"group": self._group, "reason": reason}
        self._metrics.count(catalogue.GROUP_STALLS.name, 1, labels)

    def shards(self, many: int) -> None:
        self._metrics.level(catalogue.GROUP_SHARDS.name, many, {"group": self._group})

    def forget(self) -> None:
        self._metrics.forget({"group": self._group})
