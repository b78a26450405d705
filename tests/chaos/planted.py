"""Protections of the product, removed one at a time, to see that the checkers object."""

from __future__ import annotations

from collections.abc import Callable

BUGS: dict[str, Callable[[], None]] = {}


def bug(plant: Callable[[], None]) -> Callable[[], None]:
    BUGS[plant.__name__] = plant
    return plant
