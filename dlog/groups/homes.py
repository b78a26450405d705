"""Where a worker's heart beats: on a thread with an event loop of its own, which no program of the
user can block, or (in a simulation) on the loop that is there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

Answer = TypeVar("Answer")


class Home(Protocol):
    def start(self, beat: Coroutine[Any, Any, None]) -> None:
        """Run it, until it ends by itself."""
        ...

    def call(self, what: Callable[[], None]) -> None:
        """Soon, on the heart's loop; from any thread. Nothing, once that has ended."""
        ...

    async def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """On the heart's loop, for whoever waits on another one."""
        ...

    async def join(self) -> None:
        """Until the heart has ended."""
        ...

    @property
    def is_alive(self) -> bool: ...


class ThreadHome:
    """A daemon: a worker that nobody closed never keeps a program alive."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_over = False

    def start(self, beat: Coroutine[Any, Any, None]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._loop, beat), name="dlog-group", daemon=True
        )
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        loop = self._loop
        return loop is not None and not loop.is_closed() and self._pid == os.getpid()

    def call(self, what: Callable[[], None]) -> None:
        if self._loop is None:
            return
        with contextlib.suppress(RuntimeError):  # it ended just now
            self._loop.call_soon_threadsafe(what)

    async def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        assert self._loop is not None
        with self._lock:
            if self._is_over:
                work.close()
                raise asyncio.CancelledError
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.wrap_future(future)

    async def join(self) -> None:
        thread = self._thread
        if thread is not None:
            await asyncio.to_thread(thread.join)

    def _run(self, loop: asyncio.AbstractEventLoop, beat: Coroutine[Any, Any, None]) -> None:
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(beat)
        finally:
            with self._lock:
                self._is_over = True
            loop.run_until_complete(_a_turn())  # what was handed in by then becomes tasks
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            asyncio.set_event_loop(None)
            loop.close()


async def _a_turn() -> None:
    await asyncio.sleep(0)


class SameHome:
    """The loop that we were made on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def start(self, beat: Coroutine[Any, Any, None]) -> None:
        self._task = self._loop.create_task(beat)

    @property
    def is_alive(self) -> bool:
        return self._task is None or not self._task.done()

    def call(self, what: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon(what)

    async def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return await self._loop.create_task(work)

    async def join(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})
