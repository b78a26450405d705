"""Virtual time, and what may strike in it."""

from __future__ import annotations

import pytest

from dlog.testing.sim.tape import of_tape
from dlog.testing.sim.world import EVENTS_MAX, Violation, World, require


def test_time_passes_from_event_to_event_in_their_order() -> None:
    world, seen = World(of_tape(())), []
    world.after(5.0, lambda: seen.append(("b", world.now_ms)))
    world.after(1.0, lambda: seen.append(("a", world.now_ms)))
    world.after(5.0, lambda: seen.append(("c", world.now_ms)))
    world.run(until_ms=3.0)
    assert seen == [("a", 1.0)]
    assert world.now_ms == 3.0
    world.run()
    assert seen == [("a", 1.0), ("b", 5.0), ("c", 5.0)]
    assert world.events == 3


def test_a_fact_stops_it_at_once() -> None:
    world, seen = World(of_tape(())), []
    for at_ms in (1.0, 2.0, 3.0):
        world.at(at_ms, lambda at_ms=at_ms: seen.append(at_ms))  # type: ignore[misc]
    world.run(until_ms=10.0, done=lambda: len(seen) == 2)
    assert seen == [1.0, 2.0]
    assert world.now_ms == 2.0


def test_nothing_strikes_when_it_is_calm_and_nothing_is_drawn_for_what_is_off() -> None:
    world = World(of_tape([0.99] * 5))
    assert world.strikes(0.5, "a fault")
    assert world.marks["a fault"] == 1
    assert not world.strikes(0.0, "what is off")
    world.is_calm = True
    assert not world.strikes(1.0, "a fault")
    assert world.chance.tape.drawn == 1


def test_what_goes_round_is_a_violation() -> None:
    world = World(of_tape(()))

    def again() -> None:
        world.after(0.0, again)

    again()
    with pytest.raises(Violation, match="I27"):
        world.run()
    assert world.events == EVENTS_MAX + 1


def test_a_violation_names_its_promise() -> None:
    require(True, "I1", "all is well")
    with pytest.raises(Violation, match=r"^I1: entry 3 is lost 'b1'$") as caught:
        require(False, "I1", "entry 3 is lost", "b1")
    assert caught.value.promise == "I1"


def test_notes_are_kept_only_for_a_reader() -> None:
    told, untold = World(of_tape(()), told=True), World(of_tape(()))
    for world in (told, untold):
        world.after(2.5, lambda world=world: world.note("something"))  # type: ignore[misc]
        world.run()
    assert list(told.notes or ()) == ["      2.50 ms  something"]
    assert untold.notes is None
