"""One shard that a worker has: its states, and the order in which it is given up.

    INITIALIZING → PROCESSING → STOPPING → STOP_COMPLETED

STOPPING has an order of its own, and nothing in it is left out, whatever the reason: no more
messages are fetched; what the program is at, it finishes; it is told to shut down, and why; its
last checkpoint is written; the lease is released. Only then may the worker's own renewal end. (Who
ends it first is taken for dead with a checkpoint in its hands, and another one begins where that
would have been.)
"""

from __future__ import annotations

import enum
import math

from dlog.errors import check
from dlog.groups.leases import Checkpoint
from dlog.groups.store import Held
from dlog.groups.tracker import CheckpointTracker
from dlog.ids import Position


class ShardState(enum.Enum):
    INITIALIZING = "initializing"
    PROCESSING = "processing"
    STOPPING = "stopping"
    STOP_COMPLETED = "stop_completed"


class StopStep(enum.Enum):
    """Of STOPPING."""

    FINISHING = "finishing"  # nothing is fetched; what is being processed comes to its end
    SHUTTING_DOWN = "shutting_down"  # the program is told
    FLUSHING = "flushing"  # a checkpoint that was under way before, then the last one
    RELEASING = "releasing"  # with the last checkpoint, in one change


class StopReason(enum.Enum):
    HANDED_OVER = "handed_over"  # to another worker, which asked for it
    LOST = "lost"  # another worker has it: what we write is refused
    ENDED = "ended"  # all of it is done
    CLOSING = "closing"  # this worker ends
    FAILED = "failed"  # the program did


_NEXT = {
    ShardState.INITIALIZING: {ShardState.PROCESSING, ShardState.STOPPING},
    ShardState.PROCESSING: {ShardState.STOPPING},
    ShardState.STOPPING: {ShardState.STOP_COMPLETED},
    ShardState.STOP_COMPLETED: set[ShardState](),
}


class ShardConsumer:
    def __init__(
        self,
        shard: str,
        held: Held,
        flush_s: float,
        now_s: float,
        *,
        prove_s: float | None = None,
    ) -> None:
        self.shard = shard
        self.held = held
        self._prove_s = math.inf if prove_s is None else prove_s
        self._proven_s = now_s
        self.tracker = CheckpointTracker(held.lease.checkpoint, flush_s, now_s)
        self.state = ShardState.INITIALIZING
        self.step: StopStep | None = None
        self.reason: StopReason | None = None
        self.is_fenced = False

    @property
    def epoch(self) -> int:
        return self.held.lease.epoch

    @property
    def start(self) -> Checkpoint | None:
        return self.held.lease.checkpoint

    @property
    def takes_checkpoints(self) -> bool:
        """Not while it is released, with the last one: a later one might be told as kept when an
        earlier try, whose answer was lost, had released it without."""
        return not self.is_fenced and self.step is not StopStep.RELEASING

    def due_s(self) -> float:
        """When there is something to write."""
        if self.step in (StopStep.FLUSHING, StopStep.RELEASING):
            return 0.0
        if self.is_fenced:
            return math.inf  # until its program is at its end: then it has one more try
        tracker = self.tracker
        renewed_s = self._proven_s + self._prove_s
        if tracker.newest is tracker.stored:
            return renewed_s
        saved_s = tracker.due_s()
        return math.inf if saved_s is None else min(saved_s, renewed_s)

    def _become(self, state: ShardState) -> None:
        check(state in _NEXT[self.state], "a shard's states have an order", self.state, state)
        self.state = state

    def initialized(self) -> None:
        """False start: it may be stopping by now."""
        if self.state is ShardState.INITIALIZING:
            self._become(ShardState.PROCESSING)

    def proven(self, held: Held, now_s: float) -> None:
        """It was ours: the store said so."""
        self.held, self._proven_s = held, now_s

    def delivered(self, position: Position) -> None:
        check(
            self.state is ShardState.PROCESSING, "only what is processed is delivered", self.state
        )
        self.tracker.delivered(position)

    def stop(self, reason: StopReason) -> bool:
        """Whether this begins it. A shard that is lost is lost, whatever it stops for."""
        if reason is StopReason.LOST:
            self.is_fenced = True
        if self.state in (ShardState.STOPPING, ShardState.STOP_COMPLETED):
            return False
        self._become(ShardState.STOPPING)
        self.step, self.reason = StopStep.FINISHING, reason
        return True

    def finished_work(self) -> None:
        check(self.step is StopStep.FINISHING, "work is finished once", self.step)
        self.step = StopStep.SHUTTING_DOWN

    def not_ended(self) -> None:
        """Its program refuses to be at the end: the shard is not finished, and fails."""
        if self.step is StopStep.SHUTTING_DOWN and self.reason is StopReason.ENDED:
            self.reason = StopReason.FAILED

    def shut_down(self) -> None:
        check(self.step is StopStep.SHUTTING_DOWN, "a program is shut down once", self.step)
        self.step = StopStep.FLUSHING

    def releasing(self) -> None:
        check(self.step is StopStep.FLUSHING, "a lease is released behind its flush", self.step)
        self.step = StopStep.RELEASING

    def completed(self) -> None:
        check(
            self.step is StopStep.RELEASING or self.is_fenced,
            "a lease is released before its shard is done with",
            self.step,
        )
        self._become(ShardState.STOP_COMPLETED)
