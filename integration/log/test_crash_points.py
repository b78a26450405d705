"""kill -9 at every step of a log's life on a real cluster, as the embedded backend's crash tests do
it (their programs, their checkers): afterwards the log opens, and nothing was lost.

Each step of bookies is killed at on one of its sides, which takes turns; of those of logs, which
files prove as well, every fifth one, or each (`make full`). For both sides, and early and late:
DLOG_CRASH_CASES=all python -m pytest integration/log/test_crash_points.py
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dlog.errors import NotFound
from dlog.testing.children import Children, CrashPoint
from dlog.testing.cluster import Cluster
from dlog.testing.history import Op, Phase
from dlog.trace import BOOKIE_POINTS, POINTS
from tests.chaos.actors import LOG
from tests.chaos.arena import Arena
from tests.chaos.test_crash_points import SIDES, as_a_stranger_would, hits_of
from tests.tidy.source import ROOT
from tests.tiers import in_full

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

ALL = os.environ.get("DLOG_CRASH_CASES") == "all"
AT_ONCE = 3
EMBEDDED = ("ledger.", "meta.", "recover.")
OF_LOGS = sorted(point for point in POINTS if not point.startswith(EMBEDDED))
# A change of bookies takes a bookie that is lost, and a run that was resent, one that is busy.
ELSEWHERE = {"bookie.change_stored", "bookie.resent"}
OF_BOOKIES = sorted(BOOKIE_POINTS - ELSEWHERE)


def _cases(*, every: bool) -> Iterator[CrashPoint]:
    for number, point in enumerate(OF_LOGS + OF_BOOKIES):
        if not (ALL or every or point in OF_BOOKIES or number % 10 in (0, 5)):
            continue  # so that both sides stay
        for turn, side in enumerate(SIDES):
            if not ALL and turn != number % 2:
                continue
            hits: Iterable[int] = (1, 2) if point in BOOKIE_POINTS else hits_of(point, side)
            for hit in hits if ALL else list(hits)[:1]:
                yield CrashPoint(point, side, hit)


async def _life(arena: Arena, crash: CrashPoint) -> None:
    child = arena.start("life", crash=crash)
    assert child.wait_end() == -signal.SIGKILL, f"{crash} was not reached: {child.lines}"
    await arena.survey()


async def _numbers(arena: Arena, crash: CrashPoint) -> None:
    child = arena.start("numbers", crash=crash)
    assert child.wait_end() == -signal.SIGKILL, f"{crash} was not reached: {child.lines}"
    await arena.survey()


async def _heal(arena: Arena, crash: CrashPoint) -> None:
    child = arena.start("heal", crash=crash)
    await as_a_stranger_would(arena, child)
    assert child.wait_end() == -signal.SIGKILL, f"{crash} was not reached: {child.lines}"
    await arena.survey()


async def _remove(arena: Arena, crash: CrashPoint) -> None:
    """Somebody else ends the removal; the next log of the name is another one, with higher ids."""
    child = arena.start("remove", crash=crash)
    assert child.wait_end() == -signal.SIGKILL, f"{crash} was not reached: {child.lines}"
    removed = arena.events()
    if (crash.point, crash.side) == ("remove.marked", "before"):
        await arena.survey()
        return
    old = [event for event in removed if event.op is Op.APPEND and event.phase is Phase.OK]
    async with arena.stage("remover") as stage:
        with pytest.raises(NotFound):
            await stage.read()
        try:
            await stage.client.admin.remove(LOG)
        except NotFound:
            assert (crash.point, crash.side) == ("remove.forgotten", "after")
        stores = await stage.client._stores(False)
        for ledger_id in {event.id.ledger_id for event in old if event.id is not None}:
            with pytest.raises(NotFound):
                await stores.ledgers.info(ledger_id)
    for history in arena.histories.iterdir():
        history.unlink()
    story = await arena.survey()
    assert story.log[0].id > max(event.id for event in old)
    assert story.log[0].epoch > max(event.epoch for event in removed)


PROGRAMS = {"heal": _heal, "remove": _remove, "producers": _numbers}


def _play(cluster: Cluster, place: Path, crash: CrashPoint) -> None:
    """On a thread of its own: the programs of the chaos tests wait for children."""
    name = str(crash).replace(":", "-")
    place = place / name
    place.mkdir()
    url = (
        f"zk://{cluster.zookeeper.hosts}/{place.parent.name}-{name}?ledgers={cluster.ledgers_root}"
    )
    with Children(place, python_path=ROOT) as children:
        program = PROGRAMS.get(crash.point.partition(".")[0], _life)
        if crash.point == "takeover.counted":
            program = _numbers
        try:
            asyncio.run(program(Arena(place, children, data=url), crash))
        except BaseException as error:
            error.add_note(f"killed at {crash}")
            raise


@pytest.mark.parametrize("every", in_full([False, True], but=[False], seconds=40))
async def test_killed_at_every_step(cluster: Cluster, tmp_path: Path, every: bool) -> None:
    at_once = asyncio.Semaphore(AT_ONCE)

    async def one(crash: CrashPoint) -> None:
        async with at_once:
            await asyncio.to_thread(_play, cluster, tmp_path, crash)

    cases = list(_cases(every=every))
    failures = [
        error
        for error in await asyncio.gather(*map(one, cases), return_exceptions=True)
        if error is not None
    ]
    print(f"{len(cases)} crashes")
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {len(cases)} crashes", failures)
