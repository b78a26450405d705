"""A hold on a whole stream, made and dropped. It keeps what its holder has not moved past in each
shard, and all of the shards that are still to come: see `dlog.meta.stream_holds`.

A maker may die between any two steps. What it leaves binds truncations, and whoever calls again
under its name goes on where it ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from dlog import limits
from dlog.admin.admin import Admin
from dlog.drive import Stores
from dlog.effects import DeleteNode, Procedure, ReadNode
from dlog.errors import AlreadyExists, ConfigError, Conflict, DlogError, NotFound, Outcome
from dlog.meta.stream_holds import StreamHold, read_stream_holds
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


async def hold_stream(stores: Stores, admin: Admin, site: Site, name: str, who: str) -> None:
    driver = StreamDriver(stores)
    meta: StreamMeta = (await driver.run(read_stream(site))).meta
    path = stores.layout.stream_hold(site.name, name)
    wanted = StreamHold(name, meta.uid, who, stores.clock.wall_us())
    for _ in range(limits.META_ATTEMPTS_MAX):
        try:
            raw, version = await stores.meta.get(path)
            hold = StreamHold.from_bytes(raw, name, where=path)
            if hold.stream_uid == meta.uid:
                break
            await stores.meta.put(path, wanted.to_bytes(), version)  # a removed stream's
        except NotFound:
            with contextlib.suppress(AlreadyExists):
                await stores.meta.create(path, wanted.to_bytes())
        except Conflict:
            continue
    else:
        raise Conflict(f"the hold {name!r} of stream {site.name!r} keeps changing", path=path)
    if hold.made:
        return

    async def hold_log(log: str) -> None:
        # Not made yet: it sees the node from its first truncation on. Or held further on.
        with contextlib.suppress(NotFound, ConfigError):
            await admin.hold(log, name, "earliest", who=who)

    with _half_done():
        await some_at_once(AT_ONCE, hold_log, [shard.log for shard in meta.shards])
    with (
        contextlib.suppress(Conflict, NotFound),
        _half_done(),
    ):  # by somebody who did the same, or dropped it
        await stores.meta.put(path, dataclasses.replace(hold, made=True).to_bytes(), version)


async def drop_stream_hold(stores: Stores, admin: Admin, site: Site, name: str) -> None:
    """`NotFound` when there is none of this name, neither on the stream nor on any shard."""
    driver = StreamDriver(stores)
    meta: StreamMeta = (await driver.run(read_stream(site))).meta
    dropped = [await driver.run(_delete(stores.layout.stream_hold(site.name, name), meta.uid))]

    async def drop(log: str) -> None:
        with contextlib.suppress(NotFound):
            await admin.drop_hold(log, name)
            dropped.append(True)

    with _half_done():
        await some_at_once(AT_ONCE, drop, [shard.log for shard in meta.shards])
    if not any(dropped):
        raise NotFound(f"stream {site.name!r} has no hold {name!r}")


@contextlib.contextmanager
def _half_done() -> Iterator[None]:
    """What fails now failed behind a change: the same call, made again, goes on."""
    try:
        yield
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
