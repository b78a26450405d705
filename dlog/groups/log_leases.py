"""Leases in logs: one small log for each shard, whose last message is the lease.

A node in the metadata store says whose turn it is (who announced itself, who may consume); the log
says the rest, and does the fencing: taking a lease is opening the log's writer, so whoever wrote it
before is refused from then on, saves nothing more, and learns it from its next append. Renewing and
saving are appends; none of them asks the metadata store. The epoch is the writer's.

The order of a claim: first the node, then the log, then the node again. A worker that slept between
the first two, and was taken for dead, fences the rightful consumer by opening the log; it finds out
by the third, and does nothing more. The other one is refused once, and claims again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dlog import limits
from dlog.chance import Chance
from dlog.effects import Effect, Procedure
from dlog.errors import Conflict, Fenced, LeaseLost, WriterClosed
from dlog.groups import meta_leases
from dlog.groups.lease_nodes import LeaseNodes
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.places import GroupPlaces
from dlog.groups.store import Held
from dlog.groups.view import WorkerId


class OpenedLeaseLog(NamedTuple):
    epoch: int
    last: bytes | None
    """Its last message: whoever wrote it can write no more."""


@dataclass(frozen=True, slots=True)
class OpenLeaseLog(Effect):
    """Become the writer of a lease's log, made where there is none → `OpenedLeaseLog`. The driver
    keeps it until it is closed."""

    shard: str


@dataclass(frozen=True, slots=True)
class AppendLeaseLog(Effect):
    """To the log that was opened with this epoch. `Fenced`: somebody else opened it since."""

    shard: str
    epoch: int
    value: bytes
    cuts: bool = False
    """And truncate it before this message."""


@dataclass(frozen=True, slots=True)
class CloseLeaseLog(Effect):
    shard: str
    epoch: int


@dataclass(frozen=True, slots=True)
class ReadLeaseLog(Effect):
    """→ the last message that anybody acknowledged, or None. Fences nobody."""

    shard: str


class LogLeases:
    def __init__(self, places: GroupPlaces, chance: Chance, now_us: Callable[[], int]) -> None:
        self.places = places
        self._nodes = LeaseNodes(places, chance)
        self._now_us = now_us
        self._appended: dict[str, int] = {}
        self._let_go: dict[str, int] = {}  # epochs whose last message is kept

    def look(self, shard: str) -> Procedure[Held]:
        lease, version = yield from self._nodes.read(shard)
        return Held(lease, version, lease.epoch)

    def read(self, shard: str) -> Procedure[Lease]:
        lease, _ = yield from self._nodes.read(shard)
        last = yield ReadLeaseLog(shard)
        if last is None:
            return lease
        kept = self._of_log(shard, last)
        return _joined(lease, kept)

    def announce(self, shard: str, me: WorkerId) -> Procedure[Lease]:
        return (yield from meta_leases.announce(self._nodes, shard, me, self._now_us))

    def renounce(self, shard: str, me: WorkerId) -> Procedure[Lease]:
        return (yield from meta_leases.renounce(self._nodes, shard, me, self._now_us))

    def claim(self, shard: str, me: WorkerId, *, over: WorkerId | None = None) -> Procedure[Held]:
        turn = yield from meta_leases.claim(self._nodes, shard, me, over, self._now_us)
        opened = yield OpenLeaseLog(shard, point="group.opened")
        kept = Lease(shard) if opened.last is None else self._of_log(shard, opened.last)
        node, version = yield from self._nodes.read(shard)
        if not meta_leases.is_ours(node, me, turn.turn):
            # We slept, and somebody else was given it.
            yield CloseLeaseLog(shard, opened.epoch)
            raise LeaseLost(f"shard {shard!r} is {node.consumer or 'nobody'}'s by now")
        held = Held(_joined(node, kept), version, turn.turn)
        if kept.is_finished:
            yield from self._end_turn(held, me, is_finished=True)
            yield CloseLeaseLog(shard, opened.epoch)
            raise Conflict(f"shard {shard!r} is at its end")
        mine = kept.taken(me, self._now_us(), epoch=opened.epoch)
        yield from self._append(mine, cuts=True)
        return held._replace(lease=mine)

    def save(self, held: Held, me: WorkerId, checkpoint: Checkpoint) -> Procedure[Held]:
        lease = held.lease.saved(me, held.lease.epoch, checkpoint, self._now_us())
        yield from self._append(lease)
        return held._replace(lease=lease)

    def prove(self, held: Held, me: WorkerId) -> Procedure[Held]:
        """Whoever can append was not fenced."""
        held.lease.check_consumer(me, held.lease.epoch)
        yield from self._append(held.lease)
        return held

    def release(self, held: Held, me: WorkerId, checkpoint: Checkpoint | None) -> Procedure[None]:
        """First the log, then the node: whoever it tells finds the checkpoint."""
        epoch = held.lease.epoch
        yield from self._append_last(held.lease.released(me, epoch, checkpoint, self._now_us()))
        yield from self._end_turn(held, me)

    def finish(self, held: Held, me: WorkerId, checkpoint: Checkpoint | None) -> Procedure[None]:
        epoch = held.lease.epoch
        yield from self._append_last(held.lease.finished(me, epoch, checkpoint, self._now_us()))
        yield from self._end_turn(held, me, is_finished=True)

    def drop(self, held: Held, me: WorkerId) -> Procedure[None]:
        yield from self._end_turn(held, me)

    def reset(
        self, shard: str, checkpoint: Checkpoint | None, *, forced: bool = False
    ) -> Procedure[Lease]:
        node = yield from meta_leases.reset(self._nodes, shard, None, self._now_us, forced=forced)
        opened = yield OpenLeaseLog(shard)
        kept = Lease(shard) if opened.last is None else self._of_log(shard, opened.last)
        lease = kept.reset(checkpoint, self._now_us(), forced=True)
        yield from self._append(_at_epoch(lease, opened.epoch), cuts=True)
        yield CloseLeaseLog(shard, opened.epoch)
        return _joined(node, lease)

    # --- inside

    def _append_last(self, lease: Lease) -> Procedure[None]:
        """Once, however often the node has to be told."""
        if self._let_go.get(lease.shard) == lease.epoch:
            return
        yield from self._append(lease)
        self._let_go[lease.shard] = lease.epoch
        yield CloseLeaseLog(lease.shard, lease.epoch)

    def _append(self, lease: Lease, *, cuts: bool = False) -> Procedure[None]:
        """Now and then what is before it is truncated: only the last message counts."""
        shard = lease.shard
        count = self._appended.get(shard, 0) + 1
        cuts = cuts or count >= limits.GROUP_LEASE_LOG_EVERY
        self._appended[shard] = 0 if cuts else count
        try:
            yield AppendLeaseLog(shard, lease.epoch, lease.to_bytes(), cuts, point="group.appended")
        except (Fenced, WriterClosed) as refused:
            lost = LeaseLost(
                f"the log of shard {shard!r} was taken over: {refused.message}",
                outcome=refused.outcome,
                epoch=lease.epoch,
            )
            raise lost from refused

    def _end_turn(self, held: Held, me: WorkerId, *, is_finished: bool = False) -> Procedure[None]:
        def change(lease: Lease) -> Procedure[Lease]:
            yield from ()
            if meta_leases.is_let_go(lease, held.turn):
                return lease
            if is_finished:
                return lease.finished(me, held.turn, None, self._now_us())
            return lease.released(me, held.turn, None, self._now_us())

        def is_done(sent: Lease, found: Lease) -> bool:
            return meta_leases.is_let_go(found, held.turn)

        try:
            yield from self._nodes.change(
                held.lease.shard, change, is_done=is_done, point="group.released"
            )
        except LeaseLost:
            return  # whoever has the turn by now fenced the log, or will

    def _of_log(self, shard: str, raw: bytes) -> Lease:
        return Lease.from_bytes(raw, where=f"the log of the lease of shard {shard!r}")


def _joined(node: Lease, kept: Lease) -> Lease:
    """Whose turn it is, by the node; how far it got, by the log."""
    return Lease(
        node.shard,
        kept.epoch,
        node.owner,
        node.consumer,
        kept.checkpoint,
        node.is_finished or kept.is_finished,
        max(node.updated_us, kept.updated_us),
    )


def _at_epoch(lease: Lease, epoch: int) -> Lease:
    return Lease(lease.shard, epoch, checkpoint=lease.checkpoint, updated_us=lease.updated_us)
