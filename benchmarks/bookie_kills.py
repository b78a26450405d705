"""Bookies that die, one at a time, while others are at work: kill -9 and back again on the same
disk, or frozen for a while. The next one has its turn only when the last one serves, so three of
four are there at any moment, and an ack quorum of any ledger with it.

Nothing here waits: whoever is at work calls `tick()` often, on the thread that started the cluster,
to which the servers' lives are tied.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field

from dlog.testing.cluster import Bookie, Cluster

FREEZES = 0.2  # of all turns; the others are kills
DOWN_S_MAX = 2.0
FROZEN_S_MAX = 4.0  # around what a session in ZooKeeper lasts: some of them end meanwhile
REST_S_MAX = 1.5  # between two turns
LOOK_S = 0.1
BACK_S_MAX = 90.0  # of a busy machine; two thirds of it are spent in a JVM's start


@dataclass
class BookieKills:
    cluster: Cluster
    seed: str
    kills: int = 0
    freezes: int = 0
    of: Counter[str] = field(default_factory=Counter)
    _victim: Bookie | None = None
    _is_frozen: bool = False
    _is_back: bool = False  # started or thawed, and does not serve yet
    _next_s: float = 0.0  # when to do, or to look at, something
    _patient_until_s: float = 0.0

    def __post_init__(self) -> None:
        self._chance = random.Random(f"{self.seed}/bookies")

    def tick(self) -> None:
        """Whatever is due."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        if self._victim is None:
            self._strike(now_s)
        elif not self._is_back:
            self._bring_back(self._victim, now_s)
        elif self._serves(self._victim, now_s):
            self._victim = None
            self._next_s = now_s + REST_S_MAX * self._chance.random()
        else:
            self._next_s = now_s + LOOK_S

    def heal(self) -> None:
        """Everybody serves, from now on."""
        victim, self._victim = self._victim, None
        if victim is not None:
            self._bring_back(victim, time.monotonic())
            victim.wait_until_serving(BACK_S_MAX)
        self._victim, self._next_s = None, float("inf")

    def _strike(self, now_s: float) -> None:
        chance = self._chance
        victim = chance.choice(self.cluster.bookies)
        self._is_frozen = chance.random() < FREEZES
        if self._is_frozen:
            victim.freeze()
            self.freezes += 1
        else:
            victim.kill()
            self.kills += 1
        self.of[victim.bookie_id] += 1
        self._victim, self._is_back = victim, False
        longest_s = FROZEN_S_MAX if self._is_frozen else DOWN_S_MAX
        self._next_s = now_s + longest_s * chance.random()

    def _bring_back(self, victim: Bookie, now_s: float) -> None:
        if self._is_frozen:
            victim.thaw()
        if victim.pid is None:  # also one whose session ended while it was frozen
            victim.start()
        self._is_back = True
        self._next_s, self._patient_until_s = now_s + LOOK_S, now_s + BACK_S_MAX

    def _serves(self, victim: Bookie, now_s: float) -> bool:
        if victim.pid is None and self._is_frozen:
            victim.start()
        if victim.pid is None or now_s > self._patient_until_s:
            raise TimeoutError(f"{victim.name} does not come back:\n{victim.log_tail()}")
        return victim.is_registered() and victim.answers()
