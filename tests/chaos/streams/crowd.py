"""The processes of a run, and what is done to them: killed, frozen for a while, started again; some
do it to themselves at a step of a protocol."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path

from dlog import trace
from dlog.testing.children import Child, Children, CrashPoint, pause

POINTS = sorted(
    (trace.POINTS | trace.STREAM_POINTS | trace.GROUP_POINTS | trace.LIFE_POINTS)
    - {p for p in trace.POINTS if p.startswith("heal.")}
)
MODULE = "tests.chaos.streams.program"
POLL_S = 0.05
LIFE_MIN_S = 0.8  # so that what is killed did something: a process needs half of it to begin


class Crowd:
    def __init__(
        self, children: Children, place: Path, url: str, seed: str, options: dict[str, object]
    ) -> None:
        self.told: Counter[str] = Counter()
        self.broke: list[str] = []
        self.running: dict[str, Child] = {}
        self._children = children
        self._place = place
        self._url = url
        self._seed = seed
        self._options = options
        self._rest: dict[str, tuple[str, ...]] = {}
        self._chance = random.Random(f"{seed}/crowd")
        self._launches: Counter[str] = Counter()
        self._frozen: set[str] = set()
        self._waking: dict[str, asyncio.Task[None]] = {}
        self._again: dict[str, float] = {}  # roles that are down: when to start them again
        self.is_calm = True  # nobody is harmed

    def add(self, role: str, *rest: str) -> None:
        self._rest[role] = rest
        self._start(role)

    def _start(self, role: str) -> None:
        self._launches[role] += 1
        given = [role, str(self._launches[role]), str(self._place), self._url, self._seed]
        for name, value in self._options.items():
            given += [f"--{name.replace('_', '-')}", str(value)]
        if not self.is_calm and self._chance.random() < 0.3:
            given += ["--crash", str(self._crash())]
        if self._rest[role]:
            given += ["--rest", *self._rest[role]]
        self.running[role] = self._children.start(MODULE, *given)
        self._again.pop(role, None)

    def _crash(self) -> CrashPoint:
        chance = self._chance
        what = "kill" if chance.random() < 0.5 else "freeze"
        near = [p for p in POINTS if p.startswith(("stream.", "group."))]
        of = near if chance.random() < 0.5 else POINTS
        hit = chance.choice((1, 1, 2, 3, 10, 40))
        return CrashPoint(chance.choice(of), chance.choice(("before", "after")), hit, what)

    # --- harm

    async def harm(self, seconds: float) -> None:
        """For so long; then everybody is awake and at work."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        next_s = loop.time() + 0.5
        while loop.time() < end_s:
            await pause(POLL_S)
            self.look_after()
            if loop.time() >= next_s:
                next_s = loop.time() + self._chance.uniform(0.1, 1.6)
                self._strike()
        self.is_calm = True
        for role in list(self._waking):
            self._wake(role)
        for role in list(self._again):
            self._again[role] = 0.0
        self.look_after()

    def _strike(self) -> None:
        chance = self._chance
        awake = [role for role in self.running if role not in self._frozen]
        if not awake:
            return
        role = chance.choice(awake)
        if chance.random() < 0.45:
            self.told["kills"] += 1
            self.running[role].kill()
        else:
            self._freeze(role, chance.choice((0.1, 0.3, 1.0, 2.0, 5.0)) * chance.uniform(0.5, 1))

    def _freeze(self, role: str, seconds: float) -> None:
        child = self.running[role]
        if child.is_running:
            os.kill(child.pid, signal.SIGSTOP)
            self._asleep(role, seconds)

    def _asleep(self, role: str, seconds: float) -> None:
        self.told["freezes"] += 1
        self._frozen.add(role)
        self._waking[role] = asyncio.get_running_loop().create_task(self._wake_in(role, seconds))

    async def _wake_in(self, role: str, seconds: float) -> None:
        await pause(seconds)
        self._waking.pop(role, None)
        self._wake(role)

    def _wake(self, role: str) -> None:
        waking = self._waking.pop(role, None)
        if waking is not None:
            waking.cancel()
        self._frozen.discard(role)
        self.running[role].thaw()

    # --- whoever is gone comes again

    def look_after(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for role, child in self.running.items():
            if child.is_running:
                if role not in self._frozen and is_stopped(child.pid):  # by itself, at a step
                    self._asleep(role, self._chance.uniform(0.1, 4.0))
                continue
            if role in self._again:
                if now_s >= self._again[role]:
                    self._wake(role)
                    self._start(role)
                continue
            code = child.wait_end()
            if code == 0 and self.is_calm:
                continue  # it did all it had to
            if code == -signal.SIGKILL:
                self.told["deaths"] += 1
            else:
                self.broke.append(f"{role} ended with {code}: {child.told_errors()}")
            self._again[role] = now_s + self._chance.choice((0.0, 0.3, 2.0))

    def is_done(self, *roles: str) -> bool:
        """All of those that begin so have ended by themselves."""
        return all(
            not child.is_running and role not in self._again
            for role, child in self.running.items()
            if role.startswith(roles)
        )


def is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] == "T"
