"""No log stands under the name of a stream: readers of the stream would never see its messages. And
a log that became a stream is its first shard, which goes with the stream only."""

from __future__ import annotations

import contextlib

from dlog.admin.remove import remove
from dlog.drive import Driver, Stores
from dlog.errors import ConfigError, NotFound
from dlog.meta.json_fields import load, the_list
from dlog.meta.listed import WriterMark
from dlog.writer.owner import default_owner


async def refuse_stream(stores: Stores, name: str) -> None:
    """`ConfigError` where `name` is a stream, and not one that this very log became."""
    logs = await _shard_logs(stores, name)
    if logs is not None and name not in logs:
        raise ConfigError(
            f"{name!r} is a stream: open it with client.stream({name!r}). A log of that name would "
            "be hidden from the stream's readers",
            log=name,
        )


async def withdraw_if_hidden(stores: Stores, name: str) -> None:
    """The same, behind the making of the log, which is still empty: it is removed again. So one of
    two who make a stream and a log at the same time sees the other."""
    try:
        await refuse_stream(stores, name)
    except ConfigError:
        now_us = stores.clock.wall_us()
        remover = WriterMark(stores.chance.token(), default_owner(), now_us)
        driver = Driver(stores.meta, stores.ledgers, clock=stores.clock)
        with contextlib.suppress(NotFound):
            await driver.run(remove(name, stores.layout, remover, now_us, stores.chance))
        raise


async def refuse_first_shard(stores: Stores, name: str) -> None:
    """`ConfigError` for a log that became a stream: it is its first shard now."""
    logs = await _shard_logs(stores, name)
    if logs is not None and name in logs:
        raise ConfigError(
            f"the log {name!r} is a shard of the stream {name!r}: end, trim or remove the stream",
            log=name,
        )


async def _shard_logs(stores: Stores, name: str) -> set[str] | None:
    """None where there is no stream."""
    path = stores.layout.stream(name)
    try:
        raw, _ = await stores.meta.get(path)
    except NotFound:
        return None
    shards = the_list(load(raw, path), "shards", path)
    return {str(shard.get("log")) for shard in shards if isinstance(shard, dict)}
