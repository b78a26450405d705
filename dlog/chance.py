"""Chance as an argument. Only this module draws real random numbers."""

from __future__ import annotations

import random
import secrets
from typing import Protocol


class Chance(Protocol):
    def fraction(self) -> float:
        """A draw from [0, 1)."""
        ...

    def token(self) -> str:
        """A name nobody else will draw: it tells our own writes from everybody else's."""
        ...


class SystemChance:
    def __init__(self) -> None:
        self._random = random.Random()

    def fraction(self) -> float:
        return self._random.random()

    def token(self) -> str:
        return secrets.token_hex(16)


SYSTEM_CHANCE = SystemChance()


def new_password() -> bytes:
    """32 bytes of the system's own source. Not of a `Chance`: one that a test could foresee would
    be none."""
    return secrets.token_bytes(32)


def backoff_s(
    attempt: int, chance: Chance, *, base_s: float = 0.002, limit_s: float = 0.5
) -> float:
    """Full jitter: anywhere between nothing and the exponential bound, so that rivals do not meet
    again."""
    return float(min(limit_s, base_s * 2 ** min(attempt, 20)) * chance.fraction())
