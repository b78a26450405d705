"""The contract of lease stores, as procedures: how the leases of a group are looked at and changed.

Two keep it: `meta_leases` (a node for each shard) and `log_leases` (a small log for each shard, and
a node that says whose turn it is). `dlog.testing.conformance.leases` is its only proof.

- A refused change raises `Conflict` (somebody else has the shard, or it is at its end) or
  `LeaseLost` (we do not consume it, or not with this epoch any more); nothing happened then.
- Whoever may claim a shard finds out by itself that its consumer is dead, *behind* its look at the
  lease: a worker registers before it claims, and its node never comes back.
- `save`, `release` and `finish` are refused by what is stored, never by a clock.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from dlog.effects import Procedure, ReadNode
from dlog.errors import Conflict, NotFound
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.places import GroupPlaces
from dlog.groups.view import WorkerId


class Held(NamedTuple):
    """A lease that we consume, as we last knew it. `turn` is the grant in its node: where epochs
    are counted elsewhere, it is another number than `lease.epoch`."""

    lease: Lease
    version: int
    turn: int


class LeaseStore(Protocol):
    places: GroupPlaces

    def look(self, shard: str) -> Procedure[Held]:
        """Who has it; a shard that nobody ever had is free, at version -1. Where checkpoints are
        kept elsewhere they are not looked up."""
        ...

    def read(self, shard: str) -> Procedure[Lease]:
        """The same with its checkpoint, for whoever watches."""
        ...

    def announce(self, shard: str, me: WorkerId) -> Procedure[Lease]:
        """We shall have it next; who consumes it goes on. `Conflict` where nobody does."""
        ...

    def renounce(self, shard: str, me: WorkerId) -> Procedure[Lease]:
        """We shall not, after all."""
        ...

    def claim(self, shard: str, me: WorkerId, *, over: WorkerId | None = None) -> Procedure[Held]:
        """Consume it, with an epoch above all before. `Conflict` if somebody who lives has it.

        `over`: it was asked to hand it to us, had its time, and is fenced now, alive or not.
        """
        ...

    def save(self, held: Held, me: WorkerId, checkpoint: Checkpoint) -> Procedure[Held]: ...

    def prove(self, held: Held, me: WorkerId) -> Procedure[Held]:
        """That it is ours at this moment; `LeaseLost` if it is not."""
        ...

    def release(
        self, held: Held, me: WorkerId, checkpoint: Checkpoint | None
    ) -> Procedure[None]: ...

    def finish(
        self, held: Held, me: WorkerId, checkpoint: Checkpoint | None
    ) -> Procedure[None]: ...

    def drop(self, held: Held, me: WorkerId) -> Procedure[None]:
        """Give back what names us, as it was just looked at, and what we know nothing of."""
        ...

    def reset(
        self, shard: str, checkpoint: Checkpoint | None, *, forced: bool = False
    ) -> Procedure[Lease]:
        """Put it somewhere else: the verb of a person."""
        ...


def take(
    store: LeaseStore,
    shard: str,
    me: WorkerId,
    *,
    victim: WorkerId | None = None,
    over: WorkerId | None = None,
    again: bool = False,
) -> Procedure[Held | Lease]:
    """Claim it if nobody who lives has it; else announce ourselves, if it is the `victim` who does.
    `again`: we did, before."""
    try:
        return (yield from store.claim(shard, me, over=over))
    except Conflict:
        lease = (yield from store.look(shard)).lease
    if lease.consumer in (None, me) and lease.owner in (None, me) and not lease.is_finished:
        return (yield from store.claim(shard, me))  # it was released just now
    if again or lease.is_finished or lease.owner == me:
        return lease
    if lease.consumer is None or lease.consumer != victim:
        return lease
    return (yield from store.announce(shard, me))


def is_dead(places: GroupPlaces, worker: WorkerId) -> Procedure[bool]:
    """For certain, and for ever: no incarnation is registered twice."""
    try:
        yield ReadNode(places.worker(worker), fresh=True)
    except NotFound:
        return True
    return False


def check_free(
    places: GroupPlaces, lease: Lease, me: WorkerId, over: WorkerId | None
) -> Procedure[None]:
    """Raises `Conflict` unless we may consume it, as the lease was just read."""
    if lease.is_finished:
        raise Conflict(f"shard {lease.shard!r} is at its end")
    if over is not None and (lease.owner, lease.consumer) != (me, over):
        over = None  # it is not ours to take by force any more
    for each in dict.fromkeys((lease.consumer, lease.owner)):
        if each is None or each in (me, over):
            continue
        if not (yield from is_dead(places, each)):
            raise Conflict(f"shard {lease.shard!r} is {each}'s")
