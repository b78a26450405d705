"""Where the heart of a worker beats, and what comes when it has stopped: no task is left behind."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import pytest

from dlog.clock import SYSTEM_CLOCK
from dlog.groups.asks import StartShard
from dlog.groups.crew import Crew
from dlog.groups.homes import SameHome, ThreadHome


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_what_is_handed_in_at_the_last_moment_is_cancelled() -> None:
    """Whoever waits for it would wait for ever."""
    home = ThreadHome()
    handed: list[Future[None]] = []

    async def beat() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: handed.append(asyncio.run_coroutine_threadsafe(for_ever(), loop)))

    home.start(beat())
    await home.join()
    assert [each.cancelled() for each in handed] == [True]
    with pytest.raises(asyncio.CancelledError):
        await home.run(for_ever())


async def test_a_crew_that_was_dropped_begins_nothing() -> None:
    """An order may be on its way from the heart's thread. Nobody would end what it began: it would
    go on consuming for a worker that is gone."""
    crew = Crew(SYSTEM_CLOCK)
    crew.drop()
    crew._obey([StartShard("orders/0", 1, None)])
    assert crew.runs == {}


def is_alive(home: ThreadHome | SameHome) -> bool:
    return home.is_alive


async def test_a_home_in_which_nothing_beats_yet_does_nothing() -> None:
    home = ThreadHome()
    home.call(lambda: pytest.fail("nobody is at home"))
    await home.join()
    assert not home.is_alive


async def test_a_home_is_alive_until_its_heart_has_ended() -> None:
    """And whoever joins waits for that."""
    for home in (ThreadHome(), SameHome()):
        ended: list[bool] = []
        may_end = Future[None]()

        async def beat(ended: list[bool] = ended, may_end: Future[None] = may_end) -> None:
            await asyncio.wrap_future(may_end)
            ended.append(True)

        home.start(beat())
        assert is_alive(home)
        home.call(lambda may_end=may_end: may_end.set_result(None))  # type: ignore[misc]
        await home.join()
        assert ended == [True]
        assert not is_alive(home)
        home.call(lambda: None)  # too late, and nothing happens
