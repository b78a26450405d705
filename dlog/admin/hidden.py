"""No log takes the name of a stream, or of a shard that a stream has or will have: readers of the
stream would never see its messages. And a log that became a stream is its first shard, which goes
with the stream only."""

from __future__ import annotations

import contextlib
from typing import Any

from dlog.admin.remove import remove
from dlog.drive import Driver, Stores
from dlog.errors import ConfigError, NotFound
from dlog.meta.json_fields import load, the_int, the_list
from dlog.meta.listed import WriterMark
from dlog.writer.owner import default_owner


async def refuse_stream(stores: Stores, name: str, uid: str | None = None) -> None:
    """`ConfigError` where `name` is a stream, or is for a shard of one. A log that became a stream
    is none of that, if it has this `uid` (None: whatever it has)."""
    fields = await _document(stores, name)
    if fields is not None and not _lists(fields, name, uid):
        raise ConfigError(
            f"{name!r} is a stream: open it with client.stream({name!r}). A log of that name would "
            "be hidden from the stream's readers",
            log=name,
        )
    stream, _, number = name.rpartition("/")
    if not stream or not number.isdecimal():
        return
    fields = await _document(stores, stream)
    if fields is None or fields.get("state") == "deleting":
        return
    is_to_come = int(number) >= the_int(fields, "next_number", stores.layout.stream(stream))
    if is_to_come or _lists(fields, name, None):
        raise ConfigError(
            f"{name!r} is the name of a shard of stream {stream!r}: write to it with "
            f"client.stream({stream!r}), or choose another name",
            log=name,
        )


async def withdraw_if_hidden(stores: Stores, name: str, uid: str) -> None:
    """The same, behind the making of the log with this uid, which is still empty: it is removed
    again. So one of two who make a stream and a log at the same time sees the other."""
    try:
        await refuse_stream(stores, name, uid)
    except ConfigError:
        now_us = stores.clock.wall_us()
        remover = WriterMark(stores.chance.token(), default_owner(), now_us)
        driver = Driver(stores.meta, stores.ledgers, clock=stores.clock)
        with contextlib.suppress(NotFound, ConfigError):  # it is gone, or a shard by now
            await driver.run(remove(name, stores.layout, remover, now_us, stores.chance))
        raise


async def refuse_first_shard(stores: Stores, name: str) -> None:
    """`ConfigError` for a log that became a stream: it is its first shard now."""
    fields = await _document(stores, name)
    if fields is not None and _lists(fields, name, None):
        raise ConfigError(
            f"the log {name!r} is a shard of the stream {name!r}: end, trim or remove the stream",
            log=name,
        )


async def _document(stores: Stores, name: str) -> dict[str, Any] | None:
    """None where there is no stream."""
    path = stores.layout.stream(name)
    try:
        raw, _ = await stores.meta.get(path)
    except NotFound:
        return None
    return load(raw, path)


def _lists(fields: dict[str, Any], log: str, uid: str | None) -> bool:
    for shard in the_list(fields, "shards", "a stream"):
        if isinstance(shard, dict) and shard.get("log") == log:
            return uid is None or shard.get("log_uid") in (None, uid)
    return False
