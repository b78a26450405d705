"""What becomes of a handle when our own code fails on its event loop: it ends, loudly, and every
message is told. Without this asyncio would log the error and everybody would wait for ever."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from dlog.errors import DlogError, Handle, Outcome, as_broken
from dlog.writer.batch import Batch

_log = logging.getLogger("dlog.writer")


class Breakable(Protocol):
    def break_down(self, error: Exception) -> None: ...


_Self = TypeVar("_Self", bound=Breakable)
_Args = ParamSpec("_Args")


def guarded(
    method: Callable[Concatenate[_Self, _Args], Any],
) -> Callable[Concatenate[_Self, _Args], None]:
    """For what timers, appenders and the loop call: a failure ends the handle, not its caller."""

    @functools.wraps(method)
    def call(self: _Self, *args: _Args.args, **options: _Args.kwargs) -> None:
        try:
            method(self, *args, **options)
        except Exception as error:  # noqa: BLE001 - a defect must end the handle, not its loop
            self.break_down(error)

    return call  # type: ignore[return-value]


def as_death(error: Exception, who: str, log: str) -> DlogError:
    """The error that the handle dies of, which is logged."""
    _log.error("%s broke: %s", who, error, exc_info=error)
    return as_broken(error, who, log=log).again(handle=Handle.DEAD)


def fail_batches(error: DlogError, sent: list[Batch], left: list[Batch]) -> None:
    """What was sent is unknown, what was not did not happen."""
    for batch in sent:
        batch.resolve(error.again(outcome=Outcome.UNKNOWN, handle=Handle.DEAD))
    for batch in left:
        batch.resolve(error.again(outcome=Outcome.NOT_HAPPENED, handle=Handle.DEAD))


def forget_frames(error: BaseException | None) -> None:
    """Let go of the frames that it, and what caused it, was raised in."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
