"""A group from outside: `client.group(name, stream)`. Looks at its workers, leases and checkpoints,
says what a plan would move, and puts checkpoints elsewhere. It takes part in nothing."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dlog import limits
from dlog.drive import Stores
from dlog.errors import (
    ConfigError,
    Conflict,
    DlogError,
    NotFound,
    Timeout,
    Unavailable,
    unknown,
)
from dlog.groups import presence
from dlog.groups.charter import Charter, read_charter
from dlog.groups.founding import shards_of
from dlog.groups.group_driver import GroupDriver, lease_store
from dlog.groups.holding import hold_name
from dlog.groups.lags import lags_of, leases_of
from dlog.groups.lease_driver import Logs
from dlog.groups.leases import Checkpoint, Lease
from dlog.groups.places import GroupPlaces
from dlog.groups.plan import plan
from dlog.groups.removal import remove_group
from dlog.groups.shards import GroupShard, ShardGraph
from dlog.groups.store import LeaseStore
from dlog.groups.view import Move, ShardView, View, WorkerId, WorkerView
from dlog.groups.weights import slack_of
from dlog.groups.workers import codes_and_causes
from dlog.ids import Position
from dlog.meta.layout import unescape
from dlog.options import ReaderOptions
from dlog.reader.lag import Lag
from dlog.reader.places import Start, check_start
from dlog.reader.reader import Reader
from dlog.streams.document import StreamMeta
from dlog.streams.reshard import Site, read_stream

logger = logging.getLogger("dlog.groups")

GetStores = Callable[[bool], Awaitable[Stores]]


@dataclass(frozen=True, slots=True)
class Member:
    """A worker that is registered. Whether it lives, only the change of `counter` tells."""

    id: WorkerId
    domain: str | None
    counter: int
    shards: tuple[str, ...]
    coming: tuple[str, ...]
    """Shards that are handed over to it."""
    waits: Mapping[str, str]
    """What does not get on, by log ("": all of its shards): codes as in `why()`."""
    causes: Mapping[str, str] = field(default_factory=dict)
    """Of those that a log of ours refused something: what it said."""


@dataclass(frozen=True, slots=True)
class ShardStanding:
    """How far the group is in one shard, by what is kept."""

    number: int
    log: str
    state: str
    """`consumed`, `handed_over`, `free`, `waiting` (for the shards it came from), `finished`."""
    owner: WorkerId | None
    consumer: WorkerId | None
    epoch: int
    checkpoint: Checkpoint | None
    lag: Lag | None
    """Behind the checkpoint; None for a log that is not made yet."""
    parents: tuple[str, ...]
    updated_us: int
    weight: int
    """In per cent of the average shard, where the group weighs its shards."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group: str
    stream: str
    leases: str
    timeout_ms: int
    is_job: bool
    weigh: str
    members: tuple[Member, ...]
    shards: tuple[ShardStanding, ...]
    is_orphan: bool = False
    """Its stream was removed, and another one was made under the name, of which it consumes
    nothing: it has no shards, and is there to be removed."""

    @property
    def lag_messages(self) -> int:
        return sum(each.lag.messages for each in self.shards if each.lag is not None)


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset did, or would do, to one shard."""

    log: str
    before: Checkpoint | None
    after: Position | None
    refused: str | None
    """Why it stays where it is."""


class Group:
    def __init__(self, name: str, stream: str, get_stores: GetStores, logs: Logs) -> None:
        self.name = name
        self.stream = stream
        self._get_stores = get_stores
        self._logs = logs

    # --- what is so

    async def charter(self) -> Charter:
        """What all of its workers agree on. `NotFound`: there is no such group."""
        _, places, driver = await self._open()
        charter: Charter = await driver.run(read_charter(places))
        return charter

    async def members(self) -> tuple[Member, ...]:
        site = await self._site()
        return await _members(site.driver, site.places)

    async def describe(self, *, lag: bool = True) -> GroupDescription:
        """Asks the store for each lease, and with `lag` each shard's log where it ends. `NotFound`
        where the stream was removed."""
        site = await self._site()
        members = await _members(site.driver, site.places)
        meta = await site.stream()
        if site.charter.stream_uid != meta.uid:
            return self._described(site, members, (), is_orphan=True)
        leases = await leases_of(site.driver, site.store, (shard.name for shard in site.shards))
        finished = {log for log, lease in leases.items() if lease.is_finished}
        graph = ShardGraph(site.shards, finished)
        numbers = {shard.log: shard.number for shard in meta.shards}
        lags = await lags_of(site.stores, site.charter, leases, numbers) if lag else {}
        standings = []
        for shard in meta.shards:
            if shard.log not in leases:
                continue
            lease = leases[shard.log]
            standings.append(
                ShardStanding(
                    shard.number,
                    shard.log,
                    _state_of(lease, graph),
                    lease.owner,
                    lease.consumer,
                    lease.epoch,
                    lease.checkpoint,
                    lags.get(shard.log),
                    graph.shards[shard.log].parents,
                    lease.updated_us,
                    graph.shards[shard.log].weight,
                )
            )
        return self._described(site, members, standings)

    def _described(
        self,
        site: _Site,
        members: tuple[Member, ...],
        shards: Iterable[ShardStanding],
        *,
        is_orphan: bool = False,
    ) -> GroupDescription:
        charter = site.charter
        return GroupDescription(
            self.name,
            self.stream,
            charter.leases,
            charter.timeout_ms,
            charter.is_job,
            charter.weigh,
            members,
            tuple(shards),
            is_orphan,
        )

    # --- what if

    async def plan(
        self,
        *,
        add: int | Iterable[str] = 0,
        without: Iterable[str] = (),
        domain: str | None = None,
    ) -> tuple[Move, ...]:
        """The moves that the group would make if so many more workers came (or those with these
        names), and these were gone."""
        told = await self.describe(lag=False)
        gone = set(without)
        unknown = gone - {each.id.name for each in told.members}
        if unknown:
            raise NotFound(f"group {self.name!r} has no worker {sorted(unknown)[0]!r}")
        names = [f"new-{n}" for n in range(1, add + 1)] if isinstance(add, int) else list(add)
        workers = [WorkerView(m.id, m.domain) for m in told.members if m.id.name not in gone]
        workers += [WorkerView(WorkerId(name, "planned"), domain) for name in names]
        shards = tuple(
            ShardView(each.log, each.owner or each.consumer, each.consumer, each.weight)
            for each in told.shards
            if each.state not in ("finished", "waiting")
        )
        slack = slack_of([each.weight for each in shards], len(workers))
        return plan(View(shards, tuple(workers), slack))

    # --- putting it elsewhere

    async def reset(
        self,
        to: Start,
        *,
        shards: Sequence[int] | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> tuple[Reset, ...]:
        """Put shards at "earliest", "latest", a seq, a MessageId, a Position or an aware datetime;
        what the program kept with the checkpoint is gone. A shard that somebody consumes is refused
        unless by `force`, which fences that worker; one that is finished stays so. What fails when
        some were put there already is told in the answer, not raised. `dry_run` only tells.
        `ConfigError` where another stream was made under the name of the group's."""
        check_start(to, "to")
        site = await self._site()
        meta = await site.our_stream()
        listed = {shard.name for shard in site.shards}
        chosen = [s for s in meta.shards if s.log in listed]
        if shards is not None:
            chosen = [meta.shard(number) for number in shards]
        told: list[Reset] = []
        if not dry_run and len(chosen) > 1:
            for shard in chosen:  # what cannot be done for one is refused before any is changed
                with contextlib.suppress(Unavailable, Timeout):  # which may pass
                    await self._reset(site, shard.log, to, b"", force=force, dry_run=True)
        for shard in chosen:
            try:
                told.append(
                    await self._reset(site, shard.log, to, b"", force=force, dry_run=dry_run)
                )
            except DlogError as error:
                if dry_run or all(each.refused is not None for each in told):
                    raise
                # Some are elsewhere by now: whoever asked has to know which.
                told.append(Reset(shard.log, None, None, _not_known(error)))
                rest = chosen[len(told) :]
                why = f"not tried: shard {shard.log!r} failed before it"
                told += [Reset(each.log, None, None, why) for each in rest]
                break
        return tuple(told)

    async def set_checkpoint(
        self, shard: int, to: Start, *, app: bytes = b"", force: bool = False
    ) -> Reset:
        """The same for one shard, with what the program shall find there."""
        site = await self._site()
        log = (await site.our_stream()).shard(shard).log
        told = await self._reset(site, log, check_start(to, "to"), app, force=force, dry_run=False)
        if told.refused is not None:
            raise Conflict(told.refused)
        return told

    async def _reset(
        self, site: _Site, log: str, to: Start, app: bytes, *, force: bool, dry_run: bool
    ) -> Reset:
        lease = await site.driver.run(site.store.read(log))
        before = lease.checkpoint
        if lease.is_finished:
            return Reset(log, before, None, f"shard {log!r} is at its end, and so are its children")
        if lease.consumer is not None and not force:
            return Reset(log, before, None, f"shard {log!r} is consumed by {lease.consumer}")
        try:
            place, tail_seq = await self._place(site.stores, log, to)
        except NotFound as error:
            is_made = error.ledger_id is not None  # and has no such message
            told = error.message if is_made else f"the log {log!r} is not made yet"
            return Reset(log, before, None, told)
        if place.next_seq > tail_seq:  # what comes would be passed over
            return Reset(log, before, None, f"shard {log!r} ends at seq {tail_seq} so far")
        checkpoint = Checkpoint(place, app)  # refuses what is too large, before anything changes
        if dry_run:
            return Reset(log, before, place, None)
        if before is None or checkpoint.is_before(before):
            # Held first, or what it is put back to could be truncated before anybody is there. What
            # goes ahead is let go behind the change, which may be refused.
            await self._hold(site, log, place)
        try:
            await site.driver.run(site.store.reset(log, checkpoint, forced=force))
        except Conflict as refused:
            return Reset(log, before, None, refused.message)
        try:
            # Once more: whoever was fenced may have moved it, for a checkpoint of before.
            await self._hold(site, log, place)
        except DlogError as error:
            logger.warning("log %r: its hold is not moved: %s", log, error)
        if lease.consumer is not None:
            # One that has nothing to save would not see that it was fenced.
            try:
                await site.driver.run(presence.ring(site.places, lease.consumer, (log,)))
            except DlogError as error:
                logger.warning("%s sees later that it lost %r: %s", lease.consumer, log, error)
        return Reset(log, before, place, None)

    async def _place(self, stores: Stores, log: str, to: Start) -> tuple[Position, int]:
        """And the seq of the tail."""
        reader = Reader(stores, log, ReaderOptions())
        try:
            await reader.seek(to)
            tail_seq = reader._feed.core.end_seq
            assert tail_seq is not None  # of a reader that does not follow
            return reader.position, tail_seq
        finally:
            await reader.close()

    async def _hold(self, site: _Site, log: str, at: Position) -> None:
        admin, name = self._logs.admin, hold_name(self.name, self.stream)
        note = "what this group has not consumed yet"
        try:
            await admin.hold(log, name, at, note=note)
        except ConfigError:  # it stands further ahead
            with contextlib.suppress(NotFound):
                await admin.drop_hold(log, name)
            await admin.hold(log, name, at, note=note)

    async def remove(self) -> None:
        """Forget the group: its checkpoints, its holds, its charter; also where its stream was
        removed, and what is left of a group without a charter. `Conflict` while it has workers. A
        worker that was killed counts for one `timeout_ms` of the group: for so long this call waits
        for a sign of life."""
        stores, places, driver = await self._open()
        workers = await driver.run(presence.living(places, await self._timeout_s(driver, places)))
        if workers:
            raise Conflict(f"group {self.name!r} has workers: {workers[0]}")
        await remove_group(stores, driver, places, self._logs.admin)

    # --- inside

    async def _timeout_s(self, driver: GroupDriver, places: GroupPlaces) -> float:
        try:
            timeout_ms = (await driver.run(read_charter(places))).timeout_ms
        except NotFound:
            timeout_ms = limits.GROUP_TIMEOUT_MS_DEFAULT
        return timeout_ms / 1000

    async def _open(self) -> tuple[Stores, GroupPlaces, GroupDriver]:
        stores = await self._get_stores(False)
        places = GroupPlaces(stores.layout, self.name, self.stream)
        return stores, places, GroupDriver(stores, places, self._logs)

    async def _site(self) -> _Site:
        stores, places, driver = await self._open()
        charter = await driver.run(read_charter(places))
        shards = await driver.run(shards_of(places, stores, charter))
        store = lease_store(charter.leases, places, stores, charter.uid)
        return _Site(stores, places, driver, charter, shards, store)

    def __repr__(self) -> str:
        return f"<Group {self.name!r} of {self.stream!r}>"


@dataclass(frozen=True, slots=True)
class _Site:
    stores: Stores
    places: GroupPlaces
    driver: GroupDriver
    charter: Charter
    shards: list[GroupShard]
    store: LeaseStore

    async def stream(self) -> StreamMeta:
        name, layout = self.places.stream, self.stores.layout
        site = Site.at(layout, name, self.stores.chance)
        meta: StreamMeta = (await self.driver.run(read_stream(site))).meta
        return meta

    async def our_stream(self) -> StreamMeta:
        """`ConfigError` where another one was made under its name: no worker will consume that for
        this group, and what was done in the old one's shards says nothing of its."""
        meta = await self.stream()
        self.charter.check_stream(meta.uid, self.places.group)
        return meta


async def _members(driver: GroupDriver, places: GroupPlaces) -> tuple[Member, ...]:
    nobody = WorkerId("", "nobody")
    seen = await driver.run(presence.read_workers(places, nobody))
    return tuple(
        Member(
            worker,
            node.domain,
            node.counter,
            node.holds,
            node.coming,
            *codes_and_causes(node.waits),
        )
        for worker, node in sorted((worker, each.node) for worker, each in seen.items())
    )


def _not_known(error: DlogError) -> str:
    return f"{error.message}; it may be there all the same" if unknown(error) else error.message


def _state_of(lease: Lease, graph: ShardGraph) -> str:
    if lease.is_finished:
        return "finished"
    if lease.consumer is not None:
        return "handed_over" if lease.is_handed_over else "consumed"
    return "waiting" if graph.is_blocked(lease.shard) else "free"


async def list_groups(stores: Stores, stream: str | None) -> list[tuple[str, str]]:
    try:
        names = await stores.meta.children(stores.layout.groups)
    except NotFound:
        return []
    found: list[tuple[str, str]] = []
    for name in names:
        with contextlib.suppress(NotFound):
            streams = await stores.meta.children(f"{stores.layout.groups}/{name}")
            found += [(unescape(name), unescape(each)) for each in streams]
    return sorted(each for each in found if stream in (None, each[1]))
