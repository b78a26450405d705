"""Is an endpoint alive? Pings, pongs, and what they prove. No IO, and no clock: time comes in as an
argument, in seconds that never go back.

An endpoint is asked only when there is doubt. Replies to what is sent to it anyway prove that it
lives, and while they come nothing is probed. One that carries nothing is asked every `idle_s`; one
that was sent something and is silent, after `interval_s`. A ping that is not answered within
`interval_s` makes the endpoint a *suspect*, who is asked `quick_pings` times more, quickly: one
answer clears it, and with none it is *isolated*, within two intervals of the first ping. Single
losses never add up: whatever proves life begins anew.

An isolated endpoint is left alone for a while, longer each time in a row and never equally long for
two clients; then it is asked once an interval at most, and back in use with the first answer. At no
moment is more than a part of all endpoints isolated: what looks like the death of everybody is more
likely our own trouble, and where else should the load go?

A pong counts if it repeats the id of a ping of this round, from the endpoint that was asked: an
older one proves nothing of now. The one ping of an endpoint in good standing is a round, until it
is judged; then all that are sent to the suspect, or to the isolated, and are not older than an
interval. However late a pong is read, nobody is judged before it is.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from dlog.chance import Chance
from dlog.errors import ConfigError

_NEVER_S = math.inf
_LONG_AGO_S = -math.inf
_DOUBLINGS_MAX = 16
_LATE_PART = 0.1  # of the time between quick pings: so late we have slept
_READ_FIRST = -1  # instead of quick pings that are left: we were late, and it is judged next time


@dataclass(frozen=True, slots=True)
class HealthOptions:
    interval_s: float = 10.0  # for a ping to be answered
    idle_s: float | None = 60.0  # between pings of one that carries nothing; None: none are sent
    quick_pings: int = 5  # of each further check, spread over three quarters of an interval
    checks_max: int = 2  # without an answer, in a row; from the second on they are quick
    isolation_s: float = 20.0  # the first time; jittered down to half of it
    isolation_s_max: float = 300.0
    isolated_part_max: float = 0.5  # of all endpoints

    def __post_init__(self) -> None:
        if not 0 < self.interval_s < math.inf:
            raise ConfigError(f"interval_s is above 0, not {self.interval_s}")
        if self.idle_s is not None and self.idle_s < self.interval_s:
            raise ConfigError("idle_s is None, or not below interval_s")
        if self.quick_pings < 1 or self.checks_max < 2:
            raise ConfigError("a suspect is asked at least once: quick_pings >= 1, checks_max >= 2")
        if not 0 < self.isolation_s <= self.isolation_s_max < math.inf:
            raise ConfigError("isolation_s is above 0, and not above isolation_s_max")
        if not 0 <= self.isolated_part_max <= 1:
            raise ConfigError(f"isolated_part_max is from 0 to 1, not {self.isolated_part_max}")

    @property
    def quick_s(self) -> float:
        """Between two pings of a suspect."""
        return 0.75 * self.interval_s / self.quick_pings


class Standing(enum.Enum):
    GOOD = "good"
    SUSPECT = "suspect"
    ISOLATED = "isolated"


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask it. The answer has to repeat the id."""

    endpoint: str
    ping_id: int


@dataclass(frozen=True, slots=True)
class Isolated:
    endpoint: str
    why: str
    at_least_s: float


@dataclass(frozen=True, slots=True)
class Recovered:
    endpoint: str
    after_s: float  # in isolation
    why: str


Effect = Ping | Isolated | Recovered


@dataclass(slots=True, eq=False)
class _Endpoint:
    name: str
    standing: Standing = Standing.GOOD
    alive_s: float = 0.0  # the last proof of life
    waiting_s: float = _NEVER_S  # since when what was sent is without any reply
    next_s: float = _NEVER_S  # when it is looked at
    ping_id: int = 0  # the last one; they are even
    asked: dict[int, float] = field(default_factory=dict)  # pings of the round, and when
    pinged_s: float = _LONG_AGO_S
    quick_left: int = 0
    checks: int = 0  # without an answer, in a row
    isolated_s: float = 0.0
    until_s: float = 0.0  # of the isolation
    times: int = 0  # isolated, in a row
    good_since_s: float = _LONG_AGO_S  # since it recovered
    length_s: float = 0.0  # of the last isolation
    why: str = ""


class HealthCore:
    """Tell it what happens; `pulse` says what to do, and `next_s` when to call that again."""

    def __init__(self, options: HealthOptions, chance: Chance) -> None:
        self.options = options
        self._chance = chance
        self._all: dict[str, _Endpoint] = {}
        self._isolated: set[str] = set()
        self._gone_id = 0  # the highest ping id of those that left
        self._news: list[Effect] = []

    # --- what is known

    def keep(self, endpoints: Iterable[str], now_s: float) -> None:
        """These there are, and no others. Who is new is taken for good."""
        wanted = dict.fromkeys(endpoints)
        for name in [name for name in self._all if name not in wanted]:
            self._gone_id = max(self._gone_id, self._all.pop(name).ping_id)
            self._isolated.discard(name)
        for name in wanted:
            if name not in self._all:
                # No id twice: it may have been here before, and answer what it was asked then.
                endpoint = _Endpoint(name, alive_s=now_s, ping_id=self._gone_id)
                self._all[name] = endpoint
                self._wait(endpoint, now_s)
        self._make_room(now_s)

    @property
    def isolated(self) -> frozenset[str]:
        return frozenset(self._isolated)

    @property
    def suspects(self) -> frozenset[str]:
        return frozenset(
            name for name, each in self._all.items() if each.standing is Standing.SUSPECT
        )

    @property
    def isolated_max(self) -> int:
        return int(self.options.isolated_part_max * len(self._all) + 1e-9)

    def standing(self, endpoint: str) -> Standing:
        """Of one that is not here: good, as nothing is known against it."""
        found = self._all.get(endpoint)
        return Standing.GOOD if found is None else found.standing

    def next_s(self) -> float:
        """When `pulse` has something to do; infinity if there is nothing."""
        if self._news:
            return 0.0
        return min((each.next_s for each in self._all.values()), default=_NEVER_S)

    # --- what happens

    def on_sent(self, endpoint: str, now_s: float) -> bool:
        """Something went to it that it answers when it is well. True: `next_s` is earlier now."""
        found = self._all.get(endpoint)
        if found is None or found.waiting_s < _NEVER_S:
            return False
        found.waiting_s = now_s
        due_s = now_s + self.options.interval_s
        if found.standing is not Standing.GOOD or found.asked or due_s >= found.next_s:
            return False
        found.next_s = due_s
        return True

    def on_reply(self, endpoint: str, now_s: float) -> None:
        """It answered something. Proves life, except of the isolated: they are asked."""
        found = self._all.get(endpoint)
        if found is not None:
            found.waiting_s = _NEVER_S
            if found.standing is not Standing.ISOLATED:
                found.alive_s = now_s
                if found.asked or found.standing is Standing.SUSPECT:
                    self._clear(found, now_s)

    def on_fault(self, endpoint: str, now_s: float, why: str = "it fails") -> None:
        """It refused, hung up, or was too late: asked now, without waiting for the next ping."""
        found = self._all.get(endpoint)
        if found is not None and found.standing is Standing.GOOD:
            self._suspect(found, now_s, why)

    def on_proof(self, endpoint: str, now_s: float, why: str) -> None:
        """It is of no use, whatever it says to pings."""
        found = self._all.get(endpoint)
        if found is not None and found.standing is not Standing.ISOLATED:
            found.why = why
            if not self._isolate(found, now_s) and found.standing is Standing.GOOD:
                self._suspect(found, now_s, why)

    def on_pong(self, endpoint: str, ping_id: int, now_s: float) -> bool:
        """Does it count?"""
        found = self._all.get(endpoint)
        asked_s = None if found is None else found.asked.get(ping_id)
        if found is None or asked_s is None:
            return False
        if found.standing is not Standing.GOOD and now_s - asked_s > self.options.interval_s:
            return False
        found.alive_s = now_s
        found.waiting_s = _NEVER_S
        if found.standing is Standing.ISOLATED:
            self._recover(found, now_s, "it answers")
        else:
            self._clear(found, now_s)
        return True

    def release_all(self, now_s: float, why: str) -> None:
        """Nobody is isolated or suspected any more."""
        for each in self._all.values():
            if each.standing is Standing.ISOLATED:
                self._recover(each, now_s, why)
            else:
                self._clear(each, now_s)
            each.times = 0

    def pulse(self, now_s: float, pongs: Iterable[tuple[str, int]] = ()) -> list[Effect]:
        """What to do now. Pongs that have arrived are heard first: no round is judged while its
        answer is waiting to be read."""
        for endpoint, ping_id in pongs:
            self.on_pong(endpoint, ping_id, now_s)
        for each in self._all.values():
            while each.next_s <= now_s:
                self._look_at(each, now_s)
        effects, self._news = self._news, []
        return effects

    # --- deciding

    def _look_at(self, endpoint: _Endpoint, now_s: float) -> None:
        if endpoint.standing is Standing.ISOLATED:
            self._ping(endpoint, now_s)
            endpoint.next_s = now_s + self._jittered(self.options.interval_s, 0.6, 0.9)
        elif endpoint.standing is Standing.SUSPECT:
            if now_s - endpoint.next_s > self.options.quick_s:
                # It was us who slept: answers may wait to be read, or are too old by now.
                self._begin_check(endpoint, now_s)
            elif endpoint.quick_left > 0:
                self._ping(endpoint, now_s)
                endpoint.quick_left -= 1
                endpoint.next_s = now_s + self.options.quick_s
            else:
                self._judge(endpoint, now_s)
        elif endpoint.asked:
            self._suspect(endpoint, now_s, "a ping was not answered")
        elif now_s >= self._due_s(endpoint):
            self._ping(endpoint, now_s)
            endpoint.next_s = now_s + self.options.interval_s
        else:
            self._wait(endpoint, now_s)  # it was heard of since

    def _judge(self, endpoint: _Endpoint, now_s: float) -> None:
        """All quick pings of a check are sent, and the last had its time."""
        late_s = now_s - endpoint.next_s
        if late_s > _LATE_PART * self.options.quick_s and endpoint.quick_left == 0:
            endpoint.quick_left = _READ_FIRST
            endpoint.next_s = now_s + self.options.quick_s
            return
        endpoint.checks += 1
        if endpoint.checks >= self.options.checks_max:
            if self._isolate(endpoint, now_s):
                return
            # No room: it stays suspected, and is asked no more often than the isolated.
            self._ping(endpoint, now_s)
            endpoint.next_s = now_s + self._jittered(self.options.interval_s, 0.6, 0.9)
            return
        self._begin_check(endpoint, now_s)

    def _suspect(self, endpoint: _Endpoint, now_s: float, why: str) -> None:
        endpoint.standing = Standing.SUSPECT
        endpoint.checks = 1
        endpoint.why = why
        endpoint.asked.clear()  # an answer to what was asked before proves nothing of now
        self._begin_check(endpoint, now_s)

    def _begin_check(self, endpoint: _Endpoint, now_s: float) -> None:
        endpoint.quick_left = self.options.quick_pings
        endpoint.next_s = max(now_s, endpoint.pinged_s + self.options.quick_s)

    def _isolate(self, endpoint: _Endpoint, now_s: float) -> bool:
        if len(self._isolated) >= self.isolated_max:
            return False
        options = self.options
        if now_s - endpoint.good_since_s > 2 * max(endpoint.length_s, options.interval_s):
            endpoint.times = 0  # it has behaved since the last time
        bound_s = min(options.isolation_s_max, options.isolation_s * 2**endpoint.times)
        endpoint.times = min(endpoint.times + 1, _DOUBLINGS_MAX)
        endpoint.length_s = self._jittered(bound_s, 0.5, 1.0)
        endpoint.standing = Standing.ISOLATED
        endpoint.isolated_s = now_s
        endpoint.until_s = endpoint.next_s = now_s + endpoint.length_s
        endpoint.asked.clear()
        endpoint.quick_left = endpoint.checks = 0
        self._isolated.add(endpoint.name)
        self._news.append(Isolated(endpoint.name, endpoint.why, endpoint.length_s))
        return True

    def _recover(self, endpoint: _Endpoint, now_s: float, why: str) -> None:
        self._isolated.discard(endpoint.name)
        endpoint.good_since_s = now_s
        self._news.append(Recovered(endpoint.name, now_s - endpoint.isolated_s, why))
        self._clear(endpoint, now_s)

    def _clear(self, endpoint: _Endpoint, now_s: float) -> None:
        """It is alive: nothing that was missing before counts any more."""
        endpoint.standing = Standing.GOOD
        endpoint.asked.clear()
        endpoint.quick_left = endpoint.checks = 0
        self._wait(endpoint, now_s)

    def _wait(self, endpoint: _Endpoint, now_s: float) -> None:
        endpoint.next_s = self._due_s(endpoint)
        if self.options.idle_s is not None and endpoint.waiting_s == _NEVER_S:
            # Clients that began together do not ask together.
            since_s = max(now_s, endpoint.alive_s)
            endpoint.next_s = since_s + self._jittered(self.options.idle_s, 0.5, 1.0)

    def _due_s(self, endpoint: _Endpoint) -> float:
        """When one that is good, and of whom nothing is heard, is asked."""
        if endpoint.waiting_s < _NEVER_S:
            return endpoint.waiting_s + self.options.interval_s
        if self.options.idle_s is None:
            return _NEVER_S
        return endpoint.alive_s + 0.5 * self.options.idle_s

    def _ping(self, endpoint: _Endpoint, now_s: float) -> None:
        endpoint.ping_id += 2
        endpoint.pinged_s = now_s
        asked = endpoint.asked
        while asked and now_s - asked[oldest := next(iter(asked))] > self.options.interval_s:
            del asked[oldest]
        asked[endpoint.ping_id] = now_s
        self._news.append(Ping(endpoint.name, endpoint.ping_id))

    def _make_room(self, now_s: float) -> None:
        """There are fewer endpoints now, and so fewer may be isolated."""
        while len(self._isolated) > self.isolated_max:
            first = min((self._all[name] for name in self._isolated), key=lambda each: each.until_s)
            self._recover(first, now_s, "too few are left")
            self._suspect(first, now_s, first.why)

    def _jittered(self, span_s: float, low: float, high: float) -> float:
        return span_s * (low + (high - low) * self._chance.fraction())
