"""Random schedules of kills, freezes, rotations, takeovers and readers: a few of them.

DLOG_CHAOS_SECONDS=600 python -m pytest tests/chaos/test_random.py -s      longer
DLOG_CHAOS_SEED=abc …                                                      again
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from dlog.chance import SYSTEM_CHANCE
from dlog.errors import NotFound, Timeout, Unavailable
from dlog.testing.children import Child, Children, CrashPoint, pause
from dlog.trace import POINTS
from tests.chaos.actors import recover_as_a_stranger
from tests.chaos.arena import Arena
from tests.forks import Forks
from tests.tidy.source import ROOT

ROUNDS = 3
SECONDS = float(os.environ.get("DLOG_CHAOS_SECONDS", "0"))
SEED = os.environ.get("DLOG_CHAOS_SEED") or SYSTEM_CHANCE.token()[:8]
POINTS_OF_WRITERS = sorted(
    p for p in POINTS if not p.startswith(("remove.", "heal.", "producers.", "takeover.counted"))
)
PATIENCE_MS = 1_000
STEPS = 12

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(SECONDS * 2 + 120),
    pytest.mark.skipif(os.name != "posix", reason="kills and freezes by signals"),
]


class Mayhem:
    """One round: writers on random walks, and what is done to them."""

    def __init__(self, arena: Arena, seed: str) -> None:
        self.counts = {"kill": 0, "freeze": 0, "start": 0, "recover": 0}
        self._arena = arena
        self._seed = seed
        self._chance = random.Random(seed)
        self._writers: list[Child] = []
        self._frozen: list[Child] = []

    async def run(self) -> None:
        for _ in range(self._chance.randint(1, 3)):
            self._start()
        for _ in range(STEPS):
            await pause(0.15 * self._chance.random())
            match self._chance.randrange(8):
                case 0 | 1:
                    self._start()
                case 2 | 3:
                    self._freeze()
                case 4:
                    self._thaw()
                case 5:
                    self._kill()
                case 6 | 7:
                    await self._recover_as_a_stranger()

    def end(self) -> None:
        """Everybody awake, then gone: some by themselves, some by force."""
        for child in self._writers:
            child.thaw()
            if self._chance.random() < 0.5:
                child.kill()
        for child in self._writers:
            while (code := self._wait(child)) is None:
                for other in self._writers:
                    other.thaw()  # it, or who is in its way, froze itself meanwhile
            assert code in (0, -signal.SIGKILL), child.told_errors()

    def _wait(self, child: Child) -> int | None:
        try:
            return child.wait_end(1.0)
        except AssertionError:
            return None

    def _start(self) -> None:
        chance = self._chance
        crash = None
        if chance.random() < 0.7:
            what = "kill" if chance.random() < 0.5 else "freeze"
            point = chance.choice(POINTS_OF_WRITERS)
            crash = CrashPoint(
                point, chance.choice(("before", "after")), chance.randint(1, 20), what
            )
        self.counts["start"] += 1
        seed = f"{self._seed}/{len(self._writers)}"
        child = self._arena.start("wild", seed, 40, crash=crash, patience_ms=PATIENCE_MS)
        self._writers.append(child)

    def _freeze(self) -> None:
        child = self._chance.choice(self._writers)
        if child.is_running:
            self.counts["freeze"] += 1
            os.kill(child.pid, signal.SIGSTOP)
            self._frozen.append(child)

    def _thaw(self) -> None:
        for child in self._frozen:
            child.thaw()
        self._frozen.clear()

    async def _recover_as_a_stranger(self) -> None:
        """As a repair tool would that took a living writer's ledger for a dead one's."""
        self.counts["recover"] += 1
        process = f"stranger{self.counts['recover']}"
        async with self._arena.stage(process, meta_timeout_ms=PATIENCE_MS) as stage:
            with contextlib.suppress(NotFound, Unavailable, Timeout):
                unsealed = [each for each in await stage.look() if not each.is_sealed]
                if unsealed:
                    await recover_as_a_stranger(stage, self._chance.choice(unsealed).ledger_id)

    def _kill(self) -> None:
        self.counts["kill"] += 1
        self._chance.choice(self._writers).kill()


async def one_round(place: Path, seed: str, forks: Forks) -> None:
    with Children(place, python_path=ROOT, spawn=forks.spawn) as children:
        arena = Arena(place, children)
        async with arena.stage("starter") as stage:
            await (await stage.open_writer()).append()
        follower = arena.start("follow")
        follower.wait_line("following")
        mayhem = Mayhem(arena, seed)
        await mayhem.run()
        mayhem.end()
        story = await arena.survey(follower)
        (followed,) = [r for name, r in story.readers.items() if name.startswith("follow")]
        assert [e.name for e in followed.delivered] == [e.name for e in story.log]
        print(seed, mayhem.counts, f"{len(story.log)} messages, epoch {story.log[-1].epoch}")


async def test_random_schedules(tmp_path: Path, forks: Forks) -> None:
    print(f"to repeat: DLOG_CHAOS_SEED={SEED}")
    ending_s = time.monotonic() + SECONDS
    number = 0
    while number < ROUNDS or time.monotonic() < ending_s:
        seed = f"{SEED}/{number}"
        try:
            await one_round(tmp_path / str(number), seed, forks)
        except BaseException as error:
            error.add_note(f"in round {number}; to repeat: DLOG_CHAOS_SEED={SEED}")
            raise
        number += 1
