"""The shards of a stream as a group sees them: which may be consumed yet. A shard that was split or
merged comes before what it became: parents first, by what their leases say, never by a listing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupShard:
    """`parents` that the stream does not have any more were truncated away: they block nobody."""

    name: str
    parents: tuple[str, ...] = ()
    weight: int = 1


class ShardGraph:
    def __init__(self, shards: Iterable[GroupShard] = (), finished: Iterable[str] = ()) -> None:
        self.shards = {each.name: each for each in shards}
        self.finished = set(finished)

    def update(self, shards: Iterable[GroupShard]) -> None:
        self.shards = {each.name: each for each in shards}

    def finish(self, shard: str) -> None:
        """Its lease says that it is at its end: which stays so."""
        self.finished.add(shard)

    def is_blocked(self, shard: str) -> bool:
        """A parent is not done."""
        return bool(self.blockers(shard))

    def blockers(self, shard: str) -> tuple[str, ...]:
        return tuple(
            parent
            for parent in self.shards[shard].parents
            if parent in self.shards and parent not in self.finished
        )

    def consumable(self) -> list[GroupShard]:
        """By name."""
        return [
            self.shards[name]
            for name in sorted(self.shards)
            if name not in self.finished and not self.is_blocked(name)
        ]

    def children(self, shard: str) -> list[str]:
        return sorted(name for name, each in self.shards.items() if shard in each.parents)

    @property
    def is_done(self) -> bool:
        """All of them are, and there is at least one."""
        return bool(self.shards) and self.finished >= self.shards.keys()
