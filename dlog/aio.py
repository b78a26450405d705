"""dlog for asyncio: the same names as `dlog`, async.

async with dlog.aio.open_writer("orders", url="file:./data") as log:
    await log.append(b"paid")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dlog.client import Client, connect
from dlog.copies import copy_log
from dlog.metrics import NO_METRICS, Metrics
from dlog.opening import Opening
from dlog.options import LogOptions, TailMode
from dlog.reader.places import Start
from dlog.reader.reader import Reader
from dlog.standby.standby import Standby
from dlog.streams.config.config import Config
from dlog.streams.config.hot import HotConfig
from dlog.writer.job_segment import JobSegment
from dlog.writer.tickets import IdRun, Ticket
from dlog.writer.writer import Writer

if TYPE_CHECKING:
    from dlog.groups.group import Group
    from dlog.groups.shard_tracker import Tracker
    from dlog.groups.worker import Worker
    from dlog.streams.reader import StreamReader
    from dlog.streams.stream import Stream
    from dlog.streams.writer import StreamWriter

__all__ = [
    "Client",
    "Config",
    "Group",
    "HotConfig",
    "IdRun",
    "JobSegment",
    "Reader",
    "Standby",
    "Stream",
    "StreamReader",
    "StreamWriter",
    "Ticket",
    "Tracker",
    "Worker",
    "Writer",
    "connect",
    "copy_log",
    "open_reader",
    "open_standby",
    "open_writer",
]

_HOMES = {
    "Group": "dlog.groups.group",
    "Tracker": "dlog.groups.shard_tracker",
    "Worker": "dlog.groups.worker",
    "Stream": "dlog.streams.stream",
    "StreamReader": "dlog.streams.reader",
    "StreamWriter": "dlog.streams.writer",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dlog.aio' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def open_writer(
    name: str,
    url: str | None = None,
    *,
    create: bool | LogOptions = True,
    metrics: Metrics = NO_METRICS,
    **options: Any,
) -> Opening[Writer]:
    """One log's writer, with a client of its own. Options as of `Client.open_writer`."""
    return Opening(_own(url, metrics, "open_writer", name, create=create, **options))


def open_reader(
    name: str,
    url: str | None = None,
    *,
    start: Start = "earliest",
    end: Start | None = None,
    metrics: Metrics = NO_METRICS,
    **options: Any,
) -> Opening[Reader]:
    """One log's reader, with a client of its own. Options as of `Client.open_reader`."""
    return Opening(_own(url, metrics, "open_reader", name, start=start, end=end, **options))


def open_standby(
    name: str,
    url: str | None = None,
    *,
    start: Start = "earliest",
    tail: TailMode = "normal",
    create: bool | LogOptions = True,
    metrics: Metrics = NO_METRICS,
    **options: Any,
) -> Opening[Standby]:
    """One log's standby, with a client of its own, which its writer shares. Options as of
    `Client.open_standby`."""
    return Opening(
        _own(url, metrics, "open_standby", name, start=start, tail=tail, create=create, **options)
    )


async def _own(url: str | None, metrics: Metrics, verb: str, name: str, **options: Any) -> Any:
    """The handle owns the client: closing the one closes the other."""
    client = connect(url, metrics=metrics)
    try:
        handle = await getattr(client, verb)(name, **options)
    except BaseException:
        await client.close()
        raise
    client.belong_to(handle)
    return handle
