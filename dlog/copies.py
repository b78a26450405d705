"""Copying a log between places that URLs name, or clients that are open already."""

from __future__ import annotations

from contextlib import AsyncExitStack

from dlog.admin.hidden import refuse_stream
from dlog.client import Client, connect
from dlog.copying.copier import Copier, Place, Tell
from dlog.copying.progress import CopyProgress
from dlog.errors import ConfigError
from dlog.ids import check_log_name
from dlog.options import LogOptions, WriterOptions
from dlog.writer.owner import default_owner


async def copy_log(
    source: str | Client,
    log: str,
    target: str | Client,
    name: str | None = None,
    *,
    follow: bool = False,
    create: LogOptions | None = None,
    owner: str | None = None,
    tell: Tell | None = None,
) -> CopyProgress:
    """Copy the log to another place: the same seqs, keys, values, headers and times, in entries as
    they are there. Cut short and called again, it goes on behind the last message that is there.

    `follow` goes on as messages come, until it is cancelled. `create` has the options of a copy
    that is made now; without it they are those of the log. `tell` hears how far it came.
    `AlreadyExists` if the target holds anything but a copy of this very log."""
    check_log_name(log)
    WriterOptions(owner=owner)  # refuses an owner that no writer could have
    to = log if name is None else check_log_name(name)
    if create is not None and not isinstance(create, LogOptions):
        raise ConfigError(f"create is LogOptions or None, not {create!r}")
    async with AsyncExitStack() as ending:
        clients = []
        for place in (source, target):
            if isinstance(place, Client):
                clients.append(place)
            else:
                clients.append(await ending.enter_async_context(connect(place)))
        there, here = clients
        stores = await here._stores(True)
        await refuse_stream(stores, to)
        copier = Copier(
            Place(await there._stores(False), log),
            Place(stores, to),
            follow=follow,
            create=lambda options: here._options_of_copy(create, options),
            owner=owner or default_owner(),
            tell=tell,
        )
        return await copier.run()
