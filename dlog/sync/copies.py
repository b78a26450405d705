"""Copying a log, for programs without an event loop. Ctrl-C gets through: what was read is
acknowledged first, and the copy is left so that it can go on."""

from __future__ import annotations

import asyncio

from dlog import client as aio
from dlog import copies
from dlog.copying.copier import Tell
from dlog.copying.progress import CopyProgress
from dlog.errors import ConfigError
from dlog.options import LogOptions
from dlog.sync.client import Client


def copy_log(
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
    """See `dlog.aio.copy_log`. Of clients only what they connect to is used. `tell` is called on
    this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_copy(source, log, target, name, follow, create, owner, tell))
    raise ConfigError("a blocking call on an event loop; use dlog.aio.copy_log")


async def _copy(
    source: str | Client,
    log: str,
    target: str | Client,
    name: str | None,
    follow: bool,
    create: LogOptions | None,
    owner: str | None,
    tell: Tell | None,
) -> CopyProgress:
    async with _connect(source) as there, _connect(target) as here:
        return await copies.copy_log(
            there, log, here, name, follow=follow, create=create, owner=owner, tell=tell
        )


def _connect(place: str | Client) -> aio.Client:
    """The clients of this API have a loop each, and a copy needs one for both."""
    return aio.Client(place._inner._url) if isinstance(place, Client) else aio.connect(place)
