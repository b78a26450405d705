"""Histories of clients that bring messages to endpoints which die, freeze and flap: the real cores
of health and routing, over a network that loses, delays and doubles pings, pongs, calls, answers,
and over one place that all endpoints write to, as a log is one.

Clients have views of their own of who is alive. Meanwhile servers come and go, and pins change.
Then all is well: everybody must be in use again, and every message settled, once and in its order.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dlog.streams.health.core import (
    HealthCore,
    HealthOptions,
    Isolated,
    Ping,
    Recovered,
    Standing,
)
from dlog.streams.routing.flight import (
    Call,
    Flight,
    FlightOptions,
    Overdue,
    Settled,
)
from dlog.streams.routing.hashing import key_hash
from dlog.streams.routing.ring import Ring
from dlog.streams.routing.router import Router, Routes
from dlog.testing.sim.streams_health_parts import Endpoint, HealthWeather, Place, draw_weather
from dlog.testing.sim.tape import Chance
from dlog.testing.sim.world import World, require

ORDER = "CL-07 (once, in order)"
SETTLED = "CL-07 (settled is there)"
LANES = "CL-07 (one call of a key)"
PROBES = "CL-03 (probes are few)"
SILENCE = "CL-09 (isolated for silence)"
STALE = "CL-12 (recovered by an answer)"
TIMELY = "CL-06 (in time)"
CAP = "CL (a part of all)"
DAMPED = "CL (damped)"
ROUTED = "CL-20 (one router)"

HEALTH = HealthOptions(
    interval_s=2.0, idle_s=8.0, quick_pings=3, isolation_s=4.0, isolation_s_max=16.0
)
FLIGHT = FlightOptions(
    answer_s=1.5, call_messages_max=3, messages_max=12, retry_base_s=0.1, retry_s_max=1.0
)
POINTS = 0.025  # the weight of four points: a ring that is made in no time
RTT_S = 0.02
LATE_S = 3.0
_EPS_S = 1e-6
_QUICK_S = HEALTH.quick_s  # as it was when nothing was planted
_CALM_S_MAX = 90.0


@functools.cache
def _points(names: tuple[str, ...]) -> list[tuple[int, str]]:
    return sorted(Ring.of(dict.fromkeys(names, POINTS)).points())


def owner_by_the_rules(router: Router, key: bytes, isolated: frozenset[str], hash: int) -> str:
    """Found the slow way, from what is told apart."""
    pinned = router.pins.get(key)
    if pinned is not None and pinned not in isolated:
        return pinned
    live = [each for each in _points(tuple(router.weights)) if each[1] not in isolated]
    return next((owner for point, owner in live if point >= hash), live[0][1])


class SimClient:
    """Plays the prober and the dispatcher, and is watched while it does."""

    def __init__(self, history: HealthHistory, client_id: int) -> None:
        self.history = history
        self.world = history.world
        self.id = client_id
        self.routes = Routes(Router.of(dict.fromkeys(history.names, POINTS)))
        self.health = HealthCore(HEALTH, self)
        self.flight = Flight(self.routes, self, options=FLIGHT)
        self.sent: defaultdict[bytes, list[int]] = defaultdict(list)
        self.settled: set[int] = set()
        self.taken = 0
        self.asleep_until_s = 0.0
        self.full_s = -math.inf  # when nobody more could be isolated
        self._due_s = math.inf  # of the event that pulses
        self._owners_of = 0  # the version of the router that was checked
        # What is held against the core: pings of each endpoint since the last proof of life, and
        # what each isolation was told to be.
        self.pings: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self.unanswered: defaultdict[str, int] = defaultdict(int)
        self.last_ping_s: dict[str, float] = {}
        self.last_id: dict[str, int] = {}
        self.alive_s: dict[str, float] = {}
        self.doubt_s: dict[str, float] = {}
        self.proved: set[str] = set()
        self.isolations: dict[str, tuple[float, float]] = {}  # since when, until when at least
        self.calls: dict[bytes, tuple[Call, float]] = {}
        self.health.keep(history.names, 0.0)

    # --- chance: two clients never draw the same, also of a tape of zeros

    def fraction(self) -> float:
        return (self.world.chance.fraction() + 0.31 + 0.17 * self.id) % 1.0

    def token(self) -> str:
        return self.world.chance.token()

    @property
    def now_s(self) -> float:
        return self.world.now_ms / 1000

    # --- what it does

    def send(self) -> None:
        self.taken += 1
        if self.flight.has_room(100):
            key = self.history.key()
            self.sent[key].append(self.flight.take(key, b""))
        self.pulse()

    def pulse(self, pongs: tuple[tuple[str, int], ...] = ()) -> None:
        """Everything that is due, until nothing is."""
        now_s = self.now_s
        if now_s < self.asleep_until_s:
            self._later(self.asleep_until_s)
            return
        before = self.health.isolated
        for effect in self.health.pulse(now_s, pongs):
            if isinstance(effect, Ping):
                self._ping(effect)
            elif isinstance(effect, Isolated):
                self._on_isolated(effect)
            else:
                self._on_recovered(effect)
        if len(self.health.isolated) >= self.health.isolated_max:
            self.full_s = now_s
        if self.health.isolated != before or self.routes.now.isolated != self.health.isolated:
            self.routes_follow()
        for told in self.flight.pulse(now_s):
            if isinstance(told, Call):
                self._call(told)
            elif isinstance(told, Settled):
                self._on_settled(told)
            elif isinstance(told, Overdue):
                self._doubt(told.endpoint)
        for key, _ in self.history.keys:
            where = self.flight.where(key)
            require(where not in self.health.isolated, LANES, "at an isolated one", key, where)
        due_s = min(self.health.next_s(), self.flight.next_s())
        if due_s < math.inf:
            self._later(due_s)

    def _later(self, due_s: float) -> None:
        if due_s < self._due_s - _EPS_S or self._due_s <= self.now_s:
            self._due_s = due_s = max(due_s, self.now_s + 0.001)
            self.world.at(due_s * 1000, self._on_due)

    def _on_due(self) -> None:
        if self._due_s <= self.now_s + _EPS_S:
            self._due_s = math.inf
            self.pulse()

    def routes_follow(self) -> None:
        isolated = self.health.isolated
        limit = int(HEALTH.isolated_part_max * len(self.routes.now.weights) + 1e-9)
        require(len(isolated) <= limit, CAP, f"{len(isolated)} of {len(self.routes.now.weights)}")
        before = self.routes.now
        after = self.routes.change(isolated=isolated)
        changed = isolated != before.isolated
        require(after.version == before.version + changed, ROUTED, "a version is not a change")
        self.flight.on_routes()
        self.check_owners()

    def check_owners(self) -> None:
        router = self.routes.now
        if router.version == self._owners_of:
            return
        self._owners_of = router.version
        for key, hash in self.history.keys:
            wanted = owner_by_the_rules(router, key, self.health.isolated, hash)
            require(router.owner_of(key) == wanted, ROUTED, "another owner", key, wanted)
        require(set(router.in_use) == set(router.weights) - self.health.isolated, ROUTED, "in use")

    def swap(self, servers: list[str] | None, pins: Mapping[bytes, str] | None) -> None:
        if servers is not None:
            self.health.keep(servers, self.now_s)
        self.routes.change(servers=_weights(servers), pins=pins)
        self.routes_follow()
        self.pulse()

    # --- pings

    def _ping(self, ping: Ping) -> None:
        endpoint, now_s = ping.endpoint, self.now_s
        last_s = self.last_ping_s.get(endpoint, -math.inf)
        require(now_s - last_s >= _QUICK_S - _EPS_S, PROBES, "too soon", endpoint)
        last_id = self.last_id.get(endpoint, 0)
        require(ping.ping_id > last_id, STALE, "an id twice", ping.ping_id)
        self.last_id[endpoint] = ping.ping_id
        alive_s = self.alive_s.get(endpoint, 0.0)
        if (
            self.health.standing(endpoint) is Standing.GOOD
            and endpoint not in self.doubt_s
            and not self._waits_for(endpoint)
        ):
            require(now_s - alive_s >= 4.0 - _EPS_S, PROBES, "it was heard of", endpoint)
        isolated = self.isolations.get(endpoint)
        if isolated is not None:
            require(now_s >= isolated[1] - _EPS_S, DAMPED, "asked while it is isolated", endpoint)
        self.last_ping_s[endpoint] = now_s
        self.pings[endpoint][ping.ping_id] = now_s
        self.unanswered[endpoint] += 1
        target = self.history.endpoints[endpoint]
        self.history.bring(lambda: target.receive(lambda: self._pong(ping)))

    def _waits_for(self, endpoint: str) -> bool:
        return self.history.waits[self.id, endpoint] > 0

    def _pong(self, ping: Ping) -> None:
        self.history.bring(lambda: self._on_pong(ping))

    def _on_pong(self, ping: Ping) -> None:
        if self.now_s < self.asleep_until_s:
            sent_s = self.pings[ping.endpoint].get(ping.ping_id, -math.inf)
            read_in_time = self.asleep_until_s - sent_s < HEALTH.interval_s - _EPS_S
            if self.doubt_s.get(ping.endpoint, 0.0) < sent_s and read_in_time:
                self.unanswered[ping.endpoint] = 0  # whether it is read or not
            self.world.at(self.asleep_until_s * 1000 + 0.5, lambda: self._on_pong(ping))
            return
        endpoint, now_s = ping.endpoint, self.now_s
        sent_s = self.pings[endpoint].pop(ping.ping_id, -math.inf)  # it counts once
        isolated = self.isolations.get(endpoint)
        if now_s - sent_s > HEALTH.interval_s - _EPS_S:
            pass  # too old to prove anything
        elif isolated is not None:
            if sent_s >= isolated[1] - _EPS_S:
                self.alive_s[endpoint] = now_s
        elif sent_s > self.doubt_s.get(endpoint, 0.0) and self.unanswered[endpoint]:
            self._alive(endpoint)
        self.pulse(((endpoint, ping.ping_id),))

    def _alive(self, endpoint: str) -> None:
        self.alive_s[endpoint] = self.now_s
        self.unanswered[endpoint] = 0
        self.doubt_s.pop(endpoint, None)

    def _doubt(self, endpoint: str) -> None:
        if self.health.standing(endpoint) is Standing.GOOD:
            self.doubt_s[endpoint] = self.now_s
            self.unanswered[endpoint] = 0
        self.health.on_fault(endpoint, self.now_s)

    def prove(self, endpoint: str) -> None:
        self.proved.add(endpoint)
        self.health.on_proof(endpoint, self.now_s, "errors")
        self.pulse()

    def _on_isolated(self, told: Isolated) -> None:
        endpoint, now_s = told.endpoint, self.now_s
        self.world.mark("isolated")
        if endpoint in self.proved:
            self.proved.discard(endpoint)
        else:
            asked = self.unanswered[endpoint]
            require(asked >= HEALTH.quick_pings, SILENCE, f"{asked} pings unanswered", endpoint)
        low, high = HEALTH.isolation_s / 2, HEALTH.isolation_s_max
        require(low <= told.at_least_s <= high, DAMPED, "for how long", told.at_least_s)
        self.history.on_isolation(self.id, endpoint, told.at_least_s, now_s)
        self.isolations[endpoint] = (now_s, now_s + told.at_least_s)

    def _on_recovered(self, told: Recovered) -> None:
        endpoint = told.endpoint
        _, until_s = self.isolations.pop(endpoint)
        self.world.mark("recovered")
        self.history.last_s[self.id, endpoint] = self.now_s
        if told.why == "it answers":
            require(self.now_s >= until_s - _EPS_S, DAMPED, "too early", endpoint)
            require(self.alive_s.get(endpoint, 0.0) == self.now_s, STALE, "no answer", endpoint)
        self.unanswered[endpoint] = 0
        self.doubt_s[endpoint] = self.now_s  # it may be a suspect at once, where there are too few

    # --- calls

    def _call(self, call: Call) -> None:
        now_s = self.now_s
        before = self.calls.get(call.key)
        if before is not None:
            out, sent_s = before
            given_up = now_s >= sent_s + FLIGHT.answer_s - _EPS_S
            moved = out.endpoint in self.health.isolated or out.endpoint in self.history.moved_off
            require(given_up or moved, LANES, "two calls on their way", call.key)
        self.calls[call.key] = (call, now_s)
        wanted = self.routes.now.owner_of(call.key)
        require(call.endpoint == wanted, ROUTED, "sent elsewhere", call.endpoint, wanted)
        isolated = self.health.isolated
        require(call.endpoint not in isolated, ROUTED, "sent to an isolated one", call.endpoint)
        if self.health.on_sent(call.endpoint, now_s):
            self._later(self.health.next_s())
        self.history.waits[self.id, call.endpoint] += 1
        target = self.history.endpoints[call.endpoint]
        self.history.bring(lambda: target.receive(lambda: self.history.take(self, call)))

    def on_answer(self, call: Call, taken: int) -> None:
        if self.now_s < self.asleep_until_s:
            self.world.at(self.asleep_until_s * 1000 + 0.5, lambda: self.on_answer(call, taken))
            return
        endpoint = call.endpoint
        self.history.waits[self.id, endpoint] = 0
        self.health.on_reply(endpoint, self.now_s)
        if endpoint not in self.isolations:
            self._alive(endpoint)
        known = self.calls.get(call.key)
        if known is not None and known[0] is call:
            del self.calls[call.key]
        self.flight.on_answer(call, taken, self.now_s)
        self.pulse()

    def _on_settled(self, told: Settled) -> None:
        for number in told.numbers:
            require(number not in self.settled, SETTLED, "twice", number)
            self.settled.add(number)
            self.history.check_settled(self.id, number)

    @property
    def is_done(self) -> bool:
        return (
            self.taken >= self.history.weather.messages
            and not self.flight.messages
            and not self.health.isolated
            and not self.health.suspects
        )


class HealthHistory:
    def __init__(self, world: World, weather: HealthWeather) -> None:
        self.world = world
        self.weather = weather
        self.names = [f"e{number}" for number in range(weather.endpoints)]
        self.endpoints = {name: Endpoint(world, name) for name in [*self.names, "extra"]}
        self.keys = _KEYS[: weather.keys]
        self.places = {key: Place() for key, _ in self.keys}
        self.there: defaultdict[int, set[int]] = defaultdict(set)
        self.waits: defaultdict[tuple[int, str], int] = defaultdict(int)
        self.last_s: dict[tuple[int, str], float] = {}  # the end of the last isolation
        self.moved_off: set[str] = set()  # servers that left
        self._lengths: dict[tuple[str, float], tuple[int, float]] = {}
        self._was: dict[
            tuple[int, str], tuple[float, float]
        ] = {}  # the last isolation: end, length
        self.clients = [SimClient(self, number) for number in range(weather.clients)]

    def run(self) -> None:
        world, weather = self.world, self.weather
        span_ms = weather.span_s * 1000
        at = self._some_time
        for client in self.clients:
            at_s = 0.0
            for _ in range(weather.messages):
                at_s += world.chance.delay(weather.pause_s)
                world.at(min(at_s * 1000, span_ms), client.send)
            client.pulse()
        for _ in range(weather.deaths):
            world.at(at(), self._kill_one)
        if weather.storm:
            world.at(at(), self._kill_all)
        for _ in range(weather.swaps):
            world.at(at(), self._swap)
        for _ in range(weather.proofs):
            world.at(at(), self._prove)
        for _ in range(weather.sleeps):
            world.at(at(), self._sleep)
        world.run(until_ms=span_ms)
        world.is_calm = True
        for endpoint in self.endpoints.values():
            endpoint.come_up()
        healed_s = world.now_ms / 1000
        world.run(until_ms=span_ms + _CALM_S_MAX * 1000, done=self._is_done)
        self._check_end(healed_s)

    def _some_time(self) -> float:
        return self.world.chance.random() * self.weather.span_s * 1000

    def key(self) -> bytes:
        return self.world.chance.pick(self.keys)[0]

    # --- trouble

    def _kill_one(self) -> None:
        self._kill(self.world.chance.pick(self.names, "who dies"))

    def _kill_all(self) -> None:
        self.world.mark("a storm")
        for name in self.names:
            self._kill(name)

    def _kill(self, name: str) -> None:
        endpoint, chance = self.endpoints[name], self.world.chance
        if self.world.is_calm or not endpoint.is_up:
            return
        endpoint.go_down(self.weather.freezes)
        lasts_ms = 1000 * (1.0 + chance.delay(self.weather.dead_s, f"the absence of {name}"))
        self.world.after(lasts_ms, endpoint.come_up)
        since_s = self.world.now_ms / 1000
        bound_s = HEALTH.interval_s * 2 + 8.0 + LATE_S * 2 + 0.1
        if lasts_ms > bound_s * 1000:
            self.world.after(bound_s * 1000, lambda: self._check_dead(name, since_s))

    def _check_dead(self, name: str, since_s: float) -> None:
        """So long after its death everybody who has room has isolated it."""
        if self.endpoints[name].down_since_s != since_s or self.world.is_calm:
            return
        for client in self.clients:
            health = client.health
            slept = client.asleep_until_s > since_s
            if name not in client.routes.now.weights or slept:
                continue
            full = len(health.isolated) >= health.isolated_max
            lately_full = client.now_s - client.full_s < 2 * HEALTH.interval_s
            held = health.standing(name) is Standing.SUSPECT and lately_full
            lately = self.last_s.get((client.id, name), -math.inf) >= since_s
            isolated = name in health.isolated
            require(isolated or full or held or lately, TIMELY, "not isolated", client.id, name)

    def _swap(self) -> None:
        chance = self.world.chance
        kind = chance.pick(("pin", "leave", "come", "pin away"), "a swap")
        client = chance.pick(self.clients)
        if client.now_s < client.asleep_until_s:
            return
        here = list(client.routes.now.weights)
        self.world.mark(f"swap: {kind}")
        if kind == "come" and "extra" not in here:
            client.swap([*here, "extra"], None)
        elif kind == "leave" and len(here) > 1:
            gone = chance.pick(here, "who leaves")
            self.moved_off.add(gone)
            client.isolations.pop(gone, None)
            client.pings.pop(gone, None)
            client.swap([each for each in here if each != gone], None)
        elif kind == "pin":
            client.swap(None, {self.key(): chance.pick(here)})
        else:
            client.swap(None, {})

    def _prove(self) -> None:
        client = self.world.chance.pick(self.clients)
        if client.now_s >= client.asleep_until_s:
            client.prove(self.world.chance.pick(list(client.routes.now.weights)))

    def _sleep(self) -> None:
        client = self.world.chance.pick(self.clients)
        until_s = client.now_s + self.world.chance.delay(6.0, "its sleep")
        client.asleep_until_s = max(client.asleep_until_s, min(until_s, self.weather.span_s))
        self.world.mark("a client sleeps")

    # --- the network

    def bring(self, what: Callable[[], None]) -> None:
        world, weather = self.world, self.weather
        if world.strikes(weather.lost, "lost"):
            return
        world.after(self._way_ms(), what)
        if world.strikes(weather.twice, "twice"):
            world.after(self._way_ms(), what)

    def _way_ms(self) -> float:
        if self.world.strikes(self.weather.late, "late"):
            return LATE_S * 1000 * self.world.chance.random()
        return RTT_S * 500 * (0.5 + self.world.chance.random())

    # --- the other end

    def take(self, client: SimClient, call: Call) -> None:
        """Hold the key, then write: somebody else may have taken it between the two."""
        endpoint = self.endpoints[call.endpoint]
        tenure = self.places[call.key].hold(call.endpoint)

        def write() -> None:
            endpoint.receive(lambda: self._write(client, call, tenure))

        self.world.after(self.world.chance.random() * self.weather.slow_ms, write)

    def _write(self, client: SimClient, call: Call, tenure: int) -> None:
        place = self.places[call.key]
        taken = 0
        if place.tenure == tenure:
            chance = self.world.chance
            messages = call.messages
            if len(messages) > 1 and self.world.strikes(0.05, "a part is taken"):
                messages = messages[: 1 + int(chance.random() * (len(messages) - 1))]
            for message in place.arrivals.new_of(client.id, messages):
                numbers = place.numbers[client.id]
                sent = client.sent[call.key]
                wanted = sent[len(numbers)] if len(numbers) < len(sent) else None
                require(message.number == wanted, ORDER, f"{message.number}, not {wanted}")
                numbers.append(message.number)
                place.arrivals.note(client.id, message.number)
                self.there[client.id].add(message.number)
            taken = len(messages)
        else:
            self.world.mark("fenced")
        self.bring(lambda: client.on_answer(call, taken))

    # --- what is watched

    def check_settled(self, client_id: int, number: int) -> None:
        require(number in self.there[client_id], SETTLED, "told and not there", client_id, number)

    def on_isolation(self, client_id: int, endpoint: str, length_s: float, now_s: float) -> None:
        """Two clients never isolate one endpoint for equally long; who flaps is isolated longer."""
        who, other_s = self._lengths.get((endpoint, length_s), (client_id, -math.inf))
        require(who == client_id, DAMPED, "as long as another client", endpoint, other_s)
        self._lengths[endpoint, length_s] = (client_id, now_s)
        ended_s = self.last_s.get((client_id, endpoint))
        before = self._was.get((client_id, endpoint))
        if before is not None and ended_s is not None:
            times, before_s = before
            if now_s - ended_s <= 2 * max(before_s, HEALTH.interval_s) - _EPS_S:
                least_s = min(HEALTH.isolation_s_max, HEALTH.isolation_s * 2**times) / 2
                require(length_s >= least_s - _EPS_S, DAMPED, "not longer", endpoint, length_s)
                self._was[client_id, endpoint] = (times + 1, length_s)
                return
        self._was[client_id, endpoint] = (1, length_s)

    def _is_done(self) -> bool:
        return all(client.is_done for client in self.clients)

    def _check_end(self, healed_s: float) -> None:
        for client in self.clients:
            left = client.flight.unsettled()
            require(not left, TIMELY, "messages are not settled", client.id, left)
            for key, sent in client.sent.items():
                there = self.places[key].numbers[client.id]
                require(there == sent, ORDER, "what is there is not what was sent", key)
            away = client.health.isolated | client.health.suspects
            require(not away, TIMELY, "not in use again", client.id, sorted(away))
            for endpoint in client.routes.now.weights:
                ended_s = self.last_s.get((client.id, endpoint), 0.0)
                if ended_s > healed_s:
                    bound_s = healed_s + HEALTH.isolation_s_max + HEALTH.interval_s + LATE_S
                    require(ended_s <= bound_s, TIMELY, "recovered late", client.id, endpoint)


def _weights(servers: list[str] | None) -> dict[str, float] | None:
    return None if servers is None else dict.fromkeys(servers, POINTS)


# The second stands behind the last point of every ring here.
_KEYS = [(key, key_hash(key)) for key in (b"k0", b"k15", b"k2")]


def run_health_history(chance: Chance, *, told: bool = False, **fixed: Any) -> World:
    world = World(chance, told=told)
    weather = draw_weather(chance)
    if fixed:
        weather = replace(weather, **fixed)
    HealthHistory(world, weather).run()
    return world
