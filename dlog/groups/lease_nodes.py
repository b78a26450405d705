"""The node of a lease, and the compare-and-set loop around it: what both lease stores stand on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from dlog.chance import Chance, backoff_s
from dlog.effects import CreateNode, Pause, Procedure, ReadNode, ReplaceNode
from dlog.errors import AlreadyExists, Conflict, DlogError, NotFound, Outcome, Retry, Unavailable
from dlog.groups.charter import read_charter
from dlog.groups.leases import Lease
from dlog.groups.places import GroupPlaces

TRIES = 6
NO_NODE = -1
_GROUP = "group"


class LeaseNodes:
    """`group_uid`: of the charter, which each lease names from its first write on; "" asks for
    none."""

    def __init__(self, places: GroupPlaces, chance: Chance, group_uid: str = "") -> None:
        self.places = places
        self._chance = chance
        self._group_uid = group_uid

    def read(self, shard: str) -> Procedure[tuple[Lease, int]]:
        path = self.places.lease(shard)
        try:
            value, version = yield ReadNode(path)
        except NotFound:
            return Lease(shard), NO_NODE
        lease = Lease.from_bytes(value, where=path)
        if not self._group_uid or lease.extra.get(_GROUP, self._group_uid) == self._group_uid:
            return lease, version
        # A worker of a removed group wrote it last. Its checkpoint is not this group's, but epochs
        # fence, so they go on growing.
        charter = yield from read_charter(self.places)
        if charter.uid != self._group_uid:
            raise Conflict(f"the lease of shard {shard!r} is that of a later group", path=path)
        return Lease(shard, lease.epoch), version

    def write(self, lease: Lease, version: int, point: str) -> Procedure[int]:
        path = self.places.lease(lease.shard)
        if self._group_uid:
            named = {**lease.extra, _GROUP: self._group_uid}
            lease = dataclasses.replace(lease, extra=named)
        if version == NO_NODE:
            made: int = yield CreateNode(path, lease.to_bytes(), point=point)
            return made
        changed: int = yield ReplaceNode(path, lease.to_bytes(), version, point=point)
        return changed

    def change(
        self,
        shard: str,
        change: Callable[[Lease], Procedure[Lease]],
        *,
        is_done: Callable[[Lease, Lease], bool],
        seen: tuple[Lease, int] | None = None,
        point: str = "",
    ) -> Procedure[tuple[Lease, int]]:
        """`change` says what shall stand there, from what does, or raises. `is_done` recognises
        what we `sent` in what we `found`, when its reply was lost."""
        sent: Lease | None = None
        failure: DlogError | None = None
        maybe_applied = False
        for attempt in range(TRIES):
            if seen is None:
                seen = yield from self.read(shard)
                if maybe_applied and sent is not None and is_done(sent, seen[0]):
                    return seen
            lease, version = seen
            try:
                wanted = yield from change(lease)
            except DlogError as refused:
                if maybe_applied:
                    refused.outcome = Outcome.UNKNOWN
                raise
            if wanted is lease:
                return seen
            sent = wanted
            try:
                return wanted, (yield from self.write(wanted, version, point))
            except DlogError as error:
                maybe_applied |= error.outcome is Outcome.UNKNOWN
                if maybe_applied:
                    error.outcome = Outcome.UNKNOWN
                # Somebody made the node first, or it changed: look again. All else is for good.
                if error.retry is not Retry.NOW and not _was_there(error):
                    raise
                failure = error
            seen = None
            yield Pause(backoff_s(attempt, self._chance))
        assert failure is not None
        if isinstance(failure, Conflict) or _was_there(failure):
            # Of versions, by whoever else writes: it says nothing about whose the lease is.
            told = f"the lease of shard {shard!r} changed {TRIES} times under our hands"
            raise Unavailable(told, outcome=failure.outcome) from failure
        raise failure


def _was_there(error: DlogError) -> bool:
    return isinstance(error, (AlreadyExists, NotFound))
