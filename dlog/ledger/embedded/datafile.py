"""Reading bytes of a data file: inline when the page cache has them, else from a thread.

A page-cache read of 4 MiB takes 0.13 ms, about what a hop to a thread and back costs; a cold read
would hold the event loop for the disk. Linux tells the two apart before it begins (`RWF_NOWAIT`);
elsewhere every read hops.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from dlog.errors import DlogError, Outcome, Unavailable
from dlog.ledger.embedded.background import in_background

T = TypeVar("T")

_NOWAIT = getattr(os, "RWF_NOWAIT", None)
_NOT_OFFERED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class WouldWait(Exception):
    """The bytes are not in memory; never leaves this room."""


class DataFile:
    """A descriptor, closed when its last read is done. `run` and `close` on the loop only."""

    def __init__(self, path: str, ledger_id: int) -> None:
        """`FileNotFoundError` when there is none."""
        self.path = path
        self.ledger_id = ledger_id
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._reads = 0
        self._closing = False

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def sync(self) -> None:
        getattr(os, "fdatasync", os.fsync)(self._fd)

    def next_data(self, offset: int) -> int | None:
        """Where bytes that were ever written go on; None behind the last of them. Reserved space is
        skipped where the file system can tell."""
        if not hasattr(os, "SEEK_DATA"):
            return offset
        try:
            return os.lseek(self._fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise

    def read(self, offset: int, size: int, *, wait: bool) -> bytearray:
        """Up to `size` bytes; fewer only at the end of the file. Without `wait`, `WouldWait`
        instead of asking the disk."""
        buffer = bytearray(size)
        view = memoryview(buffer)
        done = 0
        while done < size:
            count = self._read_into(view[done:], offset + done, wait)
            if count == 0:
                break
            done += count
        view.release()
        if done < size:
            del buffer[done:]
        return buffer

    def _read_into(self, view: memoryview, offset: int, wait: bool) -> int:
        if wait:
            return os.preadv(self._fd, [view], offset)
        if _NOWAIT is None:
            raise WouldWait
        try:
            return os.preadv(self._fd, [view], offset, _NOWAIT)
        except BlockingIOError:
            raise WouldWait from None
        except OSError as error:
            if error.errno in _NOT_OFFERED:
                raise WouldWait from None
            raise

    async def run(self, step: Callable[[bool], T]) -> T:
        """`step(False)` at once, or `step(True)` on a thread if that would wait for the disk."""
        try:
            try:
                return step(False)
            except WouldWait:
                return await self._on_thread(step)
        except OSError as error:
            raise disk_error(error, "read", self.path, self.ledger_id) from error

    async def _on_thread(self, step: Callable[[bool], T]) -> T:
        self._reads += 1
        running = in_background(partial(step, True))
        # A cancelled wait leaves the thread reading, so the descriptor must outlive the waiter.
        running.add_done_callback(lambda _: self._done())
        return await asyncio.shield(running)

    def _done(self) -> None:
        self._reads -= 1
        self._close_if_idle()

    def close(self) -> None:
        self._closing = True
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._closing and self._reads == 0 and self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def reserve(fd: int, begin: int, end: int) -> bool:
    """Gives a part of a file its blocks, as zeros, and leaves what is there alone; False where the
    platform or the file system does not offer that."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(fd, begin, end - begin)
    except OSError as error:
        if error.errno in _NOT_OFFERED:
            return False
        raise
    return True


def disk_error(
    error: OSError,
    verb: str,
    path: str,
    ledger_id: int | None = None,
    outcome: Outcome = Outcome.NOT_HAPPENED,
) -> DlogError:
    name = errno.errorcode.get(error.errno or 0, "an unknown error")
    return Unavailable(
        f"cannot {verb} {path}: {error.strerror} ({name})",
        outcome=outcome,
        path=path,
        ledger_id=ledger_id,
        missing=path,
    )
