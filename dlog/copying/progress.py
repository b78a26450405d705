"""How far a copy came: what its caller is told on the way, and at the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """Everything before `next_seq` is in the copy, durably."""

    log: str  # of the copy
    first_seq: int  # that the copy begins with
    resumed_seq: int  # where this run went on
    next_seq: int
    end_seq: int  # behind what the other log had when this run began; with `follow` there is more
    bytes: int  # copied by this run, as they are stored

    @property
    def messages(self) -> int:
        """Copied by this run."""
        return self.next_seq - self.resumed_seq
