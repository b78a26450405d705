"""Which errands of a worker its stores fail now. For people only: nothing is decided by it."""

from __future__ import annotations

import math

from dlog.errors import DlogError, Timeout, Unavailable
from dlog.groups.asks import Ask, OfShard
from dlog.reason import ReasonCode, Wait, told_of


class Troubles:
    """Errands that failed and were not done since. One that is not tried again within `stale_s` is
    not wanted any more."""

    def __init__(self, stale_s: float) -> None:
        self._stale_s = stale_s
        # By errand: since when it fails, when it failed last (inf: it is tried now), with what.
        self._failed: dict[tuple[str, str], tuple[float, float, DlogError]] = {}

    def begun(self, ask: Ask) -> None:
        key = _key(ask)
        if key in self._failed:
            since_s, _, error = self._failed[key]
            self._failed[key] = since_s, math.inf, error

    def answered(self, ask: Ask, error: DlogError | None, now_s: float) -> None:
        """A store that says no has answered."""
        key = _key(ask)
        before = self._failed.pop(key, None)
        if isinstance(error, (Timeout, Unavailable)):
            self._failed[key] = (now_s if before is None else before[0]), now_s, error
        for old in [
            k for k, (_, last_s, _) in self._failed.items() if self._is_stale(last_s, now_s)
        ]:
            del self._failed[old]

    def wait(self, now_s: float) -> Wait | None:
        """For the one that has failed longest. From any thread."""
        failed = [
            (since_s, key, error)
            for key, (since_s, last_s, error) in self._failed.copy().items()
            if not self._is_stale(last_s, now_s)
        ]
        if not failed:
            return None
        since_s, (errand, shard), error = min(failed, key=lambda each: each[:2])
        of_shard = f" of shard {shard!r}" if shard else ""
        sentence = f"the stores fail what the worker asks ({errand}{of_shard}): {error.message}"
        return Wait(ReasonCode.METADATA, sentence, told_of(error), since_s)

    def _is_stale(self, last_s: float, now_s: float) -> bool:
        return now_s - last_s > self._stale_s


def _key(ask: Ask) -> tuple[str, str]:
    return type(ask).__name__.lower(), ask.shard if isinstance(ask, OfShard) else ""
