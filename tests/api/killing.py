"""Dying at a step, within the test's own process: what was asked of the stores so far stands, and
nothing else is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dlog import trace


class Killed(BaseException):
    """The process ends here."""


class Reached:
    hits = 0


@contextmanager
def killed_at(point: str, side: str, hit: int) -> Iterator[Reached]:
    """Whoever reaches this side of the point for the `hit`-th time raises `Killed`; nobody does
    after that."""
    reached = Reached()

    def kill(at: str, at_side: str) -> None:
        if (at, at_side) == (point, side):
            reached.hits += 1
            if reached.hits == hit:
                trace.listen(None)
                raise Killed

    trace.listen(kill)
    try:
        yield reached
    finally:
        trace.listen(None)
