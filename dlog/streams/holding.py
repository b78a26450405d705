"""A hold on a whole stream, made and dropped. It keeps what its holder has not moved past in each
shard, and all of the shards that are still to come: see `dlog.meta.stream_holds`.

A maker may die between any two steps. What it leaves binds truncations, and whoever calls again
under its name goes on where it ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dlog.admin.admin import Admin
from dlog.drive import Driver, Stores
from dlog.effects import DeleteNode, Procedure, ReadNode
from dlog.errors import ConfigError, DlogError, NotFound, Outcome
from dlog.meta.stream_holds import (
    HoldMaking,
    StreamHold,
    confirm_hold,
    place_hold,
    read_stream_holds,
    take_back_hold,
)
from dlog.streams.document import StreamMeta
from dlog.streams.driver import StreamDriver
from dlog.streams.reshard import Site, read_stream
from dlog.together import some_at_once

AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class StreamHoldSummary:
    """Somebody's hold on a stream: in each shard no policy truncates past its hold on the log, and
    nothing of a shard where it has none."""

    name: str
    who: str
    since_us: int


async def make_stream_hold(
    driver: Driver, making: HoldMaking, hold_shards: Callable[[], Awaitable[Mapping[str, Any]]]
) -> None:
    """Make the node, then hold the shards, then confirm the node with the fields that `hold_shards`
    returns. `NotFound` when the stream or group was removed meanwhile. Its remover may have looked
    for holds before the node was made, so the node is deleted then."""
    hold, version = await driver.run(place_hold(making))
    if hold.made:
        return
    try:
        with _half_done():
            extra = await hold_shards()
            await driver.run(confirm_hold(making, hold, version, extra))
    except NotFound:
        await driver.run(take_back_hold(making))
        raise


async def hold_stream(stores: Stores, admin: Admin, site: Site, name: str, who: str) -> None:
    driver = StreamDriver(stores)
    meta: StreamMeta = (await driver.run(read_stream(site))).meta
    path = stores.layout.stream_hold(site.name, name)
    making = HoldMaking(
        path,
        StreamHold(name, meta.uid, who, stores.clock.wall_us()),
        lambda hold: hold.stream_uid == meta.uid,
        lambda: read_stream(site.of(meta)),
        stores.chance,
    )
    held: list[str] = []

    async def hold_log(log: str) -> None:
        # Not made yet: it sees the node from its first truncation on. Or held further on.
        with contextlib.suppress(NotFound, ConfigError):
            await admin.hold(log, name, "earliest", who=who)
            held.append(log)

    async def hold_shards() -> Mapping[str, Any]:
        await some_at_once(AT_ONCE, hold_log, [shard.log for shard in meta.shards])
        return {}

    try:
        await make_stream_hold(driver, making, hold_shards)
    except NotFound:
        try:
            await stores.meta.get(path)  # a later stream of this name is held under this name, too
        except NotFound:
            await drop_log_holds(admin, held, name)
        raise


async def drop_log_holds(admin: Admin, logs: Iterable[str], name: str) -> list[str]:
    """The logs that had a hold of this name."""
    dropped: list[str] = []

    async def drop(log: str) -> None:
        with contextlib.suppress(NotFound):
            await admin.drop_hold(log, name)
            dropped.append(log)

    await some_at_once(AT_ONCE, drop, list(logs))
    return dropped


async def drop_stream_hold(stores: Stores, admin: Admin, site: Site, name: str) -> None:
    """`NotFound` when there is none of this name, neither on the stream nor on any shard."""
    driver = StreamDriver(stores)
    meta: StreamMeta = (await driver.run(read_stream(site))).meta
    was_held = await driver.run(_delete(stores.layout.stream_hold(site.name, name), meta.uid))
    with _half_done():
        dropped = await drop_log_holds(admin, [shard.log for shard in meta.shards], name)
    if not was_held and not dropped:
        raise NotFound(f"stream {site.name!r} has no hold {name!r}")


@contextlib.contextmanager
def _half_done() -> Iterator[None]:
    """What fails now failed behind a change: the same call, made again, goes on. Where the stream
    is gone, there is nothing to go on with."""
    try:
        yield
    except NotFound:
        raise
    except DlogError as error:
        error.outcome = Outcome.UNKNOWN
        raise


def list_stream_holds(stores: Stores, site: Site) -> Procedure[tuple[StreamHoldSummary, ...]]:
    uid = (yield from read_stream(site)).meta.uid
    found = yield from read_stream_holds(stores.layout, site.name, uid)
    told = (StreamHoldSummary(each.name, each.who, each.since_us) for each in found)
    return tuple(sorted(told, key=lambda hold: hold.name))


def _delete(path: str, uid: str) -> Procedure[bool]:
    try:
        raw, version = yield ReadNode(path)
        if StreamHold.from_bytes(raw, "", where=path).stream_uid != uid:
            return False
        yield DeleteNode(path, version)
    except NotFound:
        return False
    return True
