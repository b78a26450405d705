"""The simulated world: virtual time, seeded chance, and what one history may be hit by.

Everything in here is single-threaded and drawn from one `random.Random(seed)`, so that a seed is a
history: the same seed gives the same run, event by event. Time is virtual, in milliseconds. A
violated promise raises `Violation` at the event that shows it.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

FAULT_ON = 0.3  # each class of faults is on in this part of the seeds
EVENTS_MAX = 60_000  # of one history: more of them is a loop that does not end
NOTES_KEPT = 400


class Violation(AssertionError):
    """A promise did not hold. Carries which one, and what clashed."""


@dataclass(slots=True)
class Weather:
    """Swarm options: drawn once per seed, so that faults meet instead of averaging out. Rates are
    per event; 0 is off."""

    # the metadata store
    meta_refused: float = 0.0
    meta_request_lost: float = 0.0
    meta_reply_lost: float = 0.0
    meta_late: float = 0.0  # the request arrives after its time-out was told
    meta_outages: bool = False
    sessions_lost: bool = False
    watches_lost: float = 0.0
    # ledgers
    create_fails: float = 0.0
    birth_fails: float = 0.0
    append_fails: float = 0.0
    recover_fails: float = 0.0
    close_fails: float = 0.0
    read_fails: float = 0.0
    foreign_recoverers: bool = False
    ids_go_back: float = 0.0
    publish_is_free: bool = False
    # clients
    crash: float = 0.0
    freeze: float = 0.0
    clocks_jump: bool = False
    # the work
    writers: int = 1
    incarnations: int = 1  # a writer's process is started again so often
    readers: int = 1
    appends: int = 8
    takeover: str = "always"
    visible: str = "on_ack"
    window_entries: int = 2000
    rotate_every: int | None = None
    wait_often: float = 0.0  # the policy says WAIT
    rotations_asked: float = 0.0
    closes: float = 0.0
    removers: int = 0
    page_segments: int = 128
    store_ms: float = 1.0  # from the wire to a quorum, on average
    slow: float = 1.0  # links of this history are up to so many times slower


def draw_weather(chance: random.Random) -> Weather:
    def rate(high: float = 0.3) -> float:
        if chance.random() >= FAULT_ON:
            return 0.0
        return math.exp(chance.uniform(math.log(0.003), math.log(high)))

    def on() -> bool:
        return chance.random() < FAULT_ON

    return Weather(
        meta_refused=rate(),
        meta_request_lost=rate(),
        meta_reply_lost=rate(),
        meta_late=rate(),
        meta_outages=on(),
        sessions_lost=on(),
        watches_lost=rate(0.9),
        create_fails=rate(),
        birth_fails=rate(),
        append_fails=rate(0.1),
        recover_fails=rate(),
        close_fails=rate(),
        read_fails=rate(0.1),
        foreign_recoverers=on(),
        ids_go_back=rate(),
        publish_is_free=chance.random() < 0.5,
        crash=rate(0.1),
        freeze=rate(0.1),
        clocks_jump=on(),
        writers=chance.choice((1, 1, 2, 2, 3, 4)),
        incarnations=chance.choice((1, 1, 2, 3)),
        readers=chance.choice((0, 1, 1, 2, 3)),
        appends=chance.choice((1, 2, 2, 3, 3, 5, 8, 20)),
        takeover=chance.choice(("always", "always", "always", "if_dead", "wait", "never")),
        visible=chance.choice(("on_ack", "on_ack", "within:5ms")),
        window_entries=chance.choice((1, 2, 8, 2000)),
        rotate_every=chance.choice((1, 2, 5, 20, None)),
        wait_often=rate(),
        rotations_asked=rate(),
        closes=chance.choice((0.0, 0.3, 0.8)),
        removers=1 if chance.random() < 0.08 else 0,
        page_segments=chance.choice((2, 3, 128)),
        store_ms=chance.choice((1.0, 1.0, 20.0)),
        slow=chance.choice((1.0, 1.0, 1.0, 10.0, 100.0)),
    )


@dataclass(slots=True)
class World:
    """Virtual time and chance. `calm` ends the faults: from then on everything must come right."""

    seed: int
    weather: Weather
    chance: random.Random
    now_ms: float = 0.0
    is_calm: bool = False
    events: int = 0
    points: Counter[str] = field(default_factory=Counter)  # crash points passed
    marks: Counter[str] = field(default_factory=Counter)  # things worth having happened
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _serial: int = 0
    notes: deque[str] | None = None

    def after(self, delay_ms: float, what: Callable[[], None]) -> None:
        self.at(self.now_ms + delay_ms, what)

    def at(self, at_ms: float, what: Callable[[], None]) -> None:
        """What is due at the same moment happens in the order it was asked for."""
        self._serial += 1
        heapq.heappush(self._heap, (at_ms, self._serial, what))

    def run(self, *, until_ms: float = math.inf, done: Callable[[], bool] | None = None) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_ms and (done is None or not done()):
            self.now_ms, _, what = heapq.heappop(heap)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise Violation(f"I27: more than {EVENTS_MAX} events: something goes round")
            what()
        if until_ms < math.inf and (done is None or not done()):
            self.now_ms = max(self.now_ms, until_ms)

    def strikes(self, rate: float) -> bool:
        """Does a fault of this rate hit now? Never in calm weather."""
        return rate > 0.0 and not self.is_calm and self.chance.random() < rate

    def pick(self, options: Sequence[object]) -> object:
        return self.chance.choice(options)

    def delay(self, mean_ms: float) -> float:
        return self.chance.expovariate(1.0 / mean_ms)

    def note(self, text: str) -> None:
        """A line of the transcript, when somebody reads it."""
        if self.notes is not None:
            self.notes.append(f"{self.now_ms:10.2f} ms  {text}")

    def mark(self, what: str) -> None:
        self.marks[what] += 1


def new_world(seed: int, *, noted: bool = False, **weather: object) -> World:
    chance = random.Random(seed)
    drawn = dataclasses.replace(draw_weather(chance), **weather)
    notes: deque[str] | None = deque(maxlen=NOTES_KEPT) if noted else None
    return World(seed, drawn, chance, notes=notes)
