"""The simulated world: virtual time, chance on a tape, and the one rule that ends it all.

A world runs on its own heap of events (`World`), or on an event loop of virtual time that real
drivers live in (`loop.LoopWorld`); whoever is in it sees only `now_ms`, `after` and `chance`. The
same tape gives the same history, event by event.

A history has two halves. In the first, faults of the classes that its `Swarm` switched on strike;
then the world is *calm*: no more faults, everything heals, and everything that was promised must
come true within a bound of virtual time. A promise that does not hold raises `Violation` at the
event that shows it, with the promise's name.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable

from dlog.testing.sim.tape import Chance

EVENTS_MAX = 60_000  # of one history: more of them is something that goes round
ENDLESS = "I27 (endless)"
NOTES_KEPT = 2_000


class Violation(AssertionError):
    """A promise did not hold. `promise` is its name in docs/INVARIANTS.md."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise = promise
        self.what = what


def require(held: bool, promise: str, what: str, *about: object) -> None:
    if not held:
        raise Violation(promise, f"{what} {' '.join(map(repr, about))}".rstrip())


class World:
    """Time passes from event to event. What is due at the same moment happens in the order in which
    it was asked for."""

    def __init__(self, chance: Chance, *, told: bool = False) -> None:
        self.chance = chance
        chance.world = self
        self.is_calm = False
        self.events = 0
        self.events_max = chance.events_max or EVENTS_MAX
        self.points: Counter[str] = Counter()  # crash points passed
        self.marks: Counter[str] = Counter()  # things worth having happened
        self.notes: deque[str] | None = deque(maxlen=NOTES_KEPT) if told else None
        self.now_ms = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0

    def after(self, delay_ms: float, what: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._serial, what))

    def at(self, at_ms: float, what: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (at_ms, self._serial, what))

    def run(self, *, until_ms: float = math.inf, done: Callable[[], bool] | None = None) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_ms and (done is None or not done()):
            self.now_ms, _, what = heapq.heappop(heap)
            self.events += 1
            if self.events > self.events_max:
                raise Violation(
                    "I27 (endless)", f"more than {self.events_max} events: something goes round"
                )
            what()
        if until_ms < math.inf and (done is None or not done()):
            self.now_ms = max(self.now_ms, until_ms)

    def end(self) -> None:
        """Nothing happens here any more, and nothing is kept for what would."""
        self._heap.clear()

    def strikes(self, rate: float, what: str) -> bool:
        """Does a fault of this rate hit now? Never when it is calm."""
        if rate <= 0.0 or self.is_calm or not self.chance.hits(rate, what):
            return False
        self.marks[what] += 1
        return True

    def note(self, text: str) -> None:
        """A line of the transcript, when somebody reads it."""
        if self.notes is not None:
            self.notes.append(f"{self.now_ms:10.2f} ms  {text}")

    @property
    def is_told(self) -> bool:
        """Worth making a note at all?"""
        return self.notes is not None

    def mark(self, what: str) -> None:
        self.marks[what] += 1
