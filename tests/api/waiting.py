"""Waiting for a fact, with a bound; and holding the product at one of its crash points."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from dlog import trace
from tests.pace import Deadline, waited

DEADLINE_S = 20.0
LOOK_AGAIN_S = 0.002
ASK_AGAIN_S_MAX = 0.05


async def eventually(
    fact: Callable[[], object],
    otherwise: Callable[[], str] = lambda: "it did not happen",
    deadline_s: float = DEADLINE_S,
) -> None:
    """Other tasks run while we look."""
    deadline = Deadline(deadline_s)
    while not (found := fact()):
        assert not deadline.passed(), otherwise()
        await asyncio.sleep(LOOK_AGAIN_S)
    assert not inspect.isawaitable(found), f"{found!r} is true before it is asked: see `until`"


async def until(fact: Callable[[], Awaitable[bool]], deadline_s: float = DEADLINE_S) -> None:
    """Of what has to be asked for, less and less often: a question costs as much as an answer."""
    deadline = Deadline(deadline_s)
    pause_s = LOOK_AGAIN_S
    while not await fact():
        assert not deadline.passed(), "it did not happen"
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, ASK_AGAIN_S_MAX)


class Gate:
    """Holds every thread that reaches a crash point, until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.reached = threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert waited(self._open.wait, DEADLINE_S), "the gate was never opened"

    def open(self) -> None:
        self._open.set()


@contextmanager
def held_at(point: str, side: str = "before", *, only_first: bool = False) -> Iterator[Gate]:
    """Whoever reaches `point` stops there; with `only_first`, the thread that does so first. Only
    for points on threads that are not the test's own: the committer's (`ledger.…`) are."""
    assert point in trace.KNOWN_POINTS, f"{point!r} is no crash point: nothing would be held"
    assert side in ("before", "after"), side
    gate = Gate()
    held = list[int]()

    def on_point(reached: str, reached_side: str) -> None:
        if (reached, reached_side) == (point, side):
            held.append(threading.get_ident())
            if not only_first or held[0] == threading.get_ident():
                gate.pass_through()

    trace.listen(on_point)
    try:
        yield gate
    finally:
        gate.open()
        trace.listen(None)
