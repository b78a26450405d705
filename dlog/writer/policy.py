"""When to rotate: advice only. Rotating at any other moment, or never, is just as safe."""

from __future__ import annotations

import enum
from typing import Protocol

from dlog import limits
from dlog.options import LogOptions


class Advice(enum.Enum):
    STAY = "stay"
    PREPARE = "prepare"  # make the next ledger ready, ahead of need
    ROTATE = "rotate"
    WAIT = "wait"  # the hard limit: nothing more goes into this segment


class RotationPolicy(Protocol):
    def advise(self, *, segment_bytes: int, entries: int, age_s: float) -> Advice:
        """About a segment that holds messages."""
        ...


class BySizeAndAge:
    """The log's own limits: prepare at 80 %, rotate at the limit, wait at twice the limit."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options

    def advise(self, *, segment_bytes: int, entries: int, age_s: float) -> Advice:
        used = max(
            segment_bytes / self._options.segment_bytes,
            entries / limits.SEGMENT_ENTRIES_MAX,
        )
        if used >= limits.SEGMENT_HARD_FACTOR:
            return Advice.WAIT
        used = max(used, age_s / self._options.segment_age_s)
        if used >= 1:
            return Advice.ROTATE
        return Advice.PREPARE if used >= limits.ROTATE_AHEAD else Advice.STAY
