"""Wakes one process when another changed a shared mapped word, without a server between them.

A store into mapped memory wakes nobody, so the one who stored *rings*: it reads one byte of the
file. On Linux that read is an inotify event (`IN_ACCESS`) for everybody who waits on the file, and
it dirties nothing, so the file system's journal has no part in a wake-up. All waiters of one event
loop share one inotify descriptor. Where there is none, waiting is polling, 1 ms at first and 20 ms
at most.

A nudge is a hint: it may come late, twice or for nothing, so a waiter looks at the word after each
one, and looks again after a bounded time in any case.
"""

from __future__ import annotations

import os
import struct
import sys
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import asyncio

_POLL_FIRST_MS = 1.0
_POLL_LAST_MS = 20.0

_IN_ACCESS = 0x1
_IN_DELETE_SELF = 0x400
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, bytes of a name that follows (0 for a file)
_EVENTS_BYTES = 1 << 14


class Nudge(Protocol):
    async def wait(self, timeout_ms: float) -> bool:
        """True when the file was rung since the last True (or may have been: look), False after
        the time."""
        ...

    def found(self) -> None:
        """The look found news: where waiting is polling, begin again with short steps."""
        ...

    def close(self) -> None:
        """Idempotent. A waiter that is left comes back with False."""
        ...


def ring(target: str | os.PathLike[str] | int) -> None:
    """Wake whoever waits on this file (a path, or a descriptor open for reading)."""
    if isinstance(target, int):
        os.pread(target, 1, 0)
        return
    fd = os.open(target, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        os.pread(fd, 1, 0)
    finally:
        os.close(fd)


def nudge_for(path: str | os.PathLike[str]) -> Nudge:
    """A nudge for the running loop. The file must exist (`FileNotFoundError`) and not be empty."""
    os.stat(path)
    hub = _hub_of_running_loop()
    if hub is not None:
        nudge = hub.add(os.fspath(path))
        if nudge is not None:
            return nudge
    return PollingNudge()


class PollingNudge:
    """Cannot hear anything, so it advises to look, ever more rarely."""

    def __init__(self) -> None:
        self._step_ms = _POLL_FIRST_MS

    async def wait(self, timeout_ms: float) -> bool:
        import asyncio

        step_ms = min(self._step_ms, timeout_ms)
        self._step_ms = min(_POLL_LAST_MS, self._step_ms * 2)
        await asyncio.sleep(max(0.0, step_ms) / 1000)
        return step_ms < timeout_ms

    def found(self) -> None:
        self._step_ms = _POLL_FIRST_MS

    def close(self) -> None:
        pass


class InotifyNudge:
    def __init__(self, hub: _Hub, watch: int) -> None:
        self._hub = hub
        self._watch = watch
        self._rung = False
        self._closed = False
        self._waiters: set[asyncio.Future[None]] = set()

    def hear(self) -> None:
        self._rung = True
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_ms: float) -> bool:
        import asyncio

        if not self._rung and not self._closed:
            loop = asyncio.get_running_loop()
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.add(waiter)
            timer = loop.call_later(max(0.0, timeout_ms) / 1000, _settle, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.discard(waiter)
        rung, self._rung = self._rung, False
        return rung

    def found(self) -> None:
        pass

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._hub.remove(self._watch, self)
            self._wake()


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Hub:
    """The one inotify descriptor of a loop. It lives while it has a nudge."""

    def __init__(self, loop: asyncio.AbstractEventLoop, libc: Any, fd: int) -> None:
        self._loop = loop
        self._libc = libc
        self._fd = fd
        self._nudges: dict[int, list[InotifyNudge]] = {}
        loop.add_reader(fd, self._on_readable)

    def add(self, path: str) -> InotifyNudge | None:
        """None when the kernel gives no more watches: the caller polls."""
        # The same file gives the same watch again, so that several nudges share it.
        watch = self._libc.inotify_add_watch(
            self._fd, os.fsencode(path), _IN_ACCESS | _IN_DELETE_SELF
        )
        if watch < 0:
            self._end_if_idle()
            return None
        nudge = InotifyNudge(self, watch)
        self._nudges.setdefault(watch, []).append(nudge)
        return nudge

    def remove(self, watch: int, nudge: InotifyNudge) -> None:
        nudges = self._nudges[watch]
        nudges.remove(nudge)
        if not nudges:
            del self._nudges[watch]
            self._libc.inotify_rm_watch(self._fd, watch)  # refused if the file went first: no harm
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if not self._nudges:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)
            os.close(self._fd)
            _hubs.pop(self._loop, None)

    def _on_readable(self) -> None:
        try:
            events = os.read(self._fd, _EVENTS_BYTES)
        except BlockingIOError:
            return
        at, heard = 0, set()
        while at < len(events):
            watch, _mask, _cookie, name_bytes = _EVENT.unpack_from(events, at)
            at += _EVENT.size + name_bytes
            heard.add(watch)
        # Watch -1 says that the queue overflowed: anybody may have been rung.
        for watch in list(self._nudges) if -1 in heard else heard:
            for nudge in self._nudges.get(watch, ()):
                nudge.hear()


_hubs: WeakKeyDictionary[asyncio.AbstractEventLoop, _Hub] = WeakKeyDictionary()


def _hub_of_running_loop() -> _Hub | None:
    import asyncio

    if not sys.platform.startswith("linux"):
        return None
    loop = asyncio.get_running_loop()
    hub = _hubs.get(loop)
    if hub is None:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            return None
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:  # the user's limit of inotify instances: polling still works
            return None
        hub = _hubs[loop] = _Hub(loop, libc, fd)
    return hub
