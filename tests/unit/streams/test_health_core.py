"""Pings and pongs, on a clock of the test's own: CL-03, CL-04, CL-06, CL-09 to CL-12, and each flaw
of that design that is not here any more."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest

from dlog.errors import ConfigError
from dlog.streams.health.core import (
    HealthCore,
    HealthOptions,
    Isolated,
    Ping,
    Recovered,
    Standing,
)
from tests.tiers import in_full
from tests.unit.streams.health_tools import Fixed, Watched

TWO = ["a", "b"]
INTERVAL_S = HealthOptions().interval_s
QUICK_S = HealthOptions().quick_s
EASY = HealthOptions(idle_s=INTERVAL_S)


def asked(core: HealthCore, now_s: float, endpoint: str = "a") -> int:
    """The id of the ping that goes to it now."""
    (ping_id,) = [
        each.ping_id
        for each in core.pulse(now_s)
        if isinstance(each, Ping) and each.endpoint == endpoint
    ]
    return ping_id


def new_core(options: HealthOptions = EASY, fraction: float = 1.0) -> HealthCore:
    """Draws of 1: the first ping of an idle endpoint goes out after idle_s."""
    core = HealthCore(options, Fixed(fraction))
    core.keep(TWO, 0.0)
    return core


class Coin:
    """A chance with a seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def fraction(self) -> float:
        return self._random.random()

    def token(self) -> str:
        return "token"


# --- the rules


def test_cl04_an_endpoint_that_carries_nothing_is_asked_and_answers() -> None:
    world = Watched(TWO)
    world.run(600.0)
    assert world.isolations == []
    assert 10 <= world.pings["a"] <= 21  # every 30 to 60 s


def test_cl03_nothing_is_asked_while_replies_prove_life() -> None:
    world = Watched(TWO)
    for _ in range(2_000):
        world.core.on_sent("a", world.now_s)
        world.run(0.2)
        world.core.on_reply("a", world.now_s)
        world.run(0.3)
    assert world.pings["a"] == 0
    assert world.pings["b"] > 0


def test_cl03_what_was_sent_and_is_without_reply_is_asked_after_within_an_interval() -> None:
    world = Watched(TWO)
    world.run(1.0)
    assert world.core.on_sent("a", world.now_s)  # the driver has to look earlier now
    assert not world.core.on_sent("a", world.now_s + 1)
    world.run(INTERVAL_S)
    assert world.times(Ping, "a") == [1.0 + INTERVAL_S]


def test_cl05_telling_of_a_silent_endpoint_asks_for_nothing() -> None:
    """The send path neither pings nor waits: it notes, and the pulse does the rest."""
    core = new_core()
    for step in range(100):
        core.on_sent("a", step * 0.01)
    assert core.pulse(1.0) == []


def test_cl09_two_checks_without_a_valid_answer_isolate() -> None:
    """The second check has several pings, so that it is not one loss more that decides."""
    core = new_core()
    asked(core, INTERVAL_S)
    at_s = 2 * INTERVAL_S
    for _ in range(core.options.quick_pings):
        assert core.isolated == frozenset()
        asked(core, at_s)
        assert core.standing("a") is Standing.SUSPECT
        at_s += QUICK_S
    effects = core.pulse(at_s)
    assert [each.endpoint for each in effects if isinstance(each, Isolated)] == ["a"]
    assert core.standing("a") is Standing.ISOLATED


def test_cl09_isolated_within_two_intervals_of_the_first_unanswered_ping() -> None:
    for fraction in (0.0, 0.5, 0.999):
        world = Watched(TWO, chance=Fixed(fraction))
        world.down = {"a"}
        world.run(600.0)
        assert world.times(Isolated, "a")[0] - world.times(Ping, "a")[0] <= 2 * INTERVAL_S


def test_cl10_each_ping_has_the_next_even_id() -> None:
    core = new_core()
    moments = [1, *(2 + step * QUICK_S / INTERVAL_S for step in range(core.options.quick_pings))]
    ids = [asked(core, moment * INTERVAL_S) for moment in moments]
    assert ids == [2 * number for number in range(1, len(ids) + 1)]


def test_cl10_a_pong_of_an_older_ping_is_not_valid() -> None:
    core = new_core()
    first = asked(core, INTERVAL_S)
    asked(core, 2 * INTERVAL_S)  # the round of the first is over: it is a suspect
    assert not core.on_pong("a", first, 2 * INTERVAL_S + 0.1)
    assert core.standing("a") is Standing.SUSPECT


def test_cl10_a_pong_that_comes_twice_counts_once() -> None:
    core = new_core()
    first = asked(core, INTERVAL_S)
    assert core.on_pong("a", first, INTERVAL_S + 0.1)
    asked(core, 2 * INTERVAL_S + 0.1)
    assert not core.on_pong("a", first, 2 * INTERVAL_S + 0.2)


def test_cl10_quick_pings_are_one_question_and_any_answer_to_it_counts() -> None:
    """An endpoint whose answers take longer than the time between quick pings is alive."""
    world = Watched(TWO, EASY, rtt_s=1.5 * QUICK_S)
    world.core.on_fault("a", 0.0)
    world.run(2 * INTERVAL_S)
    assert world.isolations == []
    assert world.core.standing("a") is Standing.GOOD


def test_cl11_a_valid_pong_recovers_an_isolated_endpoint() -> None:
    world = Watched(TWO)
    world.down = {"a"}
    world.run(120.0)
    assert world.core.isolated == {"a"}
    world.down = set()
    world.run(600.0)
    assert world.core.isolated == frozenset()
    assert world.recoveries == ["a"]


def test_cl12_a_pong_counts_for_the_endpoint_that_was_asked() -> None:
    core = new_core()
    ping_id = asked(core, INTERVAL_S)
    core = new_core()
    core.on_sent("a", 0.0)
    (ping,) = core.pulse(INTERVAL_S - 0.001) or core.pulse(INTERVAL_S)[:1]
    assert isinstance(ping, Ping)
    assert not core.on_pong("unknown", ping_id, INTERVAL_S)
    lonely = HealthCore(HealthOptions(idle_s=None), Fixed())
    lonely.keep(TWO, 0.0)
    lonely.on_fault("a", 0.0)
    (ping,) = lonely.pulse(0.0)
    assert not lonely.on_pong("b", ping.ping_id, 0.1)
    assert lonely.standing("a") is Standing.SUSPECT


@pytest.mark.parametrize("ping_id", [-2, 0, 1, 4, 1000])
def test_cl12_a_pong_of_a_ping_that_was_never_sent_is_not_valid(ping_id: int) -> None:
    core = new_core()
    assert asked(core, INTERVAL_S) == 2
    assert not core.on_pong("a", ping_id, INTERVAL_S)


def test_cl06_isolation_and_recovery_happen_by_themselves() -> None:
    world = Watched(["a", "b", "c", "d"], chance=Coin("by themselves"))
    for _ in range(5):
        world.down = {"a"}
        world.run(600.0)
        assert world.core.isolated == {"a"}
        world.down = set()
        world.run(1200.0)
        assert world.core.isolated == frozenset()


# --- what the design got wrong


@pytest.mark.parametrize(("checks", "lost"), [(2, [True, False]), (3, [True, True, False])])
def test_flaw_the_failure_count_is_reset_by_a_good_pong(checks: int, lost: list[bool]) -> None:
    """CL flaw 1: fewer losses in a row than isolate, however often, with an answer between them."""
    options = HealthOptions(
        idle_s=INTERVAL_S, quick_pings=1, checks_max=checks, isolated_part_max=1.0
    )
    world = Watched(["a"], options)
    pattern = itertools.cycle(lost)
    world.loses = lambda: next(pattern)
    world.run(100 * INTERVAL_S)
    assert world.pings["a"] > 50
    assert world.isolations == []


def test_flaw_a_valid_pong_read_at_the_boundary_is_a_success() -> None:
    """CL flaw 2: it has arrived, and is read in the very pulse that would have judged."""
    core = new_core()
    ping_id = asked(core, INTERVAL_S)
    effects = core.pulse(2 * INTERVAL_S, [("a", ping_id)])
    assert core.standing("a") is Standing.GOOD
    assert not any(isinstance(each, Ping) and each.endpoint == "a" for each in effects)
    core = new_core()
    ping_id = asked(core, INTERVAL_S)
    assert core.on_pong("a", ping_id, 2 * INTERVAL_S + 5.0)  # late, and nobody has judged yet


@pytest.mark.parametrize("hours", in_full((200, 1_000), but=(200,), seconds=5))
def test_flaw_one_percent_of_lost_probes_isolates_nobody_in_a_thousand_hours(hours: int) -> None:
    """Asked once an interval, which is more often than anybody is in fact."""
    coin = random.Random("one percent")
    world = Watched(TWO, EASY, chance=Coin("thousand hours"))
    world.loses = lambda: coin.random() < 0.01
    for _ in range(hours):
        world.run(3600.0)
        world.told = [each for each in world.told if not isinstance(each[1], Ping)]
    assert world.isolations == []


def test_flaw_an_idle_client_asks_in_the_background() -> None:
    """CL flaw 3: an endpoint that nobody sends to is probed, and isolated when it dies."""
    world = Watched(TWO)
    world.run(60.0)
    world.down = {"a"}
    world.run(60.0 + 2 * INTERVAL_S)
    assert world.core.isolated == {"a"}


def test_nobody_is_asked_in_the_background_where_that_is_not_wanted() -> None:
    world = Watched(TWO, HealthOptions(idle_s=None))
    world.run(3600.0)
    assert world.told == []
    assert world.core.next_s() == math.inf


def test_flaw_isolation_lasts_a_least_time_and_is_damped() -> None:
    """CL flaw 4: an endpoint that is up for ten seconds, then down for thirty, and so on."""
    world = Watched(["a", "b", "c"], EASY, chance=Fixed(1.0))
    while world.now_s < 4 * 3600:
        world.down = {"a"}
        world.run(30.0)
        world.down = set()
        world.run(10.0)
    lengths = [each.at_least_s for _, each in world.told if isinstance(each, Isolated)]
    assert lengths[:3] == [20.0, 40.0, 80.0]
    assert max(lengths) == world.options.isolation_s_max
    times_s = sorted(world.times(Isolated) + world.times(Recovered))
    assert len(times_s) < 2 * 4 * 3600 / 150  # without damping there would be four times as many
    for begun_s, length_s in zip(world.times(Isolated), lengths, strict=True):
        ended = [at_s for at_s in world.times(Recovered) if at_s > begun_s]
        assert not ended or ended[0] >= begun_s + length_s


def test_flaw_who_has_behaved_is_isolated_briefly_again() -> None:
    world = Watched(["a", "b", "c"], EASY, chance=Fixed(1.0))
    for _ in range(3):
        world.down = {"a"}
        world.run(60.0)
        world.down = set()
        world.run(3600.0)
    lengths = [each.at_least_s for _, each in world.told if isinstance(each, Isolated)]
    assert lengths == [20.0, 20.0, 20.0]


def test_flaw_clients_do_not_come_back_together() -> None:
    """CL flaw 5: all clients see the same death; their isolations end over half of the time they
    last."""
    moments = []
    for number in range(50):
        world = Watched(TWO, chance=Coin(f"client {number}"))
        world.down = {"a"}
        world.core.on_fault("a", 0.0)
        world.run(30.0 - QUICK_S)
        world.down = set()
        world.run(60.0)
        moments.append(world.times(Recovered, "a")[0])
    assert max(moments) - min(moments) > 7.0
    seconds = Counter(int(moment) for moment in moments)
    assert max(seconds.values()) < 15


def test_flaw_no_more_than_a_part_is_isolated() -> None:
    """CL flaw 5: the isolated part of all endpoints is bounded."""
    fleet = [f"s{number}" for number in range(9)]
    world = Watched(fleet, HealthOptions(isolated_part_max=1 / 3), chance=Coin("cap"))
    world.down = set(fleet)
    world.run(3600.0)
    assert world.isolated_most == len(world.core.isolated) == 3


@pytest.mark.parametrize(
    ("count", "part", "most"), [(1, 0.5, 0), (2, 0.5, 1), (3, 0.5, 1), (10, 0.3, 3), (4, 0.0, 0)]
)
def test_how_many_may_be_isolated(count: int, part: float, most: int) -> None:
    fleet = [f"s{number}" for number in range(count)]
    world = Watched(fleet, HealthOptions(isolated_part_max=part))
    assert world.core.isolated_max == most
    world.down = set(fleet)
    world.run(300.0)
    assert len(world.core.isolated) == most


def test_flaw_everybody_dies_at_once_and_comes_back() -> None:
    """At most a probe each second, never more isolated than may be, and all are back in time."""
    fleet = [f"s{number}" for number in range(10)]
    world = Watched(fleet, chance=Coin("everybody"))
    world.run(600.0)
    world.told.clear()
    world.down = set(fleet)
    died_s = world.now_s
    world.run(1800.0)
    assert world.isolated_most == 5
    for name in fleet:
        pings = world.times(Ping, name)
        assert all(later - at_s >= 1.0 for at_s, later in itertools.pairwise(pings))
    world.down = set()
    back_s = world.now_s
    world.run(HealthOptions().isolation_s_max + INTERVAL_S)
    assert world.core.isolated == world.core.suspects == frozenset()
    for name in set(world.isolations):
        until_s = max(
            at_s + each.at_least_s
            for at_s, each in world.told
            if isinstance(each, Isolated) and each.endpoint == name
        )
        assert world.times(Recovered, name)[-1] <= max(back_s, until_s) + INTERVAL_S
    assert died_s < back_s


# --- when, exactly


@pytest.mark.parametrize(("fraction", "after_s"), [(0.0, 30.0), (0.5, 45.0), (1.0, 60.0)])
def test_an_idle_endpoint_is_asked_after_half_of_the_time_to_all_of_it(
    fraction: float, after_s: float
) -> None:
    core = HealthCore(HealthOptions(), Fixed(fraction))
    core.keep(["a"], 5.0)
    assert core.next_s() == 5.0 + after_s
    assert core.pulse(4.9 + after_s) == []
    assert core.pulse(5.0 + after_s) == [Ping("a", 2)]
    assert core.on_pong("a", 2, 6.0 + after_s)
    assert core.next_s() == 6.0 + 2 * after_s


def test_a_reply_puts_the_next_question_off_by_half_of_the_idle_time() -> None:
    """Whoever was looked at because something was sent, and had answered by then, is well."""
    core = HealthCore(HealthOptions(), Fixed(0.0))
    core.keep(["a"], 0.0)
    assert core.on_sent("a", 0.0)
    core.on_reply("a", 1.0)
    assert core.pulse(INTERVAL_S) == []
    assert core.next_s() == INTERVAL_S + 30.0
    core.on_sent("a", 11.0)
    core.on_reply("a", 12.0)
    assert core.pulse(21.0) == [], "it was due, and had answered"
    asked_only_now = core.next_s()
    assert asked_only_now >= 12.0 + 30.0


@pytest.mark.parametrize(("fraction", "part"), [(0.0, 0.6), (1.0, 0.9)])
def test_an_isolated_endpoint_is_asked_after_its_time_and_then_once_an_interval(
    fraction: float, part: float
) -> None:
    core = HealthCore(HealthOptions(isolation_s=20.0), Fixed(fraction))
    core.keep(["a", "b"], 0.0)
    core.on_proof("a", 3.0, "errors")
    length_s = 20.0 * (0.5 + 0.5 * fraction)
    assert core.pulse(3.0) == [Isolated("a", "errors", length_s)]
    due_s, ids = 3.0 + length_s, []
    for _ in range(4):
        assert not [e for e in core.pulse(due_s - 0.01) if e.endpoint == "a"]
        ids.append(asked(core, due_s))
        due_s += part * INTERVAL_S
    late_s = due_s - part * INTERVAL_S
    assert ids == [2, 4, 6, 8]
    assert not core.on_pong("a", ids[0], late_s), "older than an interval"
    assert core.on_pong("a", ids[-1], late_s + 1.0)
    (told,) = [each for each in core.pulse(late_s + 1.0) if isinstance(each, Recovered)]
    assert told == Recovered("a", late_s + 1.0 - 3.0, "it answers")


@pytest.mark.parametrize("checks_max", [2, 3, 4])
@pytest.mark.parametrize("quick_pings", [1, 2, 5])
def test_a_suspect_is_asked_so_often_and_no_oftener(checks_max: int, quick_pings: int) -> None:
    """From the first ping that nobody answered to the isolation, each moment."""
    options = HealthOptions(
        idle_s=INTERVAL_S, checks_max=checks_max, quick_pings=quick_pings, isolated_part_max=1.0
    )
    world = Watched(["a"], options, chance=Fixed(1.0))
    world.down = {"a"}
    world.run(100.0)
    begun_s = 2 * INTERVAL_S
    quick_s = 0.75 * INTERVAL_S / quick_pings
    checks = checks_max - 1
    expected = [INTERVAL_S] + [begun_s + n * quick_s for n in range(checks * quick_pings)]
    isolated_s = begun_s + checks * quick_pings * quick_s
    assert world.times(Isolated)[0] == pytest.approx(isolated_s)
    pings = [at_s for at_s in world.times(Ping) if at_s < isolated_s - 0.001]
    assert pings == pytest.approx(expected)


def test_an_isolation_doubles_until_its_bound_and_begins_anew_after_good_behaviour() -> None:
    """Good for twice the last isolation is not enough, for longer is."""
    options = HealthOptions(idle_s=None, isolation_s=4.0, isolation_s_max=85.0)
    core = HealthCore(options, Fixed(1.0))
    core.keep(TWO, 0.0)
    now_s, lengths = 0.0, []
    pauses_s = [20.0, 20.0, 32.0, 64.0, 128.0, 170.0, 170.5, 20.5, 5.0]
    for pause_s in pauses_s:
        core.on_proof("a", now_s, "errors")
        (told,) = [each for each in core.pulse(now_s) if isinstance(each, Isolated)]
        lengths.append(told.at_least_s)
        now_s += told.at_least_s
        assert core.on_pong("a", asked(core, now_s), now_s)
        core.pulse(now_s)
        now_s += pause_s
    assert lengths == [4.0, 8.0, 16.0, 32.0, 64.0, 85.0, 85.0, 4.0, 4.0]


def test_who_was_released_by_hand_is_isolated_briefly_again() -> None:
    core = HealthCore(HealthOptions(idle_s=None), Fixed(1.0))
    core.keep(TWO, 0.0)
    for _ in range(3):
        core.on_proof("a", 1.0, "errors")
        (told,) = [each for each in core.pulse(1.0) if isinstance(each, Isolated)]
        assert told.at_least_s == 20.0
        core.release_all(1.0, "by an operator")
        core.pulse(1.0)


def test_a_suspect_without_room_is_asked_no_oftener_than_the_isolated() -> None:
    """And is isolated with the next look once there is room, for the same reason."""
    core = HealthCore(HealthOptions(idle_s=None), Fixed(1.0))
    core.keep(TWO, 0.0)
    core.on_proof("b", 0.0, "errors")
    core.on_proof("a", 0.0, "fails too")
    told = core.pulse(0.0)
    assert [each for each in told if isinstance(each, Isolated)] == [Isolated("b", "errors", 20.0)]
    for _ in range(core.options.quick_pings):
        core.pulse(core.next_s())
    asked_s = core.next_s()
    core.pulse(asked_s)
    assert core.standing("a") is Standing.SUSPECT
    assert core.next_s() <= asked_s + 0.9 * INTERVAL_S
    assert core.on_pong("b", asked(core, 20.0, "b"), 20.0)
    told = []
    while core.isolated != {"a"}:
        assert core.next_s() <= 20.0 + INTERVAL_S
        told += core.pulse(core.next_s())
    told += core.pulse(20.0)
    assert Isolated("a", "fails too", 20.0) in told


@pytest.mark.parametrize(
    ("at_s", "is_earlier"), [(0.0, True), (49.9, True), (50.0, False), (59.0, False)]
)
def test_what_is_sent_is_looked_at_in_an_interval_unless_a_look_comes_before(
    at_s: float, is_earlier: bool
) -> None:
    core = HealthCore(HealthOptions(), Fixed(1.0))
    core.keep(["a"], 0.0)
    assert core.on_sent("a", at_s) is is_earlier
    assert core.next_s() == (at_s + INTERVAL_S if is_earlier else 60.0)
    assert not core.on_sent("a", at_s + 0.01)
    if not is_earlier:
        asks = [Ping("a", 2)] if at_s == 50.0 else []
        assert core.pulse(60.0) == asks, "what was sent has an interval to be answered"
        assert core.next_s() == (70.0 if asks else at_s + INTERVAL_S)


# --- the rest


def test_recovery_within_an_interval_once_it_is_back_and_its_time_is_over() -> None:
    for fraction in (0.0, 0.3, 0.999):
        for back_s in (45.0, 61.0, 77.7, 93.1):
            world = Watched(TWO, chance=Fixed(fraction), rtt_s=0.5)
            world.core.on_fault("a", 0.0)
            world.down = {"a"}
            world.run(back_s)
            world.down = set()
            world.run(100.0)
            assert back_s < world.times(Recovered, "a")[0] <= back_s + INTERVAL_S


def test_a_client_that_slept_judges_nobody() -> None:
    """Stopped like a process is, in the middle of the quick pings, with the answers unread."""
    core = new_core(HealthOptions(idle_s=None))
    core.on_fault("a", 0.0)
    last = 0
    for step in range(core.options.quick_pings):
        last = asked(core, step * QUICK_S)
    core.pulse(3600.0)
    assert core.isolated == frozenset()
    assert not core.on_pong("a", last, 3600.0)  # of before
    assert core.on_pong("a", last + 2, 3600.1)


def test_a_client_that_is_late_reads_before_it_judges() -> None:
    core = new_core(HealthOptions(idle_s=None))
    core.on_fault("a", 0.0)
    last = 0
    for step in range(core.options.quick_pings):
        last = asked(core, step * QUICK_S)
    late_s = core.options.quick_pings * QUICK_S + 0.5 * QUICK_S
    core.pulse(late_s)
    assert core.isolated == frozenset()
    again_s = core.next_s()
    assert again_s <= INTERVAL_S
    core.pulse(again_s + 0.5 * QUICK_S)  # late again: once is enough
    assert core.isolated == {"a"}
    assert not core.on_pong("a", last, again_s + QUICK_S)


def test_a_suspect_that_the_cap_spares_is_isolated_when_there_is_room() -> None:
    world = Watched(TWO, EASY)
    world.down = {"a", "b"}
    world.run(60.0)
    (held,) = world.core.suspects
    (isolated,) = world.core.isolated
    world.down = {held}
    world.run(60.0)
    assert world.core.isolated == {held}
    assert isolated in world.recoveries


def test_a_fault_asks_at_once_and_an_answer_clears_it() -> None:
    world = Watched(TWO)
    world.core.on_fault("a", 0.0, "connection refused")
    assert world.core.suspects == {"a"}
    world.run(1.0)
    assert world.times(Ping, "a") == [0.0]
    assert world.core.suspects == frozenset()


def test_faults_in_a_row_ask_no_more_often_than_a_suspect_is_asked() -> None:
    world = Watched(TWO)
    for _ in range(100):
        world.core.on_fault("a", world.now_s)
        world.run(0.1)
    assert world.pings["a"] <= 10 / QUICK_S + 1


def test_replies_clear_a_suspect() -> None:
    world = Watched(TWO)
    world.down = {"a"}
    world.core.on_fault("a", 0.0)
    world.run(2.0)
    world.core.on_reply("a", 2.0)
    world.run(20.0)
    assert world.isolations == []


def test_replies_do_not_end_an_isolation() -> None:
    """They may have been on their way for long."""
    world = Watched(TWO)
    world.core.on_proof("a", 0.0, "errors")
    world.core.on_reply("a", 0.5)
    assert world.core.isolated == {"a"}


def test_proof_isolates_at_once_and_gives_the_reason() -> None:
    world = Watched(TWO)
    world.core.on_proof("a", 0.0, "refuses adds")
    assert world.core.isolated == {"a"}
    (told,) = world.pulse()
    assert told == Isolated("a", "refuses adds", 10.0)
    world.core.on_proof("b", 0.0, "refuses adds")
    assert world.core.isolated == {"a"}
    assert world.core.suspects == {"b"}


def test_an_isolated_endpoint_is_left_alone_until_its_time_is_over() -> None:
    world = Watched(TWO, HealthOptions(idle_s=None))
    world.core.on_proof("a", 0.0, "errors")
    world.run(9.9)
    assert world.pings["a"] == 0
    world.run(0.2)
    assert world.pings["a"] == 1
    assert world.core.isolated == frozenset()


def test_who_leaves_is_forgotten_and_makes_room_for_nobody_too_many() -> None:
    world = Watched(["a", "b", "c", "d"], EASY)
    world.down = {"a", "b"}
    world.run(60.0)
    assert world.core.isolated == {"a", "b"}
    world.core.keep(["a", "b", "c"], world.now_s)
    assert len(world.core.isolated) == 1
    (spared,) = {"a", "b"} - world.core.isolated
    world.pulse()
    assert world.recoveries == [spared]
    assert world.core.standing(spared) is Standing.SUSPECT
    world.core.keep([], world.now_s)
    assert world.core.isolated == frozenset()
    assert world.core.next_s() == math.inf


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_room_is_made_by_those_whose_isolation_ends_first(order: tuple[str, ...]) -> None:
    """Whatever their names, and in whatever order they are listed."""
    core = HealthCore(HealthOptions(idle_s=None), Fixed(1.0))
    core.keep([*"abcdef"], 0.0)
    for at_s, name in enumerate(order):
        core.on_proof(name, float(at_s), f"{name} fails")
    core.pulse(3.0)
    assert core.isolated == {*"abc"}
    left = [*"abcdef"]
    for gone, spared in zip(("d", "f"), order[:2], strict=True):
        left = [name for name in left if name not in (gone, "e")]
        core.keep(left, 4.0)
        assert spared not in core.isolated
        assert core.standing(spared) is Standing.SUSPECT
    assert core.isolated == {order[2]}
    told = core.pulse(4.0)
    recovered = [each for each in told if isinstance(each, Recovered)]
    assert [each.endpoint for each in recovered] == [*order[:2]]
    assert [each.after_s for each in recovered] == [4.0, 3.0]
    asked_now = {each.endpoint for each in told if isinstance(each, Ping)}
    assert asked_now == {*order[:2]}, "who is spared is asked at once"


def test_cl12_who_comes_back_is_not_known_by_what_it_was_asked_before() -> None:
    core = new_core(HealthOptions(idle_s=None))
    core.on_fault("a", 0.0)
    before = asked(core, 0.0)
    core.keep(["b"], 1.0)
    core.keep(TWO, 2.0)
    core.on_fault("a", 2.0)
    assert asked(core, 2.0) > before
    assert not core.on_pong("a", before, 2.1)


def test_all_are_released() -> None:
    world = Watched(["a", "b", "c", "d"])
    world.core.on_proof("a", 0.0, "errors")
    world.core.on_fault("b", 0.0)
    world.core.release_all(1.0, "by an operator")
    assert world.core.isolated == world.core.suspects == frozenset()
    world.pulse()
    assert world.told[-1][1] == Recovered("a", 1.0, "by an operator")


def test_nothing_is_held_against_strangers() -> None:
    core = new_core()
    core.on_sent("x", 0.0)
    core.on_reply("x", 0.0)
    core.on_fault("x", 0.0)
    core.on_proof("x", 0.0, "errors")
    assert core.standing("x") is Standing.GOOD
    assert core.isolated == core.suspects == frozenset()


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_s": 0},
        {"idle_s": 1.0},
        {"quick_pings": 0},
        {"checks_max": 1},
        {"isolation_s": 400.0},
        {"isolated_part_max": 1.5},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        HealthOptions(**wrong)
