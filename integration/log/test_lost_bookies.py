"""A bookie is lost at every step of a rotation and of a takeover, as the step is announced: before
its message leaves us or after its fact arrived; killed at every fourth, frozen at the others.
Whoever was at it comes to its end, and the log is whole: judged by the checkers of the chaos tests.

Bookies that were killed come back while the next steps are tried; there are always enough. Each
step is tried on one of its sides, which takes turns; on both with DLOG_CRASH_CASES=all.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dlog import trace
from dlog.errors import Fenced
from dlog.testing.children import Children
from dlog.testing.cluster import Bookie, Cluster
from integration.bookkeeper.fault_tools import serves_again
from integration.conftest import OwnCluster
from tests.chaos.actors import RecordedWriter, Stage
from tests.chaos.arena import Arena
from tests.tidy.source import ROOT

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

SIDES = ("before", "after")
ALL = os.environ.get("DLOG_CRASH_CASES") == "all"
ROTATION = sorted(point for point in trace.POINTS if point.startswith("rotate."))
TAKEOVER = sorted(
    point
    for point in trace.POINTS | trace.BOOKIE_POINTS
    if point.startswith(("takeover.", "recovery.")) and point != "takeover.counted"
)  # nobody counts where no producer ever wrote
NEVER = {("takeover.read", "after")}  # not of a log that is there, in a quiet open
PAUSE_S = 0.02  # between two appends
MISSING_MAX = 1  # of five: so many may be on their way back


class Losses:
    """Who is killed next, and who comes back meanwhile."""

    def __init__(self, cluster: Cluster) -> None:
        self.counts = {"killed": 0, "frozen": 0}
        self._cluster = cluster
        self._returning: dict[Bookie, asyncio.Task[None]] = {}
        self._turns = itertools.count()

    async def victim(self, stage: Stage, writer: RecordedWriter) -> Bookie:
        """One that keeps the ledger at work: each place in turn."""
        while len(self._returning) >= MISSING_MAX:
            await asyncio.wait(self._returning.values(), return_when=asyncio.FIRST_COMPLETED)
            self._forget()
        assert writer.writer is not None
        stores = await stage.client._stores(False)
        ledger_id = writer.writer._engine.core.current.ledger_id
        stored = await stores.ledgers._nodes.read(ledger_id)  # type: ignore[attr-defined]
        ensemble = stored.metadata.fragments[-1].ensemble
        turns = [ensemble[next(self._turns) % 3], *ensemble]
        bookies = [self._cluster.bookie(each) for each in turns]
        return next(each for each in bookies if each not in self._returning)

    @contextmanager
    def at(self, point: str, side: str, victim: Bookie, *, kill: bool) -> Iterator[None]:
        is_hit = False

        def lose(reached: str, at: str) -> None:
            nonlocal is_hit
            if (reached, at) == (point, side) and not is_hit:
                is_hit = True
                if kill:
                    victim.kill()
                else:
                    victim.freeze()

        trace.listen(lose)
        try:
            yield
        finally:
            trace.listen(None)
        assert is_hit, f"{point}:{side} was not reached"
        self.counts["killed" if kill else "frozen"] += 1
        if not kill:
            victim.thaw()
            return
        self._returning[victim] = asyncio.ensure_future(self._come_back(victim))

    async def _come_back(self, bookie: Bookie) -> None:
        bookie.start()
        await serves_again(bookie)

    def _forget(self) -> None:
        for bookie in [each for each, task in self._returning.items() if task.done()]:
            self._returning.pop(bookie).result()

    async def end(self) -> None:
        await asyncio.gather(*self._returning.values())
        self._forget()


def _arena(cluster: Cluster, place: Path, case: str, children: Children) -> Arena:
    (place / case).mkdir()
    hosts = cluster.zookeeper.hosts
    url = f"zk://{hosts}/{case}?ledgers={cluster.ledgers_root}"
    return Arena(place / case, children, data=url)


async def _rotation(losses: Losses, arena: Arena, point: str, side: str, *, kill: bool) -> None:
    async with arena.stage("writer") as stage:
        writer = await stage.open_writer()
        await writer.append(2)
        with losses.at(point, side, await losses.victim(stage, writer), kill=kill):
            rotating = asyncio.ensure_future(writer.rotate())
            while not rotating.done():
                await writer.append_together(3, size=100)
                await asyncio.wait([rotating], timeout=PAUSE_S)
            await rotating
        await writer.append(2)
        await writer.close()
    story = await arena.survey()
    assert all(append.is_acked for append in story.appends.values()), "one bookie stops nothing"


async def _takeover(losses: Losses, arena: Arena, point: str, side: str, *, kill: bool) -> None:
    async with arena.stage("first") as old, arena.stage("second") as stage:
        first = await old.open_writer()
        await first.append(2)

        async def until_fenced() -> None:
            try:
                while True:
                    await first.append_together(3, size=100)
                    await asyncio.sleep(PAUSE_S)
            except Fenced:
                return

        writing = asyncio.ensure_future(until_fenced())
        with losses.at(point, side, await losses.victim(old, first), kill=kill):
            second = await stage.open_writer()
        await second.append(2)
        await writing
        await second.close()
    story = await arena.survey()
    assert all(append.is_acked for append in story.writers["second.1"].appends)


@pytest.mark.parametrize(
    ("program", "points"),
    [(_rotation, ROTATION), (_takeover, TAKEOVER)],
    ids=["rotation", "takeover"],
)
async def test_a_bookie_lost_at_every_step(
    own_cluster: OwnCluster,
    tmp_path: Path,
    program: Callable[..., Awaitable[None]],
    points: list[str],
) -> None:
    cluster = own_cluster(bookies=5)
    losses, cases = Losses(cluster), itertools.count()
    began_s, longest_s = time.monotonic(), 0.0
    with Children(tmp_path, python_path=ROOT) as children:
        for number, (point, side) in enumerate(itertools.product(points, SIDES)):
            # Sides take turns: one of each two, or both when asked for all.
            if (point, side) in NEVER or (not ALL and number % 4 in (1, 2)):
                continue
            case = f"{point}-{side}"
            start_s = time.monotonic()
            try:
                arena = _arena(cluster, tmp_path, case, children)
                # A restart costs seconds of processor time: most are frozen, and thawed again.
                kill = next(cases) % 4 == 0
                await program(losses, arena, point, side, kill=kill)
            except BaseException as error:
                error.add_note(f"a bookie was lost at {case}")
                raise
            longest_s = max(longest_s, time.monotonic() - start_s)
    took_s = time.monotonic() - began_s
    await losses.end()
    print(f"{losses.counts} in {took_s:.0f} s, the longest case {longest_s:.1f} s")
