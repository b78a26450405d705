"""Chance on a tape: every draw of a history is a number in [0, 1), kept in the order it was drawn.

A seed fills the tape as it is read; a tape that is given is read again, number by number, and is
all zeros behind its end. **0.0 is always the benign choice**: no fault, the shortest delay, the
first of several. So a tape is made smaller by zeroing it and cutting it off (`shrink`), and what is
left says which draws a failure needs.

Draws may be given a name. Names cost nothing unless somebody asks for the `story` of a tape: then
each draw that was not benign is told in the words of whoever drew it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

TOKEN_HEX = 32


class Draw(NamedTuple):
    """A draw that was not benign, and what it was for."""

    at: int
    value: float
    what: str


class Tape:
    """Draws, read and written. `source` gives what is behind the end; without one there are zeros,
    which are not kept."""

    __slots__ = ("_at", "_given", "_next", "values")

    def __init__(self, values: Sequence[float] = (), source: random.Random | None = None) -> None:
        self.values = list(values)
        self._at = 0
        self._given = len(self.values)
        self._next = None if source is None else source.random

    @property
    def drawn(self) -> int:
        """How many draws were made."""
        return self._at

    def draw(self) -> float:
        at = self._at
        self._at = at + 1
        if at < self._given:
            return self.values[at]
        if self._next is None:
            return 0.0
        value = self._next()
        self.values.append(value)
        return value


class Chance(random.Random):
    """All of `random.Random` on a tape, and the production's `Chance` as well.

    Whoever draws a fault asks `hits`, never `random() < rate`: a zero must not be a fault. Options
    of `choice` begin with the benign one.
    """

    def __init__(self, tape: Tape, *, told: bool = False) -> None:
        super().__init__(0)
        self.tape = tape
        self._draw = tape.draw
        self._tokens = 0
        self._story: list[Draw] | None = [] if told else None
        self.world: Any = None  # which it is the chance of: for whoever tells how it failed
        self.events_max: int | None = None  # of its history; None: as many as a world allows

    @property
    def story(self) -> list[Draw]:
        return self._story or []

    def random(self) -> float:
        return self._draw()

    def fraction(self) -> float:
        return self._draw()

    def token(self) -> str:
        """Never the same twice, whatever is on the tape."""
        self._tokens += 1
        return f"{self._tokens:0{TOKEN_HEX}x}"

    def getrandbits(self, k: int, /) -> int:
        return int(self._draw() * (1 << k))

    def _randbelow(self, n: int) -> int:
        return int(self._draw() * n)

    def hits(self, rate: float, what: str = "a fault") -> bool:
        """Does something of this rate happen?"""
        value = self._draw()
        if value < 1.0 - rate:
            return False
        if self._story is not None:
            self._tell(value, what)
        return True

    def pick(self, options: Sequence[T], what: str = "an option") -> T:
        """One of these, the first is the benign one."""
        value = self._draw()
        index = int(value * len(options))
        if index and self._story is not None:
            self._tell(value, f"{what}: {_shown(options[index])}")
        return options[index]

    def delay(self, mean: float, what: str = "") -> float:
        """With a long tail."""
        value = self._draw()
        taken = -mean * math.log(1.0 - value)
        if what and value > 0.0 and self._story is not None:
            self._tell(value, f"{what} takes {taken:.2f} ms")
        return taken

    def rate(self, low: float, high: float, *, on: float, what: str) -> float:
        """Zero, or a rate somewhere between these, each order of magnitude as likely as another:
        faults of one class, on in a part of the histories."""
        value = self._draw()
        if value < 1.0 - on:
            return 0.0
        share = (value - (1.0 - on)) / on
        rate = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        if self._story is not None:
            self._tell(value, f"{what} at {rate:.2g}")
        return rate

    def tell(self, value: float, what: str) -> None:
        """What the draw that was just made was for, by one who drew it as a bare number."""
        if self._story is not None:
            self._tell(value, what)

    def _tell(self, value: float, what: str) -> None:
        assert self._story is not None
        self._story.append(Draw(self.tape.drawn - 1, value, what))


def of_seed(seed: int, *, told: bool = False) -> Chance:
    return Chance(Tape(source=random.Random(seed)), told=told)


def of_tape(values: Sequence[float], *, told: bool = False) -> Chance:
    return Chance(Tape(values), told=told)


def _shown(option: Any) -> str:
    """The same in every process: no address of anything."""
    for name in ("name", "bookie_id", "__name__"):
        known = getattr(option, name, None)
        if known is not None:
            return str(known)
    return str(option)
