"""Leases in the metadata store: one node for each shard, written when its owner changes and when
its checkpoint does."""

from __future__ import annotations

from collections.abc import Callable

from dlog.chance import Chance
from dlog.effects import Procedure
from dlog.errors import Conflict
from dlog.groups.lease_nodes import LeaseNodes
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.places import GroupPlaces
from dlog.groups.store import Held, check_free
from dlog.groups.view import WorkerId


class MetaLeases:
    """`now_us` is for people who read the nodes; nothing is decided by it."""

    def __init__(
        self,
        places: GroupPlaces,
        chance: Chance,
        now_us: Callable[[], int],
        group_uid: str = "",
    ) -> None:
        self.places = places
        self._nodes = LeaseNodes(places, chance, group_uid)
        self._now_us = now_us

    def look(self, shard: str) -> Procedure[Held]:
        lease, version = yield from self._nodes.read(shard)
        return Held(lease, version, lease.epoch)

    def read(self, shard: str) -> Procedure[Lease]:
        return (yield from self.look(shard)).lease

    def announce(self, shard: str, me: WorkerId) -> Procedure[Lease]:
        return (yield from announce(self._nodes, shard, me, self._now_us))

    def renounce(self, shard: str, me: WorkerId) -> Procedure[Lease]:
        return (yield from renounce(self._nodes, shard, me, self._now_us))

    def claim(self, shard: str, me: WorkerId, *, over: WorkerId | None = None) -> Procedure[Held]:
        return (yield from claim(self._nodes, shard, me, over, self._now_us))

    def save(self, held: Held, me: WorkerId, checkpoint: Checkpoint) -> Procedure[Held]:
        epoch = held.lease.epoch

        def change(lease: Lease) -> Procedure[Lease]:
            yield from ()
            return lease.saved(me, epoch, checkpoint, self._now_us())

        def is_done(sent: Lease, found: Lease) -> bool:
            return is_ours(found, me, epoch) and found.checkpoint == checkpoint

        return (yield from self._change(held, change, is_done, "group.saved"))

    def prove(self, held: Held, me: WorkerId) -> Procedure[Held]:
        lease, version = yield from self._nodes.read(held.lease.shard)
        lease.check_consumer(me, held.lease.epoch)
        return Held(lease, version, lease.epoch)

    def release(self, held: Held, me: WorkerId, checkpoint: Checkpoint | None) -> Procedure[None]:
        epoch = held.lease.epoch

        def change(lease: Lease) -> Procedure[Lease]:
            yield from ()
            if is_let_go(lease, epoch):
                return lease  # by a try of ours whose answer was lost
            return lease.released(me, epoch, checkpoint, self._now_us())

        def is_done(sent: Lease, found: Lease) -> bool:
            return is_let_go(found, epoch)  # or else it may have been taken from us

        yield from self._change(held, change, is_done, "group.released")

    def finish(self, held: Held, me: WorkerId, checkpoint: Checkpoint | None) -> Procedure[None]:
        epoch = held.lease.epoch

        def change(lease: Lease) -> Procedure[Lease]:
            yield from ()
            if is_let_go(lease, epoch):
                return lease
            return lease.finished(me, epoch, checkpoint, self._now_us())

        def is_done(sent: Lease, found: Lease) -> bool:
            return found.is_finished

        yield from self._change(held, change, is_done, "group.finished")

    def drop(self, held: Held, me: WorkerId) -> Procedure[None]:
        yield from self.release(held, me, None)

    def reset(
        self, shard: str, checkpoint: Checkpoint | None, *, forced: bool = False
    ) -> Procedure[Lease]:
        return (yield from reset(self._nodes, shard, checkpoint, self._now_us, forced=forced))

    def _change(
        self,
        held: Held,
        change: Callable[[Lease], Procedure[Lease]],
        is_done: Callable[[Lease, Lease], bool],
        point: str,
    ) -> Procedure[Held]:
        seen = held.lease, held.version
        lease, version = yield from self._nodes.change(
            held.lease.shard, change, is_done=is_done, seen=seen, point=point
        )
        return Held(lease, version, lease.epoch)


def is_ours(lease: Lease, me: WorkerId, epoch: int) -> bool:
    return lease.consumer == me and lease.epoch == epoch


def is_let_go(lease: Lease, epoch: int) -> bool:
    """Only whoever had it with this epoch can have done that."""
    return lease.consumer is None and lease.epoch == epoch


# --- what is the same wherever checkpoints are kept


def announce(
    nodes: LeaseNodes, shard: str, me: WorkerId, now_us: Callable[[], int]
) -> Procedure[Lease]:
    def change(lease: Lease) -> Procedure[Lease]:
        yield from ()
        return lease if lease.owner == me else lease.announced(me, now_us())

    def is_done(sent: Lease, found: Lease) -> bool:
        return found.owner == me

    lease, _ = yield from nodes.change(shard, change, is_done=is_done, point="group.announced")
    return lease


def renounce(
    nodes: LeaseNodes, shard: str, me: WorkerId, now_us: Callable[[], int]
) -> Procedure[Lease]:
    def change(lease: Lease) -> Procedure[Lease]:
        yield from ()
        return lease.renounced(me, now_us())

    def is_done(sent: Lease, found: Lease) -> bool:
        return found.owner != me

    lease, _ = yield from nodes.change(shard, change, is_done=is_done)
    return lease


def claim(
    nodes: LeaseNodes,
    shard: str,
    me: WorkerId,
    over: WorkerId | None,
    now_us: Callable[[], int],
) -> Procedure[Held]:
    """A lease that names us already is claimed again: what we do not remember, we did not do."""

    def change(lease: Lease) -> Procedure[Lease]:
        yield from check_free(nodes.places, lease, me, over)
        return lease.taken(me, now_us())

    def is_done(sent: Lease, found: Lease) -> bool:
        return is_ours(found, me, sent.epoch)

    lease, version = yield from nodes.change(shard, change, is_done=is_done, point="group.claimed")
    return Held(lease, version, lease.epoch)


def reset(
    nodes: LeaseNodes,
    shard: str,
    checkpoint: Checkpoint | None,
    now_us: Callable[[], int],
    *,
    forced: bool,
) -> Procedure[Lease]:
    def change(lease: Lease) -> Procedure[Lease]:
        if lease.is_finished:
            raise Conflict(f"shard {shard!r} is at its end; its children may be consumed by now")
        yield from ()
        return lease.reset(checkpoint, now_us(), forced=forced)

    def is_done(sent: Lease, found: Lease) -> bool:
        return found.epoch == sent.epoch and found.checkpoint == checkpoint

    lease, _ = yield from nodes.change(shard, change, is_done=is_done, point="group.reset")
    return lease
