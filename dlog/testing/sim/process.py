"""A client's process: it may crash, or freeze and thaw, before and after any effect.

What reaches it while it is frozen is kept, and happens when it thaws, in its order; what reaches it
dead is lost. Its own timers are such things, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dlog.testing.sim.world import World

FROZEN_MS = 400.0


class Machine(Protocol):
    """What client code runs on, as the simulated drivers see it."""

    name: str

    def receive(self, what: Callable[[], None]) -> None:
        """Something reached it: lost when it is dead, kept while it is frozen."""
        ...

    def after(self, delay_ms: float, what: Callable[[], None]) -> None: ...

    def may_be_hit(self) -> bool:
        """A crash or a freeze, here and now; True when it goes no further."""
        ...


class Process:
    """With crashes and freezes at these rates, per crash point."""

    def __init__(self, world: World, name: str, *, crash: float = 0.0, freeze: float = 0.0) -> None:
        self.name = name
        self.is_alive = True
        self.is_frozen = False
        self.on_end: list[Callable[[], None]] = []
        self._world = world
        self._crash = crash
        self._freeze = freeze
        self._inbox: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return self.name

    def receive(self, what: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        if self.is_frozen:
            self._inbox.append(what)
        else:
            what()

    def after(self, delay_ms: float, what: Callable[[], None]) -> None:
        self._world.after(delay_ms, lambda: self.receive(what))

    def may_be_hit(self) -> bool:
        if self._world.strikes(self._crash, "a client dies"):
            self.crash()
            return True
        if self._world.strikes(self._freeze, "a client is frozen"):
            self.freeze(self._world.chance.delay(FROZEN_MS, f"{self.name}'s sleep"))
        return not self.is_alive

    def crash(self) -> None:
        if not self.is_alive:
            return
        self._world.note(f"{self.name} dies")
        self.is_alive = False
        self._inbox.clear()
        for end in self.on_end:
            end()

    def freeze(self, frozen_ms: float) -> None:
        if not self.is_frozen and self.is_alive:
            self._world.note(f"{self.name} is frozen for {frozen_ms:.0f} ms")
            self.is_frozen = True
            self._world.after(frozen_ms, self.thaw)

    def thaw(self) -> None:
        if not self.is_frozen:
            return
        self._world.note(f"{self.name} wakes")
        self.is_frozen = False
        inbox, self._inbox = self._inbox, []
        for what in inbox:
            self.receive(what)


def reach(world: World, machine: Machine, point: str, what: Callable[[], None]) -> None:
    """A crash point, and what follows it."""
    world.points[point] += 1
    if not machine.may_be_hit():
        machine.receive(what)
