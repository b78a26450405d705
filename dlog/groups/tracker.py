"""How far a shard is done, between the program that says so and the store that keeps it.

A checkpoint never goes back and never passes what was delivered. One that is to be kept at once is
written at once; any other waits in memory, the newest of them, until the next flush, and whoever
gives the shard up writes it first. One write is under way at a time.
"""

from __future__ import annotations

from dlog.errors import ConfigError
from dlog.groups.leases import Checkpoint
from dlog.ids import Position


class CheckpointTracker:
    def __init__(self, start: Checkpoint | None, flush_s: float, now_s: float) -> None:
        self.stored = start
        self.newest = start
        self._delivered_seq = 0 if start is None else start.next_seq
        self._log_uid = None if start is None else start.position.log_uid
        self._flush_s = flush_s
        self._flushed_s = now_s
        self._under_way: Checkpoint | None = None
        self._at_once = False

    # --- facts

    def delivered(self, position: Position) -> None:
        """All before it was handed to the program."""
        if position.log_uid != self._log_uid or position.next_seq > self._delivered_seq:
            self._log_uid, self._delivered_seq = position.log_uid, position.next_seq

    def checkpoint(self, checkpoint: Checkpoint, *, at_once: bool) -> None:
        """By the program: all before it is done. One that is behind the newest changes nothing."""
        position = checkpoint.position
        if position.log_uid != self._log_uid or position.next_seq > self._delivered_seq:
            raise ConfigError(
                f"a checkpoint at {position.next_seq} is behind what was delivered, up to "
                f"{self._delivered_seq}"
            )
        if not checkpoint.is_before(self.newest):
            self.newest = checkpoint
        self._at_once |= at_once

    def sent(self) -> Checkpoint:
        """It goes to the store now."""
        assert self.newest is not None
        self._under_way = self.newest
        self._at_once = False
        return self._under_way

    def saved(self, now_s: float) -> None:
        self.stored, self._under_way = self._under_way, None
        self._flushed_s = now_s

    def not_saved(self, *, at_once: bool) -> None:
        self._under_way = None
        self._at_once |= at_once

    # --- questions

    def is_under_way(self, checkpoint: Checkpoint) -> bool:
        return self._under_way is checkpoint

    @property
    def is_saving(self) -> bool:
        return self._under_way is not None

    @property
    def unsaved(self) -> Checkpoint | None:
        """What the store does not have yet."""
        return None if self.newest is self.stored else self.newest

    def is_due(self, now_s: float) -> bool:
        if self.is_saving or self.unsaved is None:
            return False
        return self._at_once or now_s >= self._flushed_s + self._flush_s

    def due_s(self) -> float | None:
        if self.is_saving or self.unsaved is None:
            return None
        return self._flushed_s if self._at_once else self._flushed_s + self._flush_s
