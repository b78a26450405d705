"""What a worker sees of its group: the shards, who has them, and who is alive. A value to plan
with."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

from dlog.errors import FormatError
from dlog.meta.layout import escape, unescape

INCARNATION_CHARS_MAX = 64


class WorkerId(NamedTuple):
    """A name alone could be gone by twice: by a process that came back, or by two at once. So
    whatever a worker owns names its incarnation, too."""

    name: str
    incarnation: str

    def to_node(self) -> str:
        """The name of its node."""
        return f"{_escaped(self.name)}~{self.incarnation}"

    @classmethod
    def from_node(cls, node: str) -> WorkerId:
        name, tilde, incarnation = node.rpartition("~")
        if not tilde or not name or not incarnation or len(incarnation) > INCARNATION_CHARS_MAX:
            raise FormatError(f"{node[:80]!r} is no worker's node")
        return cls(unescape(name), incarnation)

    def __str__(self) -> str:
        return f"{self.name}~{self.incarnation[-8:]}"


@functools.lru_cache(maxsize=1 << 8)  # each renewal asks, and each look at a neighbour
def _escaped(name: str) -> str:
    """By the name alone: workers that are gone do not stay here."""
    return escape(name)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One that is alive, as far as anybody knows."""

    id: WorkerId
    domain: str | None = None
    """What fails together: a host, a rack, a zone."""


@dataclass(frozen=True, slots=True)
class ShardView:
    """`owner` shall have it; `consumer` is at it still, in a hand-off another one."""

    name: str
    owner: WorkerId | None = None
    consumer: WorkerId | None = None
    weight: int = 1


@dataclass(frozen=True, slots=True)
class View:
    """`shards` are those that can be consumed: not at their end, and their parents are. Whoever
    owns one and is not among `workers` is dead, and the shard is free."""

    shards: tuple[ShardView, ...]
    workers: tuple[WorkerView, ...]
    slack: int = 0
    """With weights: a difference up to this is no reason to move anything."""


class Move(NamedTuple):
    """`victim` has it until then; None: nobody has."""

    shard: str
    taker: WorkerId
    victim: WorkerId | None
