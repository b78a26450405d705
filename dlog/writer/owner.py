"""Who we are: for people by user, host and process, for the log by a token of our own."""

from __future__ import annotations

import functools
import os

from dlog.drive import Stores
from dlog.meta.listed import WriterMark


def default_owner() -> str:
    return f"{_user_and_host()}:{os.getpid()}"


@functools.cache
def _user_and_host() -> str:
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid()) if hasattr(os, "getuid") else "user"
    return f"{user}@{socket.gethostname()}"


def new_mark(stores: Stores, owner: str | None = None) -> WriterMark:
    return WriterMark(stores.chance.token(), owner or default_owner(), stores.clock.wall_us())
