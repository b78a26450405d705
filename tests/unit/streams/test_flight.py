"""Messages on their way: CL-07 and CL-20 made better. None lost, none doubled, each key in order,
whatever becomes of endpoints, calls and answers."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from dlog.errors import BufferFull, ConfigError, NotFound
from dlog.streams.routing.arrivals import Arrivals
from dlog.streams.routing.flight import (
    Call,
    Flight,
    FlightOptions,
    Numbered,
    Overdue,
    Refused,
    Settled,
)
from dlog.streams.routing.router import Router, Routes
from tests.unit.streams.health_tools import Fixed

KEY = b"k"


class Tried:
    """A flight to three servers, the call that is out, and what came of it."""

    def __init__(self, **options) -> None:
        self.routes = Routes(Router.of(["a", "b", "c"]))
        self.flight = Flight(self.routes, Fixed(), options=FlightOptions(**options))
        self.now_s = 0.0
        self.settled: list[int] = []
        self.other: list[object] = []

    def send(self, *values: bytes, key: bytes = KEY) -> list[int]:
        return [self.flight.take(key, value) for value in values]

    def calls(self) -> list[Call]:
        calls = []
        for effect in self.flight.pulse(self.now_s):
            match effect:
                case Call():
                    calls.append(effect)
                case Settled(numbers):
                    self.settled += numbers
                case _:
                    self.other.append(effect)
        return calls

    def call(self) -> Call:
        (call,) = self.calls()
        return call

    def answer(self, call: Call, taken: int | None = None, **more) -> bool:
        count = len(call.messages) if taken is None else taken
        return self.flight.on_answer(call, count, self.now_s, **more)

    def isolate(self, *names: str) -> None:
        self.routes.change(isolated=names)
        self.flight.on_routes()


def numbers(call: Call) -> list[int]:
    return [each.number for each in call.messages]


def test_a_lane_has_one_call_and_the_next_takes_what_came_meanwhile() -> None:
    tried = Tried()
    tried.send(b"0")
    first = tried.call()
    tried.send(b"1", b"2")
    assert tried.calls() == []
    assert tried.answer(first)
    second = tried.call()
    assert numbers(second) == [1, 2]
    assert tried.settled == [0]
    assert tried.answer(second)
    assert tried.calls() == []
    assert tried.settled == [0, 1, 2]
    assert tried.flight.messages == tried.flight.bytes == 0


def test_other_keys_do_not_wait() -> None:
    tried = Tried()
    tried.send(b"0")
    tried.send(b"1", key=b"other")
    assert [numbers(call) for call in tried.calls()] == [[0], [1]]


def test_what_was_not_taken_is_sent_again_from_the_oldest() -> None:
    tried = Tried()
    tried.send(b"0", b"1", b"2")
    call = tried.call()
    tried.send(b"3")
    tried.answer(call, 1)
    assert numbers(tried.call()) == [1, 2, 3]
    assert tried.settled == [0]


def test_a_call_without_an_answer_is_overdue_and_goes_again() -> None:
    tried = Tried()
    tried.send(b"0")
    call = tried.call()
    tried.now_s = tried.flight.next_s()
    again = tried.calls() or tried.calls()
    assert tried.now_s == FlightOptions().answer_s
    assert tried.other == [Overdue(call.endpoint)]
    assert [numbers(each) for each in again] == [[0]]
    assert not tried.answer(call)  # late: another call is out, and its answer counts
    assert tried.settled == []
    assert tried.answer(again[0])


def test_cl07_what_is_on_its_way_to_an_isolated_endpoint_moves_together_in_order() -> None:
    tried = Tried()
    tried.send(b"0", b"1")
    call = tried.call()
    tried.send(b"2")
    tried.isolate(call.endpoint)
    moved = tried.call()
    assert moved.endpoint != call.endpoint
    assert moved.endpoint == tried.routes.now.owner_of(KEY)
    assert numbers(moved) == [0, 1, 2]
    assert not tried.answer(call)
    assert tried.answer(moved)
    tried.calls()
    assert tried.settled == [0, 1, 2]


def test_flaw_a_key_does_not_move_while_its_messages_are_at_the_old_endpoint() -> None:
    """CL flaw 7: the old one is well: it recovered, or a server came. What it has is waited
    for."""
    tried = Tried()
    home = tried.routes.now.owner_of(KEY)
    tried.isolate(home)
    tried.send(b"0")
    call = tried.call()
    assert call.endpoint != home
    tried.isolate()  # home is back
    tried.send(b"1")
    assert tried.calls() == []
    tried.answer(call)
    second = tried.call()
    assert (second.endpoint, numbers(second)) == (home, [1])


def test_flaw_pins_and_servers_that_come_move_a_key_between_two_calls() -> None:
    tried = Tried()
    tried.send(b"0")
    call = tried.call()
    elsewhere = next(name for name in ("a", "b", "c") if name != call.endpoint)
    tried.routes.change(pins={KEY: elsewhere})
    tried.flight.on_routes()
    tried.send(b"1")
    assert tried.calls() == []
    tried.answer(call)
    assert tried.call().endpoint == elsewhere


def test_a_server_that_left_is_waited_for_until_its_answer_is_due() -> None:
    tried = Tried()
    tried.send(b"0")
    call = tried.call()
    tried.routes.change(servers=[each for each in "abc" if each != call.endpoint])
    tried.flight.on_routes()
    assert tried.calls() == []
    tried.now_s = 5.0
    assert (tried.calls() or tried.calls())[0].endpoint != call.endpoint


def test_a_refused_message_makes_way_for_those_behind_it() -> None:
    tried = Tried()
    tried.send(b"0", b"too large", b"2")
    tried.answer(tried.call(), 1, refused="too large")
    assert numbers(tried.call()) == [2]
    assert tried.settled == [0]
    assert tried.other == [Refused(1, "too large")]


def test_tries_that_fail_are_further_and_further_apart() -> None:
    tried = Tried(answer_s=1_000.0)
    tried.flight._chance = Fixed(1.0)
    tried.send(b"0")
    waits = []
    for _ in range(8):
        call = tried.call()
        tried.answer(call, 0)
        assert tried.calls() == []
        waits.append(tried.flight.next_s() - tried.now_s)
        tried.now_s = tried.flight.next_s()
    assert waits[0] == pytest.approx(0.1)
    assert waits[1] == pytest.approx(0.2)
    assert waits[-1] == pytest.approx(2.0)


def test_with_everybody_isolated_messages_wait() -> None:
    tried = Tried()
    tried.flight._chance = Fixed(1.0)
    tried.isolate("a", "b", "c")
    tried.send(b"0")
    assert tried.calls() == []
    tried.isolate()
    tried.now_s = tried.flight.next_s()
    assert numbers(tried.call()) == [0]


def test_a_call_carries_so_many_and_no_more() -> None:
    tried = Tried(call_messages_max=2)
    tried.send(b"0", b"1", b"2")
    call = tried.call()
    assert numbers(call) == [0, 1]
    tried.answer(call)
    assert numbers(tried.call()) == [2]


def test_what_is_on_its_way_is_bounded() -> None:
    tried = Tried(messages_max=2)
    tried.send(b"0", b"1")
    with pytest.raises(BufferFull):
        tried.send(b"2")
    assert tried.flight.next_number == 2  # nothing was taken
    tried.answer(tried.call())
    assert tried.send(b"2") == [2]
    small = Tried(bytes_max=200)
    small.send(b"." * 100)
    with pytest.raises(BufferFull):
        small.send(b"." * 100)
    assert Tried(bytes_max=1).send(b"one is always taken") == [0]


def test_numbers_go_on_where_the_last_run_ended() -> None:
    flight = Flight(Routes(Router.of(["a"])), Fixed(), first_number=7)
    assert flight.take(KEY, b"x") == 7
    assert flight.unsettled() == [7]


@pytest.mark.parametrize(
    "wrong", [{"answer_s": 0}, {"call_messages_max": 0}, {"messages_max": 0}, {"bytes_max": 0}]
)
def test_options_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        FlightOptions(**wrong)


# --- the other end


def message(number: int) -> Numbered:
    return Numbered(number, b"")


def test_what_came_before_is_known_by_its_number() -> None:
    arrivals = Arrivals()
    arrivals.note(7, 3)
    assert arrivals.new_of(7, [message(2), message(3), message(5)]) == [message(5)]
    assert arrivals.new_of(8, [message(2)]) == [message(2)]
    arrivals.note(7, 1)  # late, and nothing new
    assert arrivals.last_numbers() == {7: 3}


def test_a_table_is_stored_and_goes_on() -> None:
    arrivals = Arrivals()
    arrivals.note(7, 3)
    again = Arrivals(arrivals.last_numbers())
    assert again.new_of(7, [message(3), message(4)]) == [message(4)]


def test_who_was_silent_longest_is_forgotten_and_nobody_guesses_then() -> None:
    arrivals = Arrivals(clients_max=2)
    for client_id in (1, 2, 1, 3):
        arrivals.note(client_id, 5)
    assert arrivals.last_numbers() == {1: 5, 3: 5}
    with pytest.raises(NotFound):
        arrivals.new_of(2, [message(6)])
    assert arrivals.new_of(4, [message(0)]) == [message(0)]
    assert arrivals.new_of(1, [message(5)]) == []
    assert Arrivals({}, has_forgotten=True).new_of(4, []) == []


# --- all of it, by chance


@pytest.mark.parametrize("seed", range(200))
def test_cl07_none_lost_none_doubled_each_key_in_order(seed: int) -> None:
    """Calls arrive late, twice or never, answers get lost, endpoints are isolated and come back,
    while all of them write to one place that knows the numbers."""
    draw = random.Random(seed)
    tried = Tried(answer_s=1.0, call_messages_max=3, retry_s_max=0.2)
    tried.flight._chance = draw_chance(draw)
    keys = [b"k%d" % number for number in range(4)]
    store: dict[bytes, list[int]] = defaultdict(list)
    tables: dict[bytes, Arrivals] = defaultdict(Arrivals)
    late: list[tuple[float, Call]] = []

    def arrive(call: Call) -> None:
        upto = draw.randint(1, len(call.messages)) if draw.random() < 0.2 else len(call.messages)
        for each in tables[call.key].new_of(1, call.messages[:upto]):
            store[call.key].append(each.number)
            tables[call.key].note(1, each.number)
        if draw.random() < 0.8:
            tried.answer(call, upto)

    sent: dict[bytes, list[int]] = defaultdict(list)
    for step in range(400):
        calm = step > 250
        if not calm:
            key = draw.choice(keys)
            sent[key] += tried.send(b"v", key=key)
            if draw.random() < 0.1:
                tried.isolate(*draw.sample("abc", draw.randint(0, 2)))
        for call in tried.calls():
            if calm or draw.random() < 0.7:
                late.append((tried.now_s + draw.expovariate(5.0), call))
            if draw.random() < 0.2:
                late.append((tried.now_s + draw.expovariate(0.5), call))
        due = [each for each in late if each[0] <= tried.now_s]
        late = [each for each in late if each[0] > tried.now_s]
        for _, call in due:
            arrive(call)
        tried.now_s += 0.2
    for key in keys:
        assert store[key] == sent[key]
    assert sorted(tried.settled) == sorted(number for each in sent.values() for number in each)


def draw_chance(draw: random.Random):
    class Drawn:
        def fraction(self) -> float:
            return draw.random()

        def token(self) -> str:
            return "token"

    return Drawn()
