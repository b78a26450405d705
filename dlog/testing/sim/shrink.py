"""Makes a failing tape small: the fewest and smallest draws that still fail in the same way.

Since 0.0 is the benign choice everywhere, a tape is made smaller by cutting off its end, by zeroing
what is low and then whole blocks, from the end on, by taking blocks out, by zeroing single draws,
and by halving what is left; when all that is done, by trying the same where what comes behind moves
along. Every candidate is a whole history, run anew; whatever still fails in the same way is kept,
until nothing helps or time is up. *The same way* is what the caller says it is: most often the
promise that broke.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# What is wrong with the history of a tape, None if nothing is; and the draws it really made.
Verdict = tuple[str | None, int]
Run = Callable[[Sequence[float]], Verdict]

_HALVINGS = 4
_BARS = (0.97, 0.9, 0.7, 0.4)
_LOW_BLOCK_MIN = 30
_DELETED = (48, 12, 3)
_GROUPS = (1, 2, 3, 4, 5, 6, 8, 10, 14)
_SHIFTS = (0, 2, 3, 4, 5, 6, 8)


@dataclass(slots=True)
class Shrunk:
    values: list[float]
    fault: str
    tries: int
    took_s: float

    @property
    def nonzero(self) -> int:
        return sum(value > 0.0 for value in self.values)


def shrink(
    values: Sequence[float], run: Run, *, seconds: float = 60.0, tries: int | None = None
) -> Shrunk:
    """`run` must find something wrong with `values`. The seconds are of this process's own work.
    With `tries`, so many histories are the limit instead, on a fast machine and on a slow one."""
    return _Shrinking(list(values), run, seconds, tries).to_the_end()


class _Shrinking:
    def __init__(
        self, values: list[float], run: Run, seconds: float, tries_max: int | None
    ) -> None:
        self._run = run
        self._began_s = time.process_time()
        self._ends_s = self._began_s + seconds
        self._tries_max = tries_max
        self._tries = 0
        self._tried: set[tuple[float, ...]] = set()
        fault, drawn = run(values)
        if fault is None:
            raise ValueError("nothing is wrong with this tape")
        self._fault = fault
        self._values = _trimmed(values[:drawn])

    def to_the_end(self) -> Shrunk:
        while not self._is_late():
            before = list(self._values)
            self._cut_off()
            self._zero_low()
            self._zero_blocks()
            self._delete_blocks()
            self._zero_singles()
            if self._values == before:  # all that is left is needed: but how much of it?
                self._halve()
            if self._values == before:
                self._delete_anywhere()
            if self._values == before:
                self._shift()
            if self._values == before:
                break
        took_s = time.process_time() - self._began_s
        return Shrunk(self._values, self._fault, self._tries, took_s)

    def _is_late(self) -> bool:
        if self._tries_max is not None:
            return self._tries >= self._tries_max
        return time.process_time() >= self._ends_s

    def _try(self, values: list[float]) -> bool:
        """Is it still wrong? Then this is the tape from now on."""
        if self._is_late():
            return False
        key = tuple(_trimmed(values))
        if key in self._tried:
            return False
        self._tried.add(key)
        self._tries += 1
        fault, drawn = self._run(values)
        if fault != self._fault:
            return False
        self._values = _trimmed(values[:drawn])
        return True

    def _cut_off(self) -> None:
        """The shortest beginning, by bisection. It need not be monotonic, but mostly is."""
        low, high = 0, len(self._values)
        while low < high and not self._is_late():
            middle = (low + high) // 2
            if self._try(self._values[:middle]):
                high = min(middle, len(self._values))
            else:
                low = middle + 1

    def _zero_low(self) -> None:
        """All below a bar at once: what hits is high, what is low most often only takes time."""
        for bar in _BARS:
            size = len(self._values)
            while size >= _LOW_BLOCK_MIN and not self._is_late():
                for at in reversed(range(0, len(self._values), size)):
                    low = [value if value >= bar else 0.0 for value in self._values[at : at + size]]
                    if low != self._values[at : at + size]:
                        self._try([*self._values[:at], *low, *self._values[at + size :]])
                size //= 4

    def _zero_blocks(self) -> None:
        """From the end on: what comes late moves nothing of what came before it."""
        size = len(self._values) // 2
        while size > 1:
            for at in reversed(range(0, len(self._values), size)):
                block = self._values[at : at + size]
                if any(block) and not self._is_late():
                    self._try(self._values[:at] + [0.0] * len(block) + self._values[at + size :])
            size //= 2

    def _delete_blocks(self) -> None:
        """Without an actor, or a fault, the draws it made are missing, and all behind them
        moves."""
        for size in _DELETED:
            for at in reversed(range(0, len(self._values), size)):
                if self._is_late():
                    return
                self._try(self._values[:at] + self._values[at + size :])

    def _delete_anywhere(self) -> None:
        """Draws come in groups of any size, which begin anywhere."""
        for size in _GROUPS:
            for at in reversed(range(len(self._values))):
                if self._is_late():
                    return
                if at < len(self._values):
                    self._try(self._values[:at] + self._values[at + size :])

    def _shift(self) -> None:
        """What is zeroed may make the history draw more, or less, before it goes on as it did."""
        for at in reversed(range(len(self._values))):
            if at >= len(self._values) or self._values[at] == 0.0:
                continue
            for benign in _SHIFTS:
                if self._is_late():
                    return
                zeroed = [*self._values[:at], *[0.0] * benign, *self._values[at + 1 :]]
                if self._try(zeroed):
                    break

    def _zero_singles(self) -> None:
        for at in reversed(range(len(self._values))):
            if at < len(self._values) and self._values[at] > 0.0:
                self._try([*self._values[:at], 0.0, *self._values[at + 1 :]])

    def _halve(self) -> None:
        """Shorter delays, earlier options, milder rates."""
        for at in range(len(self._values)):
            for _ in range(_HALVINGS):
                if at >= len(self._values) or self._values[at] < 0.01 or self._is_late():
                    break
                smaller = round(self._values[at] / 2, 4)
                if not self._try([*self._values[:at], smaller, *self._values[at + 1 :]]):
                    break


def _trimmed(values: list[float]) -> list[float]:
    """Zeros behind the end are there anyway."""
    end = len(values)
    while end and values[end - 1] == 0.0:
        end -= 1
    return values[:end]
