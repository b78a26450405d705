"""What a worker has under way: one errand for a shard at a time, what failed until it is tried
again, shards that are on their way to it, and whom it asks to look at shards."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from dlog.groups.asks import OfShard, Ring, Save, Take
from dlog.groups.store import Held
from dlog.groups.view import Move, WorkerId


@dataclass(slots=True)
class Coming:
    """A shard that we announced ourselves for."""

    victim: WorkerId
    since_s: float
    look_s: float
    is_told: bool = False  # by our node


class Underway:
    def __init__(self) -> None:
        self.busy: dict[str, OfShard] = {}
        self.retry_s: dict[str, float] = {}

    def is_free(self, shard: str, now_s: float) -> bool:
        return shard not in self.busy and now_s >= self.retry_s.get(shard, 0.0)

    def answered(self, shard: str) -> None:
        self.busy.pop(shard, None)
        self.retry_s.pop(shard, None)

    def due_s(self, due_s: float, wanted: Iterable[tuple[str, float]]) -> float:
        """The first of what is wanted, by shard and time, if it is before `due_s`."""
        for shard, at_s in wanted:
            if at_s < due_s and shard not in self.busy:
                due_s = min(due_s, max(at_s, self.retry_s.get(shard, 0.0)))
        return due_s

    def moving(self) -> int:
        """Errands, saves not counted: they wait for nobody."""
        return sum(not isinstance(each, Save) for each in self.busy.values())


class Rings:
    """What one worker is asked at a time goes to it in one piece."""

    def __init__(self) -> None:
        self._wanted: dict[WorkerId, dict[str, None]] = {}
        self._ringing: set[WorkerId] = set()

    def want(self, worker: WorkerId, shard: str) -> None:
        self._wanted.setdefault(worker, {})[shard] = None

    def planned(self, moves: Iterable[Move], unblocked: Container[str]) -> None:
        """Who takes what may be taken from now on."""
        for move in moves:
            if move.shard in unblocked:
                self.want(move.taker, move.shard)

    def taken(self, take: Take, answer: object) -> None:
        """Who was fenced may be at work, and not know."""
        if take.over is not None and isinstance(answer, Held):
            self.want(take.over, take.shard)

    def due(self) -> list[Ring]:
        if not self._wanted:
            return []
        workers = [each for each in self._wanted if each not in self._ringing]
        self._ringing.update(workers)
        return [Ring(each, tuple(self._wanted.pop(each))) for each in workers]

    def answered(self, worker: WorkerId) -> None:
        self._ringing.discard(worker)
