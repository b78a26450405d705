"""Signals that end a command: SIGINT (Ctrl-C), SIGTERM and SIGHUP.

The first signal raises `Interrupted` in the main thread. The command closes what it opened, and
tells how far it came. A step that cannot be taken back may end first, for `STEP_S` at most, so that
its end is known. The second signal raises at once. The third ends the process. A signal that was
ignored when the command began (`nohup`) stays ignored.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

Answer = TypeVar("Answer")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STEP_S = 2.0  # after the first signal: how long a step that was begun may take to its end
KILLS = 3  # so many signals end the process where it is


class Interrupted(KeyboardInterrupt):
    """One of `SIGNALS` arrived."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.number = number


class Interrupts:
    """What has arrived, and whether the command may be interrupted where it is."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.arrived: list[int] = []
        self.told = "nothing was changed"  # of a command that changes something, at this point
        self._is_pending = False  # arrived, and not raised yet
        self._is_open = False
        self._is_held = False
        self._is_step = False
        self._alarm_before: Any = None  # while the time of a step runs
        self._cancel: Callable[[], object] | None = None

    @property
    def code(self) -> int:
        """The exit code of a command that one of them ended, as shells count."""
        return 128 + (self.arrived[0] if self.arrived else signal.SIGINT)

    @contextmanager
    def taken(self, *, for_good: bool) -> Iterator[None]:
        """Handle the signals. Whatever arrives outside of `raising` is noted only. `for_good`: the
        process ends behind this block, and no signal interrupts its end."""
        self._begin()
        before: dict[int, Any] = {}
        try:
            for each in SIGNALS:
                if signal.getsignal(each) not in (signal.SIG_IGN, None):
                    before[each] = signal.signal(each, self._on_signal)
        except ValueError:  # not the main thread: signals belong to the program around us
            before.clear()
        try:
            yield
        finally:
            for number, handler in before.items():
                if not for_good:
                    signal.signal(number, handler)

    @contextmanager
    def raising(self) -> Iterator[None]:
        """A signal that arrives here, or arrived before, raises `Interrupted`."""
        self._is_open = True
        try:
            self.check()
            yield
        finally:
            self._is_open = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """A few lines that only make sense together. A signal is noted; `check` raises it. No other
        thread is ever interrupted."""
        if not _is_main():
            yield
            return
        before, self._is_held = self._is_held, True
        try:
            yield
        finally:
            self._is_held = before

    @contextmanager
    def step(self, done: str = "what was told is done") -> Iterator[None]:
        """Something that cannot be taken back, and telling of it. The first signal raises behind
        the step, or after `STEP_S`. `done` tells of a step that the command says nothing about."""
        self.told = "what was under way may or may not have happened"
        self._is_step = True
        try:
            yield
            self.told = done
        finally:
            self._is_step = False
            if self._alarm_before is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, self._alarm_before)
                self._alarm_before = None
        self.check()

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Run it on an event loop of this thread. Each signal cancels it, and is raised when it has
        ended: raised in the middle of a loop, it could take a callback with it."""
        import asyncio

        async def cancellable() -> Answer:
            task, loop = asyncio.current_task(), asyncio.get_running_loop()
            assert task is not None
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            if self.arrived:
                task.cancel()
            try:
                return await work
            finally:
                self._cancel = None

        try:
            with self.held():
                return asyncio.run(cancellable())
        finally:
            self.check()

    def check(self) -> None:
        """Raise what arrived where it could not be raised."""
        if not self._is_pending or not self._is_open or self._is_held or not _is_main():
            return
        if not self._is_step or len(self.arrived) > 1:
            self._raise()

    def _raise(self) -> None:
        self._is_pending = False
        raise Interrupted(self.arrived[0])

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.arrived.append(number)
        self._is_pending = True
        if len(self.arrived) >= KILLS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if self._cancel is not None:
            self._cancel()
        elif not self._is_open or self._is_held:
            return
        elif self._is_step and len(self.arrived) == 1:
            alarm = signal.signal(signal.SIGALRM, self._on_alarm)
            self._alarm_before = signal.SIG_DFL if alarm is None else alarm
            signal.setitimer(signal.ITIMER_REAL, STEP_S)
        else:
            self._raise()

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_step and self._is_pending:
            self._raise()


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


INTERRUPTS = Interrupts()
