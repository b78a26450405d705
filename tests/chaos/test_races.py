"""Several processes want to be the one writer, again and again, while another one tails the log."""

from __future__ import annotations

import os

import pytest

from dlog.testing.checkers import Story
from dlog.testing.history import Event, Op, Phase
from tests.chaos.arena import Arena
from tests.pace import stretched

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(os.name != "posix", reason="races real processes"),
]

# For so long they race, and then until each had its turns, or the time to have them is over.
RACE_S = 1.0
TURNS_S = 4.0


async def raced(arena: Arena, racers: int) -> Story:
    """A race from the first message on, tailed, and the survey after it."""
    async with arena.stage("starter") as stage:
        writer = await stage.open_writer()
        await writer.append()
    follower = arena.start("follow")
    follower.wait_line("following")
    children = [arena.start("race", RACE_S, stretched(TURNS_S)) for _ in range(racers)]
    for child in children:
        opened, acked = map(int, child.wait_line("raced").split()[1:])
        child.wait_success()
        assert opened >= 2, "a process that never gets its turn is starved"
        assert acked >= 1, "a process that never gets anything in is starved"
        print(f"a process of {racers}: {opened} times the writer, {acked} appends")
    story = await arena.survey(follower)
    _judge_follower(arena, story)
    epochs = [event.epoch for event in story.events if _opened(event)]
    assert len(set(epochs)) == len(epochs) >= 2 * racers
    return story


def _opened(event: Event) -> bool:
    return event.op is Op.OPEN and event.phase is Phase.OK


def _judge_follower(arena: Arena, story: Story) -> None:
    """It saw all that there was up to the end, once, in order: the checkers know that it did not
    skip; here, that it saw everything."""
    (followed,) = [r for name, r in story.readers.items() if name.startswith("follow")]
    assert followed.end is not None
    names = [event.name for event in followed.delivered]
    assert names == [event.name for event in story.log]


@pytest.mark.parametrize("racers", [2, 5])
async def test_processes_race_for_the_writer(arena: Arena, racers: int) -> None:
    await raced(arena, racers)
