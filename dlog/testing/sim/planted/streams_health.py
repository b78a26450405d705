"""Bugs of health and routing: who is isolated, when and for how long, where a key goes, and what
becomes of messages on their way."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Any

from dlog.streams.health.core import HealthCore, HealthOptions, Standing
from dlog.streams.routing.arrivals import Arrivals
from dlog.streams.routing.flight import Call, Flight, Numbered
from dlog.streams.routing.hashing import key_hash
from dlog.streams.routing.ring import Ring
from dlog.streams.routing.router import Router, Routes
from dlog.testing.sim.planted import Patch, Plants

plants = Plants("streams-health")
PLANTS = plants.by_name
DEAD: dict[str, Any] = {"deaths": 4, "dead_s": 20.0, "endpoints": 4, "lost": 0.05}
MANY: dict[str, Any] = {"messages": 10, "pause_s": 0.3, "keys": 3, **DEAD}
SWAPS: dict[str, Any] = {"swaps": 3, **MANY}


# --- who is isolated, and who is used again


@plants("CL-09: the failure count is reset by a good pong", **{**DEAD, "lost": 0.3})
def failures_add_up(patch: Patch) -> None:
    real = HealthCore._suspect
    failures: Counter[tuple[int, str]] = Counter()

    def suspect(self: HealthCore, endpoint: Any, now_s: float, why: str) -> None:
        real(self, endpoint, now_s, why)
        failures[id(self), endpoint.name] += 1
        if failures[id(self), endpoint.name] >= self.options.checks_max:
            self._isolate(endpoint, now_s)

    patch.setattr(HealthCore, "_suspect", suspect)


@plants("CL-09: a suspect is asked several times", **{**DEAD, "lost": 0.3})
def one_more_ping_decides(patch: Patch) -> None:
    real = HealthCore._begin_check

    def begin_check(self: HealthCore, endpoint: Any, now_s: float) -> None:
        real(self, endpoint, now_s)
        endpoint.quick_left = 1

    patch.setattr(HealthCore, "_begin_check", begin_check)


@plants("CL-09: a fault is a suspicion", **MANY)
def a_fault_isolates(patch: Patch) -> None:
    def on_fault(self: HealthCore, endpoint: str, now_s: float, why: str = "") -> None:
        self.on_proof(endpoint, now_s, why)

    patch.setattr(HealthCore, "on_fault", on_fault)


@plants("CL-09: who slept does not judge", **{**DEAD, "sleeps": 8, "clients": 3, "lost": 0.3})
def a_sleeper_judges(patch: Patch) -> None:
    real = HealthCore._look_at

    def look_at(self: HealthCore, endpoint: Any, now_s: float) -> None:
        endpoint.next_s = now_s
        real(self, endpoint, now_s)

    patch.setattr(HealthCore, "_look_at", look_at)


@plants("CL-12: a stale pong is not valid", late=0.3, **DEAD)
def a_stale_pong_counts(patch: Patch) -> None:
    def on_pong(self: HealthCore, endpoint: str, ping_id: int, now_s: float) -> bool:
        found = self._all.get(endpoint)
        if found is not None and found.standing is Standing.ISOLATED:
            self._recover(found, now_s, "it answers")
            return True
        return real(self, endpoint, ping_id, now_s)

    real = HealthCore.on_pong
    patch.setattr(HealthCore, "on_pong", on_pong)


@plants("CL-12: a pong counts for the endpoint that was asked", **DEAD)
def any_pong_counts_for_all(patch: Patch) -> None:
    real = HealthCore.on_pong

    def on_pong(self: HealthCore, endpoint: str, ping_id: int, now_s: float) -> bool:
        counted = [real(self, name, ping_id, now_s) for name in list(self._all)]
        return any(counted)

    patch.setattr(HealthCore, "on_pong", on_pong)


@plants("CL: a part of all is isolated at most", storm=True, **DEAD)
def the_cap_is_ignored(patch: Patch) -> None:
    patch.setattr(HealthCore, "isolated_max", property(lambda self: len(self._all)))


@plants("CL: a part of all is isolated at most", storm=True, **SWAPS)
def who_leaves_makes_no_room(patch: Patch) -> None:
    patch.setattr(HealthCore, "_make_room", lambda self, now_s: None)


@plants("CL: clients do not come back together", **{**DEAD, "clients": 3, "storm": True})
def no_jitter(patch: Patch) -> None:
    def jittered(self: HealthCore, span_s: float, low: float, high: float) -> float:
        return span_s * high

    patch.setattr(HealthCore, "_jittered", jittered)


@plants("CL: a flapping endpoint is isolated longer each time", deaths=12, dead_s=3.0, endpoints=2)
def isolation_is_always_as_long(patch: Patch) -> None:
    real = HealthCore._isolate

    def isolate(self: HealthCore, endpoint: Any, now_s: float) -> bool:
        endpoint.times = 0
        return real(self, endpoint, now_s)

    patch.setattr(HealthCore, "_isolate", isolate)


@plants("CL: isolation has a least length", **DEAD)
def the_isolated_are_asked_at_once(patch: Patch) -> None:
    real = HealthCore._isolate

    def isolate(self: HealthCore, endpoint: Any, now_s: float) -> bool:
        done = real(self, endpoint, now_s)
        if done:
            endpoint.next_s = now_s + self.options.quick_s
        return done

    patch.setattr(HealthCore, "_isolate", isolate)


@plants("CL-11: an answer recovers, and nothing else", **DEAD)
def time_alone_recovers(patch: Patch) -> None:
    real = HealthCore._look_at

    def look_at(self: HealthCore, endpoint: Any, now_s: float) -> None:
        if endpoint.standing is Standing.ISOLATED:
            self._recover(endpoint, now_s, "it answers")
        else:
            real(self, endpoint, now_s)

    patch.setattr(HealthCore, "_look_at", look_at)


@plants("CL-11: an answer recovers, and nothing else", **{**MANY, "late": 0.3, "proofs": 4})
def replies_recover_the_isolated(patch: Patch) -> None:
    real = HealthCore.on_reply

    def on_reply(self: HealthCore, endpoint: str, now_s: float) -> None:
        real(self, endpoint, now_s)
        found = self._all.get(endpoint)
        if found is not None and found.standing is Standing.ISOLATED:
            self._recover(found, now_s, "it answers")

    patch.setattr(HealthCore, "on_reply", on_reply)


@plants("CL-06: recovery happens by itself", **DEAD)
def the_isolated_are_asked_once(patch: Patch) -> None:
    real = HealthCore._look_at

    def look_at(self: HealthCore, endpoint: Any, now_s: float) -> None:
        real(self, endpoint, now_s)
        if endpoint.standing is Standing.ISOLATED:
            endpoint.next_s = math.inf

    patch.setattr(HealthCore, "_look_at", look_at)


@plants("CL-06: isolation happens by itself", **DEAD)
def nobody_is_ever_judged(patch: Patch) -> None:
    def judge(self: HealthCore, endpoint: Any, now_s: float) -> None:
        self._begin_check(endpoint, now_s)

    patch.setattr(HealthCore, "_judge", judge)


@plants("CL-06: a suspect that was spared is isolated when there is room", storm=True, **DEAD)
def the_spared_are_forgotten(patch: Patch) -> None:
    real = HealthCore._judge

    def judge(self: HealthCore, endpoint: Any, now_s: float) -> None:
        real(self, endpoint, now_s)
        if endpoint.standing is Standing.SUSPECT and not endpoint.quick_left:
            endpoint.next_s = math.inf

    patch.setattr(HealthCore, "_judge", judge)


# --- probes


@plants("CL-03: idle endpoints are asked in the background", **{**DEAD, "messages": 4})
def the_idle_are_never_asked(patch: Patch) -> None:
    def wait(self: HealthCore, endpoint: Any, now_s: float) -> None:
        endpoint.next_s = self._due_s(endpoint) if endpoint.waiting_s < math.inf else math.inf

    patch.setattr(HealthCore, "_wait", wait)


@plants("CL-03: nothing is asked while replies prove life", **{**MANY, "deaths": 0})
def replies_prove_nothing(patch: Patch) -> None:
    def on_reply(self: HealthCore, endpoint: str, now_s: float) -> None:
        found = self._all.get(endpoint)
        if found is not None:
            found.waiting_s = math.inf

    patch.setattr(HealthCore, "on_reply", on_reply)


@plants("CL-03: probes are few", **DEAD)
def suspects_are_flooded(patch: Patch) -> None:
    patch.setattr(HealthOptions, "quick_s", property(lambda self: 0.05 * self.interval_s))


@plants("CL-03: probes are few", **MANY)
def each_fault_asks_anew(patch: Patch) -> None:
    def begin_check(self: HealthCore, endpoint: Any, now_s: float) -> None:
        real(self, endpoint, now_s)
        endpoint.next_s = now_s

    real = HealthCore._begin_check
    patch.setattr(HealthCore, "_begin_check", begin_check)


@plants(
    "CL-10: no ping id twice",
    survives="it takes a server that leaves, comes back, and answers what it was asked before: "
    "tests/unit/streams/test_health_core.py::"
    "test_cl12_who_comes_back_is_not_known_by_what_it_was_asked_before",
    shown_by="tests/unit/streams/test_health_core.py::"
    "test_cl12_who_comes_back_is_not_known_by_what_it_was_asked_before",
    **SWAPS,
)
def ids_begin_anew(patch: Patch) -> None:
    real = HealthCore.keep

    def keep(self: HealthCore, endpoints: Iterable[str], now_s: float) -> None:
        self._gone_id = 0
        real(self, endpoints, now_s)
        self._gone_id = 0
        for each in self._all.values():
            if not each.asked and each.pinged_s < 0:
                each.ping_id = 0

    patch.setattr(HealthCore, "keep", keep)


@plants(
    "CL-09: a pong that arrived is heard before anybody is judged",
    survives="who is judged late is asked anew, and pongs come apart here: "
    "tests/unit/streams/test_health_core.py::"
    "test_flaw_a_valid_pong_read_at_the_boundary_is_a_success",
    shown_by="tests/unit/streams/test_health_core.py::"
    "test_flaw_a_valid_pong_read_at_the_boundary_is_a_success",
    **DEAD,
)
def judged_before_heard(patch: Patch) -> None:
    real = HealthCore.pulse

    def pulse(self: HealthCore, now_s: float, pongs: Any = ()) -> Any:
        effects = real(self, now_s)
        for endpoint, ping_id in pongs:
            self.on_pong(endpoint, ping_id, now_s)
        return effects + real(self, now_s)

    patch.setattr(HealthCore, "pulse", pulse)


# --- where a key goes


@plants("CL-08: routes change as a whole", **DEAD)
def the_ring_is_swapped_half(patch: Patch) -> None:
    """The names in use are new, and the ring is the old one."""
    real = Router.changed

    def changed(self: Router, **change: Any) -> Router:
        made = real(self, **change)
        if made is not self and change.get("servers") is None:
            object.__setattr__(made, "_ring", self._ring)
        return made

    patch.setattr(Router, "changed", changed)


@plants("CL-08: routes change as a whole", **DEAD)
def turns_go_to_the_isolated(patch: Patch) -> None:
    patch.setattr(Router, "in_use", property(lambda self: tuple(self.weights)))


@plants("CL-20: every change is a version", **DEAD)
def versions_do_not_grow(patch: Patch) -> None:
    real = Router.changed

    def changed(self: Router, **change: Any) -> Router:
        made = real(self, **change)
        object.__setattr__(made, "version", self.version)
        return made

    patch.setattr(Router, "changed", changed)


@plants("CL-20: every change is a version", **DEAD)
def no_change_is_a_version_too(patch: Patch) -> None:
    real = Routes.change

    def change(self: Routes, **wanted: Any) -> Router:
        before = self.now
        made = real(self, **wanted)
        if made is before:
            made = real(self, isolated=set(before.weights))
            made = real(self, isolated=before.isolated)
        return made

    patch.setattr(Routes, "change", change)


@plants("CL-20: isolation outlives servers that come and go", **SWAPS)
def a_swap_forgets_isolation(patch: Patch) -> None:
    """The names in use are right, and the ring is that of all."""
    real = Router.changed

    def changed(self: Router, **change: Any) -> Router:
        made = real(self, **change)
        if made.weights != self.weights:
            object.__setattr__(made, "_ring", made._full)
        return made

    patch.setattr(Router, "changed", changed)


@plants("CL-21: pins override the ring", **SWAPS)
def pins_are_ignored(patch: Patch) -> None:
    patch.setattr(Router, "owner_of", lambda self, key: self._ring.owner_of_key(key))


@plants("CL-21: a pin to an isolated server waits", **{**SWAPS, "swaps": 6})
def pins_beat_isolation(patch: Patch) -> None:
    def owner_of(self: Router, key: bytes) -> str:
        return self.pins.get(key) or self._ring.owner_of_key(key)

    patch.setattr(Router, "owner_of", owner_of)


@plants("CL-14: past the last point the first owns")
def the_ring_does_not_wrap(patch: Patch) -> None:
    def owner_of_key(self: Ring, key: bytes) -> str:
        at = bisect_left(self._hashes, key_hash(key))
        return self._owners[min(at, len(self._hashes) - 1)]

    patch.setattr(Ring, "owner_of_key", owner_of_key)


@plants("CL-15: who leaves takes all of its points", **DEAD)
def a_point_stays_behind(patch: Patch) -> None:
    def without(self: Ring, names: Any) -> Ring:
        points = list(self.points())
        kept = [point for point in points if point[1] not in names]
        return Ring([*kept, *[point for point in points if point[1] in names][-1:]])

    patch.setattr(Ring, "without", without)


# --- what is on its way


@plants("CL-07: what is on its way to the isolated moves", **MANY)
def in_flight_is_dropped(patch: Patch) -> None:
    real = Flight.on_routes

    def on_routes(self: Flight) -> None:
        out = {key: lane.out for key, lane in self._lanes.items()}
        real(self)
        for key, lane in self._lanes.items():
            call = out[key]
            if call is not None and lane.out is None:
                for _ in call.messages:
                    self._drop(lane)

    patch.setattr(Flight, "on_routes", on_routes)


@plants("CL-07: what is on its way to the isolated moves", **MANY)
def the_isolated_are_waited_for(patch: Patch) -> None:
    patch.setattr(Flight, "on_routes", lambda self: None)


@plants("CL-07: messages move together", **MANY)
def only_the_first_moves(patch: Patch) -> None:
    real = Flight.on_routes

    def on_routes(self: Flight) -> None:
        out = {key: lane.out for key, lane in self._lanes.items()}
        real(self)
        for key, lane in self._lanes.items():
            call = out[key]
            if call is not None and lane.out is None and len(lane.messages) > 1:
                lane.messages.rotate(-1)

    patch.setattr(Flight, "on_routes", on_routes)


@plants("per-key order: a key moves when its messages are settled", **SWAPS)
def a_key_moves_with_messages_at_the_old_one(patch: Patch) -> None:
    real = Flight.on_routes

    def on_routes(self: Flight) -> None:
        real(self)
        for lane in self._lanes.values():
            owner = self._routes.now.owner_of(lane.key)
            if lane.out is not None and lane.out.endpoint != owner:
                lane.out = None
                self._ready[lane.key] = None

    patch.setattr(Flight, "on_routes", on_routes)


@plants("per-key order: one call of a key at a time", **MANY)
def calls_overtake_each_other(patch: Patch) -> None:
    real = Flight.take

    def take(self: Flight, key: bytes, value: bytes) -> int:
        lane = self._lanes.get(key)
        if lane is not None:
            lane.out = None
        return real(self, key, value)

    patch.setattr(Flight, "take", take)


@plants("CL-07: an old answer says nothing", late=0.3, **MANY)
def an_old_answer_settles(patch: Patch) -> None:
    real = Flight.on_answer

    def on_answer(self: Flight, call: Call, taken: int, now_s: float, **more: Any) -> bool:
        lane = self._lanes.get(call.key)
        if lane is not None and lane.out is not None and taken <= len(lane.messages):
            call = lane.out
        return real(self, call, taken, now_s, **more)

    patch.setattr(Flight, "on_answer", on_answer)


@plants("CL-07: what was not taken is sent again", late=0.3, **MANY)
def no_answer_is_a_success(patch: Patch) -> None:
    real = Flight._on_timer

    def on_timer(self: Flight, call_id: int, key: bytes, now_s: float) -> None:
        lane = self._lanes.get(key)
        if call_id and lane is not None and lane.out is not None and lane.out.call_id == call_id:
            self._settle(lane, len(lane.out.messages))
        real(self, call_id, key, now_s)

    patch.setattr(Flight, "_on_timer", on_timer)


@plants("CL-07: what was not taken is sent again", **MANY)
def a_part_counts_as_the_whole(patch: Patch) -> None:
    real = Flight.on_answer

    def on_answer(self: Flight, call: Call, taken: int, now_s: float, **more: Any) -> bool:
        return real(self, call, len(call.messages) if taken else 0, now_s, **more)

    patch.setattr(Flight, "on_answer", on_answer)


@plants("CL-07: what was not taken is sent again", **MANY)
def a_failed_message_is_refused(patch: Patch) -> None:
    real = Flight.on_answer

    def on_answer(self: Flight, call: Call, taken: int, now_s: float, **more: Any) -> bool:
        return real(self, call, taken, now_s, refused="it failed")

    patch.setattr(Flight, "on_answer", on_answer)


@plants("CL-07: a failed call goes again", **MANY)
def a_failed_lane_rests(patch: Patch) -> None:
    real = Flight._on_timer

    def on_timer(self: Flight, call_id: int, key: bytes, now_s: float) -> None:
        if call_id:
            real(self, call_id, key, now_s)

    patch.setattr(Flight, "_on_timer", on_timer)


@plants("CL-07: a call has an end", **MANY)
def a_lost_call_is_waited_for(patch: Patch) -> None:
    real = Flight._on_timer

    def on_timer(self: Flight, call_id: int, key: bytes, now_s: float) -> None:
        if not call_id:
            real(self, call_id, key, now_s)

    patch.setattr(Flight, "_on_timer", on_timer)


@plants("CL-07: the other end knows numbers", **MANY)
def arrivals_let_everything_in(patch: Patch) -> None:
    def new_of(self: Arrivals, client_id: int, messages: Iterable[Numbered]) -> list[Numbered]:
        return list(messages)

    patch.setattr(Arrivals, "new_of", new_of)


@plants("CL-07: the other end knows numbers", twice=0.3, late=0.3, **MANY)
def arrivals_know_the_last_only(patch: Patch) -> None:
    """A number counts as known if it is the very last one."""

    def new_of(self: Arrivals, client_id: int, messages: Iterable[Numbered]) -> list[Numbered]:
        last = self._last.get(client_id, -1)
        return [each for each in messages if each.number != last]

    patch.setattr(Arrivals, "new_of", new_of)


@plants("CL-07: the other end knows numbers", clients=3, **MANY)
def clients_share_their_numbers(patch: Patch) -> None:
    real_new, real_note = Arrivals.new_of, Arrivals.note
    patch.setattr(Arrivals, "new_of", lambda self, _, messages: real_new(self, 0, messages))
    patch.setattr(Arrivals, "note", lambda self, _, number: real_note(self, 0, number))
