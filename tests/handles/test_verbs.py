"""Each single step of each verb fails: once, once behind its doing, and from there on for long. The
same verb, called again, completes or says what is so.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import dlog
from dlog.admin.admin import Admin
from dlog.errors import DlogError, Handle, Retry
from dlog.testing.sim import Simulation, simulate
from tests.handles.faults import FAILS_AFTER_S, Faults
from tests.handles.lives import TURN_S
from tests.handles.verbs import VERBS, Calling

LASTS_S = 20.0
COMPLETES_S = 5.0  # with the pauses of a loop that met errors for long
STEPS_MAX = 400

# Methods that no row is about, and why.
NOT_PLAYED = {
    "Admin": {
        "discard_segments": "job segments have rows of their own",
        "examine": "whatever is wrong is a finding, not an error",
        "export_meta": "it reads one document",
        "force_truncate": "as truncate",
        "fsck": "what it could not look at is told with its reason",
        "give_up_segments": "the close of a client",
        "import_meta": "tests/api/test_meta_moving.py has its steps",
        "move_meta": "tests/api/test_meta_moving.py has its steps",
        "open_segment": "job segments have rows of their own",
        "publish_segments": "tests/unit/admin has its steps",
        "repair": "each of its steps looks again, and is told by itself",
        "unlisted": "it reads only",
    },
    "Client": {
        "close": "tests/handles/test_all_away.py",
        "config": "it asks nothing",
        "belong_to": "it asks nothing",
        "follow_config": "the follower has a row of its own",
        "group": "it asks nothing",
        "groups": "played with the group",
        "open_standby": "the standby has rows of its own",
        "open_worker": "the worker has a row of its own",
        "read_range": "it has a row of its own",
        "resolve": "played with the log",
        "stream": "it asks nothing",
        "streams": "played with the stream",
    },
    "Config": {"follow": "the follower has a row of its own"},
    "Group": {"set_checkpoint": "as reset"},
    "Stream": {
        "open_reader": "the reader has a row of its own",
        "open_writer": "the writer has a row of its own",
    },
}
KINDS: dict[str, type[Any]] = {
    "Admin": Admin,
    "Client": dlog.aio.Client,
    "Config": dlog.aio.Config,
    "Group": dlog.aio.Group,
    "Stream": dlog.aio.Stream,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_is_played_or_need_not_be(kind: str) -> None:
    public = {
        name
        for each in KINDS[kind].__mro__
        for name, call in vars(each).items()
        if not name.startswith("_") and inspect.isfunction(call)
    }
    played = set()
    for way in VERBS:
        about, _, methods = way.partition(": ")
        if about == kind:
            played |= set(methods.partition(",")[0].split())
    assert not played & NOT_PLAYED[kind].keys()
    assert played | NOT_PLAYED[kind].keys() == public


class Steps(Faults):
    """Fails at one step of a verb, or from there on. `is_done`: behind its doing."""

    def __init__(self, pass_time: Any) -> None:
        super().__init__(pass_time)
        self.number = 0
        self._at = 0
        self._is_long = False
        self._answers: str | None = None

    def arm(self, at: int, *, is_done: bool = False, is_long: bool = False) -> None:
        self.number, self.struck, self._at = 0, 0, at
        self._is_done, self._is_long, self._answers = is_done, is_long, None

    def end(self) -> None:
        self._at = 0

    async def strike(self, call: str, *, is_done: bool = False) -> None:
        if is_done:
            if self._answers != call:
                return
            self._answers = None
        else:
            self.asked[call] += 1
            self.number += 1
            is_struck = self._at == self.number or (self._is_long and 0 < self._at < self.number)
            if not is_struck:
                return
            if self._is_done:
                self._answers = call
                return
        self.struck += 1
        await self._pass_time(FAILS_AFTER_S)
        raise dlog.Timeout("it gave no answer") if is_done else dlog.Unavailable("it is away")


MODES: dict[str, dict[str, bool]] = {
    "fails": {},
    "its answer is lost": {"is_done": True},
    "is away for long": {"is_long": True},
}


def _in_its_tier(way: str, mode: str) -> object:
    marks = [] if mode == "fails" else [pytest.mark.tier("test")]
    if way.endswith(("leases in logs", "resolve holds plan_ranges")):
        marks = [pytest.mark.tier("full", seconds=40)]
    return pytest.param(way, mode, marks=marks, id=f"{way} {mode}")


ROUNDS = [
    (way, mode)
    for way, kind in VERBS.items()
    for mode in MODES
    if kind.LOSES_ANSWERS or mode != "its answer is lost"
]


@pytest.mark.parametrize(("way", "mode"), [_in_its_tier(*each) for each in ROUNDS])
@simulate(histories=1, troubles="none")
async def test_a_verb_is_never_half_done_for_good(sim: Simulation, way: str, mode: str) -> None:
    steps = Steps(sim.pass_time)
    life = VERBS[way](sim, steps)
    await life.begin()
    for at in range(1, STEPS_MAX):
        await life.get_ready()
        sim.note(f"{way}: step {at} {mode}")
        steps.arm(at, **MODES[mode])
        await life.news()
        await _until_done(life, steps, is_long=mode == "is away for long")
        if not steps.struck:
            break
        steps.end()
    else:
        raise AssertionError("it takes no end")
    await life.end()


async def _until_done(life: Calling, steps: Steps, *, is_long: bool) -> None:
    loop = asyncio.get_running_loop()
    told: list[DlogError] = []
    back = loop.call_later(LASTS_S, steps.end) if is_long else None
    async with asyncio.timeout(LASTS_S * is_long + COMPLETES_S):
        while not life.is_well:
            try:
                await life.turn()
            except DlogError as error:
                told.append(error)
                await life.sim.pass_time(TURN_S)
    if back is not None:
        back.cancel()
    assert is_long or len(told) <= 1, told
    for error in told:
        assert error.handle is Handle.USABLE, repr(error)
        assert error.retry is Retry.NOW, repr(error)
