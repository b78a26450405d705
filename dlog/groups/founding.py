"""Making a group, or finding it made: its charter; and which shards it has to do."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from dlog.admin.admin import Admin
from dlog.drive import Driver, Stores
from dlog.effects import Procedure
from dlog.errors import ConfigError, DlogError, NotFound, Truncated
from dlog.groups.charter import (
    CHARTER,
    COUNT,
    SPENT,
    Charter,
    Mark,
    agree,
    check_charter,
    is_of,
    read_charter,
)
from dlog.groups.group_driver import lease_store
from dlog.groups.holding import AT_ONCE, DONE, NOTE, hold_name
from dlog.groups.leases import Lease
from dlog.groups.options import WorkerOptions
from dlog.groups.places import GroupPlaces
from dlog.groups.shard_log import check_log
from dlog.groups.shards import GroupShard
from dlog.groups.weights import AVERAGE, read_weights
from dlog.meta.holds import Hold, read_hold
from dlog.meta.layout import Layout
from dlog.meta.stream_holds import HoldMaking, StreamHold
from dlog.reader.places import Start
from dlog.streams.document import Shard, StreamMeta
from dlog.streams.holding import drop_log_holds, make_stream_hold
from dlog.streams.places import trimmed_parents
from dlog.streams.reshard import Site, read_stream
from dlog.streams.tails import by_newest_shards, nothing_left_in, tails_of
from dlog.streams.trimmed import read_trimmed
from dlog.together import some_at_once

logger = logging.getLogger("dlog.groups")


async def found(
    stores: Stores, driver: Driver, places: GroupPlaces, options: WorkerOptions, admin: Admin
) -> Charter:
    """What all workers agree on; the shards are held once this returns. `NotFound` where there is
    no such stream."""
    charter = await _agreed(stores, driver, places, options, admin)
    if not charter.is_job:
        await _hold_stream(stores, driver, admin, places, charter)
    await _finish_holds(stores, driver, admin, places, charter)
    return charter


async def _hold_stream(
    stores: Stores,
    driver: Driver,
    admin: Admin,
    places: GroupPlaces,
    charter: Charter,
) -> None:
    """First the node, from which on shards to come are held; then the places in those that are
    there. Whoever finds that a founder died in between goes on. Who removes the group drops what is
    there behind its charter: so the charter is looked at behind all that is made here."""
    store = lease_store(charter.leases, places, stores, charter.uid)
    making = _stream_hold(stores, places, charter)
    made: list[str] = []

    async def hold_shards() -> Mapping[str, Any]:
        meta = await _read(stores, driver, places)

        async def read(shard: Shard) -> Lease:
            return await driver.run(store.read(shard.log))

        leases = await some_at_once(AT_ONCE, read, meta.shards)
        begun = {each.shard: each for each in leases if each.checkpoint or each.is_finished}
        made.extend(await _hold_shards(stores.layout, driver, admin, places, charter, meta, begun))
        # What was truncated before it was held is nothing that the group missed.
        return {SPENT: await nothing_left_in(stores, meta.shards)}

    try:
        await make_stream_hold(driver, making, hold_shards)
    except NotFound:
        if not await _is_there(driver, places):  # else they are those of the group made anew
            await drop_log_holds(admin, made, making.wanted.name)
        raise


async def _is_there(driver: Driver, places: GroupPlaces) -> bool:
    try:
        await driver.run(read_charter(places))
    except NotFound:
        return False
    return True


async def _finish_holds(
    stores: Stores, driver: Driver, admin: Admin, places: GroupPlaces, charter: Charter
) -> None:
    """What is done is let go, whoever did it and left it so: of a shard that the group has finished
    the hold is at the end of its log, since without one the group's hold on the stream keeps all of
    that log (an older version dropped it). A job has none there: a second founder may have made it
    behind the end."""
    name = hold_name(places.group, places.stream)
    store = lease_store(charter.leases, places, stores, charter.uid)

    async def is_finished(shard: Shard) -> bool:
        return (await driver.run(store.read(shard.log))).is_finished

    async def finish(shard: Shard) -> None:
        try:
            is_held = await driver.run(_find_hold(stores.layout, shard, name)) is not None
            if is_held is not charter.is_job or not await is_finished(shard):
                return
            await driver.run(check_log(stores.layout, shard.log, shard.log_uid or None))
            if charter.is_job:
                await admin.drop_hold(shard.log, name)
            else:
                await admin.hold(shard.log, name, "latest", note=DONE, who=places.group)
        except NotFound:
            pass  # the log was trimmed meanwhile, or somebody else dropped it
        except DlogError as error:
            logger.warning("log %r: hold %r is not where it should be: %s", shard.log, name, error)

    meta = await _read(stores, driver, places)
    if charter.end is None:
        shards = [shard for shard in meta.shards if not shard.is_open]
    else:
        shards = [shard for shard in meta.shards if shard.number in charter.end]
    await some_at_once(AT_ONCE, finish, shards)


def _find_hold(layout: Layout, shard: Shard, name: str) -> Procedure[Hold | None]:
    try:
        found, _ = yield from read_hold(layout, shard.log, name)
    except NotFound:
        return None
    return found if found.log_uid == shard.log_uid or not shard.log_uid else None


def _stream_hold(stores: Stores, places: GroupPlaces, charter: Charter) -> HoldMaking:
    name = hold_name(places.group, places.stream)
    extra = {CHARTER: charter.uid} if charter.uid else {}
    wanted = StreamHold(name, charter.stream_uid, places.group, stores.clock.wall_us(), extra=extra)
    return HoldMaking(
        stores.layout.stream_hold(places.stream, name),
        wanted,
        lambda hold: is_of(hold, charter),
        lambda: check_charter(places, charter),
        stores.chance,
    )


async def _hold_shards(
    layout: Layout,
    driver: Driver,
    admin: Admin,
    places: GroupPlaces,
    charter: Charter,
    meta: StreamMeta,
    begun: Mapping[str, Lease] | None = None,
) -> list[str]:
    """In each log that is there and has no hold of the group yet, from where the group begins. Each
    is counted in its log meta, so a truncation that was decided before sees it. Which ones.

    In a shard that the group has not `begun`, a hold of its name was left by another group, which
    was removed. It may stand behind what this one has to consume, so it is made anew. The group's
    hold on the stream holds all of the log meanwhile; a job has none, and leaves it (None)."""
    made: list[str] = []
    name = hold_name(places.group, places.stream)

    async def hold(shard: Shard) -> None:
        mark = None if charter.begin is None else charter.begin.get(shard.number)
        at: Start = "earliest" if mark is None else mark.next_seq
        if begun is not None and shard.log in begun and begun[shard.log].is_finished:
            at = "latest"
        found = await driver.run(_find_hold(layout, shard, name))
        if found is not None and found.made:  # else its maker may have died, and we go on with it
            if begun is None or shard.log in begun:
                return
            with contextlib.suppress(NotFound):
                await admin.drop_hold(shard.log, name)
        try:
            try:
                await admin.hold(shard.log, name, at, note=NOTE, who=places.group)
            except Truncated:
                await admin.hold(shard.log, name, "earliest", note=NOTE, who=places.group)
        except (NotFound, ConfigError):
            return  # not made yet, or held further on by now
        made.append(shard.log)

    shards = [s for s in meta.shards if charter.end is None or s.number in charter.end]
    await some_at_once(AT_ONCE, hold, shards)
    return made


async def _agreed(
    stores: Stores, driver: Driver, places: GroupPlaces, options: WorkerOptions, admin: Admin
) -> Charter:
    meta = await _read(stores, driver, places)
    wanted = Charter(meta.uid, options.leases, options.timeout_ms, options.weigh)
    if options.stop_at_end:
        wanted = dataclasses.replace(wanted, end={})
    try:
        charter: Charter = await driver.run(read_charter(places))
        charter.check_agrees(wanted, places.group)
        return charter
    except NotFound:
        pass
    begin: dict[int, Mark] | None = None
    end: dict[int, Mark] | None = None
    site = Site.at(stores.layout, places.stream, stores.chance)
    if options.start == "latest" or options.stop_at_end:
        seen, marks = await by_newest_shards(driver, site.of(meta), partial(_marks, stores))
        meta = seen.meta
        begin = marks if options.start == "latest" else None
        end = marks if options.stop_at_end else None
    ours = dataclasses.replace(wanted, begin=begin, end=end, uid=stores.chance.token())
    if ours.is_job:
        # It holds no stream, only the shards that it has to do, and drops each hold when that shard
        # is done: so nobody but its founder may make them, and before others can join. One that
        # comes second may make them behind the end: they are let go of behind the agreement.
        await _hold_shards(stores.layout, driver, admin, places, ours, meta)
    spent = await nothing_left_in(stores, meta.shards)  # before the look at what was trimmed
    noted = await driver.run(read_trimmed(site, meta.uid))
    extra = {SPENT: sorted(trimmed_parents(meta).union(spent, noted))}
    ours = dataclasses.replace(ours, extra=extra)
    try:
        return await driver.run(agree(places, ours))
    except ConfigError:
        if ours.is_job:
            there = await driver.run(read_charter(places))
            await _finish_holds(stores, driver, admin, places, there)
        raise


async def _read(stores: Stores, driver: Driver, places: GroupPlaces) -> StreamMeta:
    site = Site.at(stores.layout, places.stream, stores.chance)
    meta: StreamMeta = (await driver.run(read_stream(site))).meta
    return meta


async def _marks(stores: Stores, meta: StreamMeta) -> dict[int, Mark]:
    """A cut that is right in every key."""
    tails = await tails_of(stores, meta)
    return {each.number: Mark(each.next_seq, each.is_over) for each in tails}


def shards_of(
    places: GroupPlaces,
    stores: Stores,
    charter: Charter,
    numbers: dict[str, int] | None = None,
    log_uids: dict[str, str] | None = None,
) -> Procedure[list[GroupShard]]:
    """Those that the group has to do, as the stream lists them now. `numbers` learns theirs, and
    `log_uids` those of their logs."""
    site = Site.at(stores.layout, places.stream, stores.chance)
    meta: StreamMeta = (yield from read_stream(site)).meta
    listed = [shard for shard in meta.shards if charter.end is None or shard.number in charter.end]
    logs = {shard.number: shard.log for shard in listed}
    if numbers is not None:  # of somebody who consumes them
        charter.check_stream(meta.uid, places.group)
        numbers.update((log, number) for number, log in logs.items())
    if log_uids is not None:
        # An older version writes the stream without them: what was known once stays so.
        log_uids.update((shard.log, shard.log_uid) for shard in listed if shard.log_uid)
    weights: dict[int, int] = {}
    if charter.weigh != COUNT:
        weights = yield from read_weights(places)
    return [
        GroupShard(
            shard.log,
            tuple(logs[n] for n in shard.parents if n in logs),
            weights.get(shard.number, AVERAGE),
        )
        for shard in listed
    ]
