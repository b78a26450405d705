"""What a worker's core asks for: errands in the stores, which are answered, and orders to whoever
runs the program on its shards, of which facts come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlog.groups.consumer import StopReason
from dlog.groups.leases import Checkpoint
from dlog.groups.presence import SeenWorker
from dlog.groups.store import Held
from dlog.groups.view import WorkerId


@dataclass(frozen=True, slots=True)
class Ask:
    """An errand. Answered by `core.answered(ask, answer, error, now_s)`."""


@dataclass(frozen=True, slots=True)
class Register(Ask):
    """→ `SeenWorker`."""

    me: WorkerId
    domain: str | None


@dataclass(frozen=True, slots=True)
class Renew(Ask):
    """→ `SeenWorker`, our node as it is then."""

    seen: SeenWorker
    counter: int
    holds: tuple[str, ...]
    coming: tuple[str, ...]
    done: tuple[str, ...]
    rings: int
    waits: Mapping[str, str]
    sent_s: float


@dataclass(frozen=True, slots=True)
class ReadGroup(Ask):
    """→ (shards of the stream, workers by id)."""


@dataclass(frozen=True, slots=True)
class Weigh(Ask):
    """→ messages or bytes, by shard: what the weights of the group go by."""


@dataclass(frozen=True, slots=True)
class WriteWeights(Ask):
    """For everybody to plan with."""

    weights: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LookAtWorker(Ask):
    """→ `SeenWorker`, or None: it is dead."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class Bury(Ask):
    """→ None: it is dead, for ever."""

    worker: WorkerId
    counter: int


@dataclass(frozen=True, slots=True)
class Ring(Ask):
    worker: WorkerId
    shards: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leave(Ask):
    pass


@dataclass(frozen=True, slots=True)
class OfShard(Ask):
    """One of these is under way for a shard at a time."""

    shard: str


@dataclass(frozen=True, slots=True)
class Look(OfShard):
    """→ `Held`, ours or not."""


@dataclass(frozen=True, slots=True)
class Take(OfShard):
    """→ `Held`: it is ours; `Lease`: as it stands, ours by and by if we are its owner. `victim`:
    whom the plan takes it from; from nobody else."""

    victim: WorkerId | None = None
    is_announced: bool = False
    over: WorkerId | None = None


@dataclass(frozen=True, slots=True)
class Renounce(OfShard):
    pass


@dataclass(frozen=True, slots=True)
class Save(OfShard):
    held: Held
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class Prove(OfShard):
    """That we have it still: `LeaseLost` if not. For stores where this renews the lease."""

    held: Held


@dataclass(frozen=True, slots=True)
class Release(OfShard):
    held: Held
    checkpoint: Checkpoint | None
    is_finished: bool


@dataclass(frozen=True, slots=True)
class Drop(OfShard):
    """Of a lease that names us and that we know nothing of."""

    held: Held


# --- orders


@dataclass(frozen=True, slots=True)
class Order:
    shard: str


@dataclass(frozen=True, slots=True)
class StartShard(Order):
    """Make its processor, initialize it, and then deliver from the checkpoint on, as long as
    `core.may_deliver` says so at each batch. Told by `on_initialized`, `on_delivered`,
    `on_checkpoint`, `on_end`."""

    epoch: int
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class StopFetch(Order):
    """Deliver no more; told by `on_work_finished` when nothing is being processed."""


@dataclass(frozen=True, slots=True)
class Shutdown(Order):
    """Tell the program; told by `on_shut_down` when it returned."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class Fenced(Order):
    """The shard is lost: what its program is at now is worth nothing any more."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Saved(Order):
    """The checkpoint is kept: whoever waits for it is told, and what holds the shard's log against
    truncation may move up to it, not before. Or it never will be, and why."""

    checkpoint: Checkpoint
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class ShardStopped(Order):
    """The end of it."""

    reason: StopReason


@dataclass(frozen=True, slots=True)
class WorkerEnded(Order):
    """The core does nothing more. `shard` is empty."""

    is_lost: bool
    why: str
