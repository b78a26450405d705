"""What the shards that a shard came from ended with: their last checkpoints, as the group's leases
keep them. A program that keeps its state in checkpoints goes on from there in the children."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dlog.drive import Stores
from dlog.effects import Procedure
from dlog.errors import NotFound, Truncated
from dlog.groups.charter import SPENT, Charter, is_of
from dlog.groups.group_driver import GroupDriver, lease_store
from dlog.groups.holding import hold_name
from dlog.groups.lease_driver import Logs
from dlog.groups.leases import Lease
from dlog.groups.places import GroupPlaces
from dlog.groups.store import LeaseStore
from dlog.ids import Position
from dlog.meta.layout import Layout
from dlog.meta.stream_holds import read_stream_hold
from dlog.streams.document import StreamMeta, shard_log
from dlog.streams.reshard import Site, read_stream
from dlog.streams.trimmed import TrimmedShard, read_trimmed


@dataclass(frozen=True, slots=True)
class ParentShard:
    """A shard that was split or merged, and that the group has consumed to its end."""

    log: str
    number: int
    position: Position
    """Where the group ended in it."""
    app: bytes
    """What the program kept with its last checkpoint there."""


class _Named(NamedTuple):
    """`logs`: which one it was, as far as anybody can tell."""

    number: int
    logs: tuple[str, ...]


class Parents:
    """Of the shards of one stream. Which shards one came from never changes: the stream is read
    once, and again for shards that were made since."""

    def __init__(self, stores: Stores, logs: Logs, group: str, stream: str) -> None:
        self._stores = stores
        self._logs = logs
        self._group = group
        self._site = Site.at(stores.layout, stream, stores.chance)
        self._known: dict[int, tuple[_Named, ...]] = {}
        self._reading = asyncio.Lock()

    async def of(self, number: int, leases: str) -> tuple[ParentShard, ...]:
        """Those of shard `number`, whether the stream still lists them or not. `leases`: where the
        group keeps its leases."""
        places = GroupPlaces(self._stores.layout, self._group, self._site.name)
        driver = GroupDriver(self._stores, places, self._logs)
        try:
            async with self._reading:
                if number not in self._known:
                    seen = await driver.run(read_stream(self._site))
                    self._known.update(parents_in(self._site.name, seen.meta))
            store = lease_store(leases, places, self._stores)
            return await driver.run(_read(self._site, store, self._known.get(number, ())))
        except NotFound:
            return ()  # the stream was removed under us: the worker is about to leave
        finally:
            await driver.close()

    async def refuse_missed(self, number: int, charter: Charter) -> None:
        """`Truncated` where a shard before this one was trimmed, with messages that the group had
        not consumed."""
        places = GroupPlaces(self._stores.layout, self._group, self._site.name)
        driver = GroupDriver(self._stores, places, self._logs)
        try:
            store = lease_store(charter.leases, places, self._stores)
            missed = await driver.run(self._missed(number, charter, store, places))
        finally:
            await driver.close()
        if missed:
            raise Truncated(
                f"shards {missed} of stream {self._site.name!r}, which come before shard {number}, "
                "were truncated and trimmed before the group had consumed them; "
                "on_truncated='jump' goes on without them",
                stream=self._site.name,
            )

    def _missed(
        self, number: int, charter: Charter, store: LeaseStore, places: GroupPlaces
    ) -> Procedure[list[int]]:
        site = self._site._replace(uid=charter.stream_uid)
        meta = (yield from read_stream(site)).meta
        if not meta.has(number) or all(map(meta.has, meta.shard(number).parents)):
            return []
        trimmed = yield from read_trimmed(site, meta.uid)
        spent = yield from _spent_until_held(self._stores.layout, places, charter)
        missed: set[int] = set()
        to_look, looked = list(meta.shard(number).parents), set[int]()
        while to_look:
            parent = to_look.pop()
            shard = trimmed.get(parent)
            if shard is None or meta.has(parent) or parent in looked:
                continue
            looked.add(parent)
            named = _named(site.name, meta, parent)
            if (yield from _is_finished(store, named, shard.next_seq)):
                continue  # and so is what came before it
            if parent not in spent and charter.wanted_of(shard):
                missed.add(parent)
            to_look += shard.parents
        return sorted(missed)


def _spent_until_held(
    layout: Layout, places: GroupPlaces, charter: Charter
) -> Procedure[Sequence[int]]:
    """Shards of which all was truncated while the group was made: behind its charter, and before it
    held them."""
    try:
        name = hold_name(places.group, places.stream)
        hold = yield from read_stream_hold(layout, places.stream, name)
    except NotFound:
        return ()  # a job has none, and somebody may have dropped it
    spent = hold.extra.get(SPENT, ()) if is_of(hold, charter) else ()
    return spent if isinstance(spent, list) else ()


def refuse_missed_by_job(stores: Stores, places: GroupPlaces, charter: Charter) -> Procedure[None]:
    """`Truncated` where a shard of a bounded job is gone that the group had not consumed. What is
    not noted of a shard that was trimmed is taken as the job noted it."""
    store = lease_store(charter.leases, places, stores, charter.uid)
    site = Site.at(stores.layout, places.stream, stores.chance, charter.stream_uid)
    meta = (yield from read_stream(site)).meta
    trimmed: Mapping[int, TrimmedShard] | None = None
    missed: list[int] = []
    for number, mark in sorted((charter.end or {}).items()):
        if meta.has(number) or number in (charter.spent or ()):
            continue
        if trimmed is None:
            trimmed = yield from read_trimmed(site, meta.uid)
        begin = None if charter.begin is None else charter.begin.get(number)
        first_seqs = [begin.next_seq] if begin else []
        first_seqs += [trimmed[number].first_seq] if number in trimmed else []
        if max(first_seqs, default=0) >= mark.next_seq:
            continue  # there was nothing to do in it
        named = _named(site.name, meta, number)
        if not (yield from _is_finished(store, named, mark.next_seq)):
            missed.append(number)
    if missed:
        raise Truncated(
            f"shards {missed} of stream {site.name!r} were truncated and trimmed before the job "
            "had consumed them; on_truncated='jump' goes on without them",
            stream=site.name,
        )


def _is_finished(store: LeaseStore, shard: _Named, end_seq: int) -> Procedure[bool]:
    """`end_seq`: behind the last message that the group has to consume there."""
    for log in shard.logs:
        if _is_done((yield from store.read(log)), end_seq):
            return True
    return False


def _is_done(lease: Lease, end_seq: int | None) -> bool:
    """Also where nobody saw that the shard had ended: a trim may be quicker."""
    kept = lease.checkpoint
    has_all = end_seq is not None and kept is not None and kept.position.next_seq >= end_seq
    return lease.is_finished or has_all


def parents_in(stream: str, meta: StreamMeta) -> dict[int, tuple[_Named, ...]]:
    """The parents of each shard, also those that were trimmed."""
    return {
        shard.number: tuple(_named(stream, meta, number) for number in shard.parents)
        for shard in meta.shards
    }


def _named(stream: str, meta: StreamMeta, number: int) -> _Named:
    if meta.has(number):
        return _Named(number, (meta.shard(number).log,))
    logs = (shard_log(stream, number),)
    # The first shard of what was a plain log once is that log.
    return _Named(number, (*logs, stream) if number == 0 else logs)


def _read(
    site: Site, store: LeaseStore, named: tuple[_Named, ...]
) -> Procedure[tuple[ParentShard, ...]]:
    """Without those that the group never had: they were truncated away before anybody came."""
    trimmed: Mapping[int, TrimmedShard] | None = None
    found: list[ParentShard] = []
    for parent in named:
        for log in parent.logs:
            lease = yield from store.read(log)
            if lease.checkpoint is None:
                continue
            if not lease.is_finished and trimmed is None:
                trimmed = yield from read_trimmed(site, (yield from read_stream(site)).meta.uid)
            ended = (trimmed or {}).get(parent.number)
            if _is_done(lease, None if ended is None else ended.next_seq):
                kept = lease.checkpoint
                found.append(ParentShard(log, parent.number, kept.position, kept.app))
                break
    return tuple(found)
