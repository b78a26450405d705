"""Removing a group, with the stream that it was a group of or without it.

The charter goes first where leases are nodes: each names its group's uid, so a later group of the
name takes nothing from those that are left. A removal that died behind the leases would leave a
group that counts its epochs from 1 again. Leases in logs name no group, and go before the charter.
The holds go last: a founder looks at its charter behind each hold that it makes, and takes the hold
back where the charter is gone. A removal may die at any step: the next one goes on, also where the
charter is gone already.
"""

from __future__ import annotations

import contextlib

from dlog.admin.admin import Admin
from dlog.drive import Driver, Stores
from dlog.effects import DeleteNode, ListNodes, Procedure, ReadNode
from dlog.errors import Conflict, NotFound
from dlog.groups.charter import Charter, read_charter
from dlog.groups.holding import hold_name
from dlog.groups.places import GroupPlaces
from dlog.meta.layout import unescape
from dlog.streams.reshard import Site, read_stream


async def remove_group(stores: Stores, driver: Driver, places: GroupPlaces, admin: Admin) -> None:
    """`NotFound` where there is nothing of it. Nobody is a member."""
    charter: Charter | None = None
    with contextlib.suppress(NotFound):
        charter = await driver.run(read_charter(places))
    leased = await driver.run(_leased(places))
    logs = list(dict.fromkeys((*(await _listed(stores, driver, places)), *leased)))
    is_there = False
    if charter is not None and charter.leases == "nodes":
        is_there = await driver.run(_remove_charter(places, charter))
    else:
        for log in logs:
            with contextlib.suppress(NotFound):
                await admin.remove(places.lease_log(log))
    is_there |= await driver.run(_remove_nodes(places, charter))
    if charter is not None:
        is_there |= await driver.run(_remove_charter(places, charter))
    is_there |= await driver.run(_drop_stream_hold(stores, places))
    for log in logs:
        if await driver.run(_is_founded(places)):
            return  # anew: what is held now is another group's
        with contextlib.suppress(NotFound):
            await admin.drop_hold(log, hold_name(places.group, places.stream))
            is_there = True
    is_there |= await driver.run(_delete_empty(places.root))
    await driver.run(_delete_empty(places.root.rpartition("/")[0]))
    if not is_there:
        raise NotFound(f"stream {places.stream!r} has no group {places.group!r}")


async def _listed(stores: Stores, driver: Driver, places: GroupPlaces) -> list[str]:
    """Logs of the stream that is there now, of which the group may hold each."""
    try:
        seen = await driver.run(read_stream(Site.at(stores.layout, places.stream, stores.chance)))
    except NotFound:
        return []
    return [shard.log for shard in seen.meta.shards]


def _leased(places: GroupPlaces) -> Procedure[list[str]]:
    """Shards that have leases: also those that the stream does not list any more."""
    try:
        return [unescape(name) for name in (yield ListNodes(places.leases))]
    except NotFound:
        return []


def _is_founded(places: GroupPlaces) -> Procedure[bool]:
    try:
        yield ReadNode(places.charter)
    except NotFound:
        return False
    return True


def _remove_charter(places: GroupPlaces, ours: Charter) -> Procedure[bool]:
    """Whether it was there. That of a group made anew stays."""
    try:
        raw, version = yield ReadNode(places.charter)
        if Charter.from_bytes(raw, where=places.charter) == ours:
            yield DeleteNode(places.charter, version)
            return True
    except NotFound:
        pass
    return False


def _is_another(places: GroupPlaces, ours: Charter | None) -> Procedure[bool]:
    """A group was founded since."""
    try:
        return (yield from read_charter(places)) != ours
    except NotFound:
        return False


def _remove_nodes(places: GroupPlaces, ours: Charter | None) -> Procedure[bool]:
    """Whether there were any. A node that was read before no other group is found is none of
    another group's, unless it is at another version by then."""
    found = False
    for below in (places.leases, places.workers):
        try:
            names = yield ListNodes(below)
        except NotFound:
            continue
        for path in (f"{below}/{name}" for name in names):
            found |= yield from _delete_ours(path, places, ours)
        found |= yield from _delete_empty(below)
    found |= yield from _delete_ours(places.weights, places, ours)
    return found


def _delete_ours(path: str, places: GroupPlaces, ours: Charter | None) -> Procedure[bool]:
    try:
        _, version = yield ReadNode(path)
        if (yield from _is_another(places, ours)):
            return False
        yield DeleteNode(path, version)
    except NotFound:
        return False
    return True


def _drop_stream_hold(stores: Stores, places: GroupPlaces) -> Procedure[bool]:
    """One that is made, or changed, behind our look is that of a group that was founded since."""
    layout, stream = stores.layout, places.stream
    path = layout.stream_hold(stream, hold_name(places.group, stream))
    try:
        _, version = yield ReadNode(path)
        if (yield from _is_founded(places)):
            return True
        yield DeleteNode(path, version)
    except NotFound:
        return False
    except Conflict:
        return True
    yield from _delete_empty(layout.stream_holds(stream))
    return True


def _delete(path: str) -> Procedure[bool]:
    try:
        _, version = yield ReadNode(path)
        yield DeleteNode(path, version)
    except NotFound:
        return False
    return True


def _delete_empty(path: str) -> Procedure[bool]:
    """What is below it is another's."""
    try:
        return (yield from _delete(path))
    except Conflict:
        return True
