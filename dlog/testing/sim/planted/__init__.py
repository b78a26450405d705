"""Bugs planted in the production code, one at a time, in memory: what the simulator is worth.

Each breaks one rule, and must be noticed within a bounded number of histories. One that is not is
redundant protection: it says what else protects, and names the test that shows the bug even so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from dlog.errors import ConfigError
from dlog.testing.sim.worlds import bring


class Patch(Protocol):
    """What plants a bug; pytest's `monkeypatch` is one."""

    def setattr(self, target: Any, name: str, value: Any, raising: bool = True) -> None:
        """`raising`: refuse a name that the target does not have. It was renamed since, and a bug
        in what nobody calls is none."""


@dataclass(frozen=True, slots=True)
class Plant:
    name: str
    rule: str  # what it breaks: a P-number, a row of the catalogue, or a promise
    plant: Callable[[Any], None]
    world: str  # that shall notice it, by its name in `worlds`
    fixed: dict[str, Any] = field(default_factory=dict)  # weather that brings its faults together
    survives: str | None = None  # what else protects
    shown_by: str | None = None  # then: the test that fails with this bug (see `shown`)
    harder: dict[str, Any] = field(default_factory=dict)  # what its test takes from the judge


class Plants:
    """Of one room. `@plants(rule)` plants what it decorates, under its name."""

    def __init__(self, world: str, **harder: Any) -> None:
        self.world = world
        self.harder = harder
        self.by_name: dict[str, Plant] = {}

    def __call__(
        self,
        rule: str,
        *,
        world: str = "",
        survives: str | None = None,
        shown_by: str | None = None,
        harder: dict[str, Any] | None = None,
        **fixed: Any,
    ) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
        def register(bug: Callable[[Any], None]) -> Callable[[Any], None]:
            name = bug.__name__
            if name in self.by_name:
                raise ConfigError(f"two planted bugs have one name: {name}")
            self.by_name[name] = Plant(
                name,
                rule,
                bug,
                world or self.world,
                fixed,
                survives,
                shown_by,
                self.harder if harder is None else harder,
            )
            return bug

        return register


class _Patches:
    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, bool, Any]] = []

    def setattr(self, target: Any, name: str, value: Any, raising: bool = True) -> None:
        if raising and not hasattr(target, name):
            raise AttributeError(f"{target!r} has no {name!r} that a bug could be planted in")
        own = vars(target)
        self._undo.append((target, name, name in own, own.get(name)))
        setattr(target, name, value)

    def undo(self) -> None:
        while self._undo:
            target, name, was_own, value = self._undo.pop()
            if was_own:
                setattr(target, name, value)
            else:
                delattr(target, name)


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    bring(plant.world)
    patches = _Patches()
    try:
        plant.plant(patches)
        yield
    finally:
        patches.undo()


ROOMS = (
    "log",
    "log_list",
    "log_rules",
    "log_life",
    "log_fsck",
    "log_jobs",
    "log_standbys",
    "log_numbers",
    "log_repair",
    "ledger",
    "drivers",
    "streams",
    "streams_health",
    "streams_config",
    "streams_life",
    "groups",
    "groups_weights",
    "workers",
    "workers_heart",
)


def all_plants() -> dict[str, Plant]:
    """Of all rooms."""
    found: dict[str, Plant] = {}
    for room in ROOMS:
        plants: dict[str, Plant] = import_module(f"{__name__}.{room}").PLANTS
        if twice := found.keys() & plants.keys():
            raise ConfigError(f"two planted bugs have one name: {', '.join(sorted(twice))}")
        found.update(plants)
    return found
