"""How long it took to become the writer, step by step: `writer.takeover_times`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TakeoverTimes:
    """Milliseconds from the call to an open writer. `detect` to `seam` follow each other, and
    `total_ms` is their sum; `birth_ms` is a part of them. A log that was left sealed needs no
    claim, and nothing to fence: these are 0, and its one compare-and-set is the commit."""

    detect_ms: float = 0.0
    """Until the log meta was read, the takeover policy let us in (waiting included), and it was
    proven that we can finish: the ledgers of the log fit, and our own one is born."""
    claim_ms: float = 0.0
    """The compare-and-set that gives us the epoch."""
    fence_ms: float = 0.0
    """Until the ledgers of the one before take no more: of those at once, the slowest."""
    recover_ms: float = 0.0
    """Until they are closed and read. Of a log that was left sealed: until our own ledger is
    born."""
    commit_ms: float = 0.0
    """The compare-and-set that lists our ledger."""
    seam_ms: float = 0.0
    """Until the first entry of our ledger can be read by anyone: the writer is open."""
    birth_ms: float = 0.0
    """Making our own ledger; 0 when a standby had it ready."""

    @property
    def total_ms(self) -> float:
        steps = (self.detect_ms, self.claim_ms, self.fence_ms, self.recover_ms)
        return sum(steps) + self.commit_ms + self.seam_ms

    def __str__(self) -> str:
        steps = (f"{f.name.removesuffix('_ms')} {getattr(self, f.name):.1f}" for f in _FIELDS)
        return f"{self.total_ms:.1f} ms: " + ", ".join(steps)


_FIELDS = dataclasses.fields(TakeoverTimes)


class Stopwatch:
    """Times one takeover. A step that is taken again, after a conflict, counts again."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
        self.began_s = now_s()
        self._lap_s = self.began_s
        self._ms: dict[str, float] = {}

    def lap(self, step: str) -> None:
        """All the time since the lap before belongs to `step`."""
        now_s = self.now_s()
        self._add(step, now_s - self._lap_s)
        self._lap_s = now_s

    def fenced(self, at_s: float) -> None:
        """Splits the lap that runs: up to `at_s` it was the fence."""
        at_s = max(at_s, self._lap_s)
        self._add("fence", at_s - self._lap_s)
        self._lap_s = at_s

    def beside(self, step: str, seconds: float) -> None:
        self._add(step, seconds)

    def _add(self, step: str, seconds: float) -> None:
        name = f"{step}_ms"
        self._ms[name] = self._ms.get(name, 0.0) + seconds * 1000

    @property
    def times(self) -> TakeoverTimes:
        return TakeoverTimes(**self._ms)
