"""Loopback ports that stay ours. A reserved port is a bound socket that never listens: the kernel
gives it to nobody who asks for any port, while the server, which binds with SO_REUSEADDR as every
JVM does, may have it. So nobody can slip in between choosing and starting, nor while a server of
ours is down."""

from __future__ import annotations

import socket
from types import TracebackType

LOOPBACK = "127.0.0.1"


class Port:
    """One reserved port, held until `release()`."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind((LOOPBACK, 0))
        # Only after the bind: with it the kernel might choose a port that another reservation
        # holds.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()

    def __enter__(self) -> Port:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def listens(port: int, *, timeout_s: float = 0.5) -> bool:
    """Whether somebody accepts there. A bookie accepts long before it serves: see `bookie`."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout_s):
            return True
    except OSError:
        return False
