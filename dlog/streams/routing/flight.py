"""Numbered messages on their way to endpoints: none is lost, none is doubled, and those of one key
arrive in their order, also while endpoints die and keys move. No IO and no clock.

The messages of a key are a *lane*. A lane has one call on its way at a time; what comes meanwhile
goes with the next, which always begins with the oldest message that is not settled. So whoever gets
a message knows that all before it in the lane are settled or come in front of it, and needs the
last number of each client to tell what it has (see `arrivals`).

A lane moves to another endpoint between two calls. A call that is out at an endpoint which gets
isolated is not waited for: its messages move together, in their order, and a late answer to the old
call says nothing any more. The old endpoint may have taken some of them, and may be at it still:
both endpoints must write what they take to one place, which lets in the one that came last and
knows the numbers. A log does (see `dlog.streams.health.receive`).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from dlog.chance import Chance, backoff_s
from dlog.errors import BufferFull, ConfigError, Unavailable
from dlog.limits import FLIGHT_BYTES_MAX, FLIGHT_MESSAGES_MAX
from dlog.streams.routing.router import Routes

MESSAGE_BYTES = 64  # that one takes beside its key and its value, about


@dataclass(frozen=True, slots=True)
class FlightOptions:
    answer_s: float = 5.0  # for a call to be answered
    call_messages_max: int = 256
    messages_max: int = FLIGHT_MESSAGES_MAX
    bytes_max: int = FLIGHT_BYTES_MAX
    retry_base_s: float = 0.05  # doubled with each try, and jittered
    retry_s_max: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.answer_s < math.inf:
            raise ConfigError(f"answer_s is above 0, not {self.answer_s}")
        if min(self.call_messages_max, self.messages_max, self.bytes_max) < 1:
            raise ConfigError("a flight has room for one message at least")


@dataclass(frozen=True, slots=True)
class Numbered:
    """A message, with the number that its client gave it: they rise, and are not in a row within a
    lane."""

    number: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Call:
    """Bring these to the endpoint, and tell `on_answer` how many it took."""

    call_id: int
    endpoint: str
    key: bytes
    messages: tuple[Numbered, ...]


@dataclass(frozen=True, slots=True)
class Overdue:
    """This endpoint did not answer a call in time."""

    endpoint: str


@dataclass(frozen=True, slots=True)
class Settled:
    """Taken, for good."""

    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """Not taken, and never will be."""

    number: int
    why: str


Effect = Call | Overdue | Settled | Refused


@dataclass(slots=True, eq=False)
class _Lane:
    key: bytes
    messages: deque[Numbered] = field(default_factory=deque)  # not settled, the oldest first
    out: Call | None = None  # the one call whose answer counts
    tries: int = 0  # that failed, in a row
    not_before_s: float = 0.0


class Flight:
    """Of one client, whose numbers these are. Tell it what happens; `pulse` says what to do, and
    `next_s` when to call that again."""

    def __init__(
        self,
        routes: Routes,
        chance: Chance,
        *,
        first_number: int = 0,
        options: FlightOptions | None = None,
    ) -> None:
        self.options = options or FlightOptions()
        self.next_number = first_number
        self._routes = routes
        self._chance = chance
        self._lanes: dict[bytes, _Lane] = {}
        self._ready: dict[bytes, None] = {}  # lanes that may have something to send
        self._timers: list[tuple[float, int, bytes]] = []  # when, of which call or 0, of which lane
        self._news: list[Effect] = []
        self._calls = 0
        self._isolated: frozenset[str] = frozenset()  # as `on_routes` saw it last
        self.messages = 0
        self.bytes = 0

    # --- what happens

    def take(self, key: bytes, value: bytes) -> int:
        """The number it has from now on. `BufferFull` if there is no room; nothing was sent."""
        size = len(key) + len(value) + MESSAGE_BYTES
        if self.messages and not self.has_room(size):
            raise BufferFull(f"{self.messages} messages are on their way, and that is the limit")
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
        number = self.next_number
        self.next_number = number + 1
        lane.messages.append(Numbered(number, value))
        self.messages += 1
        self.bytes += size
        if lane.out is None:
            self._ready[key] = None
        return number

    def has_room(self, size: int = 0) -> bool:
        options = self.options
        return self.messages < options.messages_max and self.bytes + size <= options.bytes_max

    def on_answer(self, call: Call, taken: int, now_s: float, *, refused: str = "") -> bool:
        """The endpoint took so many of the call, from its first on, and the one behind them failed;
        with `refused` for good. False if this is not the call that the lane waits for."""
        lane = self._lanes.get(call.key)
        if lane is None or lane.out is not call:
            return False
        lane.out = None
        self._settle(lane, taken)
        if taken < len(call.messages):
            if refused:
                self._drop(lane)
                self._news.append(Refused(call.messages[taken].number, refused))
            else:
                self._fail(lane, now_s, moved_on=taken > 0)
        else:
            lane.tries = 0
        self._ready_or_gone(lane)
        return True

    def on_routes(self) -> None:
        """There is another router. What waits for an endpoint that is isolated now moves."""
        isolated = self._routes.now.isolated
        newly, self._isolated = isolated - self._isolated, isolated
        if newly:
            for lane in self._lanes.values():
                if lane.out is not None and lane.out.endpoint in newly:
                    lane.out = None
                    lane.tries = 0
                    lane.not_before_s = 0.0
                    self._ready[lane.key] = None

    def pulse(self, now_s: float) -> list[Effect]:
        """What to do now."""
        while self._timers and self._timers[0][0] <= now_s:
            _, call_id, key = heapq.heappop(self._timers)
            self._on_timer(call_id, key, now_s)
        ready, self._ready = self._ready, {}
        for key in ready:
            lane = self._lanes.get(key)
            if lane is not None and lane.out is None and lane.messages:
                self._send(lane, now_s)
        effects, self._news = self._news, []
        return effects

    def next_s(self) -> float:
        """When `pulse` has something to do; infinity if there is nothing."""
        if self._news or self._ready:
            return 0.0
        return self._timers[0][0] if self._timers else math.inf

    def where(self, key: bytes) -> str | None:
        """The endpoint that a call of this key is out at."""
        lane = self._lanes.get(key)
        return None if lane is None or lane.out is None else lane.out.endpoint

    def unsettled(self) -> list[int]:
        return sorted(each.number for lane in self._lanes.values() for each in lane.messages)

    # --- deciding

    def _send(self, lane: _Lane, now_s: float) -> None:
        if now_s < lane.not_before_s:
            heapq.heappush(self._timers, (lane.not_before_s, 0, lane.key))
            return
        try:
            endpoint = self._routes.now.owner_of(lane.key)
        except Unavailable:  # all are isolated
            self._fail(lane, now_s)
            heapq.heappush(self._timers, (lane.not_before_s, 0, lane.key))
            return
        self._calls += 1
        messages = tuple(islice(lane.messages, self.options.call_messages_max))
        lane.out = Call(self._calls, endpoint, lane.key, messages)
        heapq.heappush(self._timers, (now_s + self.options.answer_s, self._calls, lane.key))
        self._news.append(lane.out)

    def _on_timer(self, call_id: int, key: bytes, now_s: float) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            return
        if not call_id:
            self._ready[key] = None
        elif lane.out is not None and lane.out.call_id == call_id:
            self._news.append(Overdue(lane.out.endpoint))
            lane.out = None
            self._fail(lane, now_s)
            self._ready[key] = None

    def _fail(self, lane: _Lane, now_s: float, *, moved_on: bool = False) -> None:
        lane.tries = 0 if moved_on else lane.tries + 1
        options = self.options
        lane.not_before_s = now_s + backoff_s(
            lane.tries, self._chance, base_s=options.retry_base_s, limit_s=options.retry_s_max
        )

    def _settle(self, lane: _Lane, taken: int) -> None:
        if taken:
            self._news.append(Settled(tuple(self._drop(lane) for _ in range(taken))))

    def _drop(self, lane: _Lane) -> int:
        """The oldest; it is on its way no longer."""
        message = lane.messages.popleft()
        self.messages -= 1
        self.bytes -= len(lane.key) + len(message.value) + MESSAGE_BYTES
        return message.number

    def _ready_or_gone(self, lane: _Lane) -> None:
        if lane.messages:
            self._ready[lane.key] = None
        else:
            del self._lanes[lane.key]
