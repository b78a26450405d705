"""dlog for asyncio: the same names as `dlog`, async.

async with dlog.aio.open_writer("orders", url="file:./data") as log:
    await log.append(b"paid")
"""

from __future__ import annotations

from typing import Any

from dlog.client import Client, Opening, connect
from dlog.options import LogOptions
from dlog.reader.places import Start
from dlog.reader.reader import Reader
from dlog.writer.tickets import IdRun, Ticket
from dlog.writer.writer import Writer

__all__ = [
    "Client",
    "IdRun",
    "Reader",
    "Ticket",
    "Writer",
    "connect",
    "open_reader",
    "open_writer",
]


def open_writer(
    name: str, url: str | None = None, *, create: bool | LogOptions = True, **options: Any
) -> Opening[Writer]:
    """One log's writer, with a client of its own. Options as of `Client.open_writer`."""
    return Opening(_own(url, "open_writer", name, create=create, **options))


def open_reader(
    name: str,
    url: str | None = None,
    *,
    start: Start = "earliest",
    end: Start | None = None,
    **options: Any,
) -> Opening[Reader]:
    """One log's reader, with a client of its own. Options as of `Client.open_reader`."""
    return Opening(_own(url, "open_reader", name, start=start, end=end, **options))


async def _own(url: str | None, verb: str, name: str, **options: Any) -> Any:
    """The handle owns the client: closing the one closes the other."""
    client = connect(url)
    try:
        handle = await getattr(client, verb)(name, **options)
    except BaseException:
        await client.close()
        raise
    client.belong_to(handle)
    return handle
