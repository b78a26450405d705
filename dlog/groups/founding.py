"""Making a group, or finding it made: its charter; and which shards it has to do."""

from __future__ import annotations

import dataclasses
from typing import Any

from dlog.drive import Driver, Stores
from dlog.effects import Procedure
from dlog.errors import NotFound
from dlog.groups.charter import COUNT, Charter, Mark, agree, read_charter
from dlog.groups.options import WorkerOptions
from dlog.groups.places import GroupPlaces
from dlog.groups.shards import GroupShard
from dlog.groups.weights import AVERAGE, read_weights
from dlog.streams.document import StreamMeta
from dlog.streams.reshard import Site, read_stream
from dlog.streams.tails import tails_of


async def found(
    stores: Stores, driver: Driver, places: GroupPlaces, options: WorkerOptions
) -> Charter:
    """`NotFound` where there is no such stream."""
    site = Site(places.stream, stores.layout.stream(places.stream), stores.chance)
    meta = (await driver.run(read_stream(site))).meta
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
    if options.start == "latest":
        begin = await _marks(stores, meta)
    if options.stop_at_end:
        end = begin if begin is not None else await _marks(stores, meta)
    return await driver.run(agree(places, dataclasses.replace(wanted, begin=begin, end=end)))


async def _marks(stores: Stores, meta: StreamMeta) -> dict[int, Mark]:
    """A cut that is right in every key."""
    tails = await tails_of(stores, meta)
    return {each.number: Mark(each.next_seq, each.is_over) for each in tails}


def shards_of(
    places: GroupPlaces, stores: Stores, charter: Charter, numbers: dict[str, int] | None = None
) -> Procedure[Any]:
    """Those that the group has to do, as the stream lists them now. `numbers` learns theirs."""
    site = Site(places.stream, stores.layout.stream(places.stream), stores.chance)
    meta: StreamMeta = (yield from read_stream(site)).meta
    listed = [shard for shard in meta.shards if charter.end is None or shard.number in charter.end]
    logs = {shard.number: shard.log for shard in listed}
    if numbers is not None:  # of somebody who consumes them
        charter.check_stream(meta.uid, places.group)
        numbers.update((log, number) for number, log in logs.items())
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
