"""The loop thread of a sync client. Calls wait interruptibly; exit and fork never hang on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dlog.errors import ConfigError, ForkedHandle, Outcome

Answer = TypeVar("Answer")

FAREWELL_S = 1.0  # for what still runs when the loop ends


class Portal:
    """Runs coroutines on a thread of its own. A daemon: an open client never keeps a program
    alive."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="dlog", daemon=True)
        self._thread.start()
        self._stopped = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Block until it is done. Ctrl-C gets through, and cancels it."""
        try:
            self._check()
        except BaseException:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            if not self._stopped:
                raise
            told = "this client was closed while it was asked"
            raise ConfigError(told, outcome=Outcome.UNKNOWN) from None
        except BaseException:
            future.cancel()  # of a call that ended by itself: no effect
            raise

    def ask(self, question: Callable[[], Answer]) -> Answer:
        """What only the loop's thread may look at. Where that is gone, nothing changes any more."""
        if not self.usable or threading.get_ident() == self._thread.ident:
            return question()

        async def asked() -> Answer:
            return question()

        return self.run(asked())

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedHandle("this handle was made before a fork; open one in this process")
        if self._stopped:
            raise ConfigError("this client is closed")
        if threading.get_ident() == self._thread.ident:
            raise ConfigError("a blocking call on dlog's own thread would wait for itself")

    @property
    def usable(self) -> bool:
        return not self._stopped and os.getpid() == self._pid

    def stop(self) -> None:
        """Ends the thread. Idempotent; in the child of a fork there is none."""
        if not self.usable:
            return
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def abandon(self, last_work: Coroutine[Any, Any, object]) -> None:
        """Run one last thing, then end, without waiting for either."""
        if not self.usable:
            last_work.close()
            return
        self._stopped = True

        async def end() -> None:
            try:
                await last_work
            finally:
                self._loop.stop()

        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(end()))


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Whoever stops the loop, waiting for it or not: its thread closes it. Threads that still wait
    for an answer of it are told that there is none."""
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=FAREWELL_S))
            loop.run_until_complete(asyncio.sleep(0))  # and what their ends call
    finally:
        loop.close()
