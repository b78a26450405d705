"""Generators where drivers have coroutines: a *flow* yields what it waits for, and is sent the
answer or has the error thrown in.

What it waits for is an *asking*: called with the callback that takes the answer. Nothing here
knows time; a flow of a process that died is never gone on with.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from dlog.errors import Broken, DlogError

T = TypeVar("T")

Answered = Callable[[Any, DlogError | None], None]
Asking = Callable[[Answered], None]
Flow = Generator[Asking, Any, T]


def run(flow: Flow[Any], answer: Answered) -> None:
    """To its end. Errors of this library are its answer; all others are defects, and so are
    promises that did not hold."""

    def step(value: Any, error: DlogError | None) -> None:
        try:
            asking = flow.send(value) if error is None else flow.throw(error)
        except StopIteration as end:
            answer(end.value, None)
            return
        except Broken:
            raise
        except DlogError as failure:
            answer(None, failure)
            return
        asking(step)

    step(None, None)


class Pending:
    """A flow that goes on beside the one that began it."""

    def __init__(self, flow: Flow[Any]) -> None:
        self.is_done = False
        self.value: Any = None
        self.error: DlogError | None = None
        self._waiting: list[Callable[[], None]] = []
        run(flow, self._end)

    def _end(self, value: Any, error: DlogError | None) -> None:
        self.is_done, self.value, self.error = True, value, error
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each()

    def when_done(self, what: Callable[[], None]) -> None:
        if self.is_done:
            what()
        else:
            self._waiting.append(what)


def any_of(
    *pendings: Pending,
    timeout_ms: float | None = None,
    after: Callable[[float, Callable[[], None]], None] | None = None,
) -> Asking:
    """→ nothing, once one of them is done or the time is over."""

    def asking(answer: Answered) -> None:
        is_answered = False

        def once() -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                answer(None, None)

        if timeout_ms is not None and after is not None:
            after(timeout_ms, once)
        for each in pendings:
            each.when_done(once)

    return asking


def pause(after: Callable[[float, Callable[[], None]], None], delay_ms: float) -> Asking:
    return lambda answer: after(delay_ms, lambda: answer(None, None))
