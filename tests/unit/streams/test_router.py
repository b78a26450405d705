"""Pins over the ring, isolation and recovery as versions of one value: CL-08, CL-13, CL-19 to
CL-21."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError, Unavailable
from dlog.streams.routing.ring import Ring
from dlog.streams.routing.router import Router, Routes

FLEET = ["a", "b", "c", "d"]
KEYS = [f"key-{number}".encode() for number in range(200)]


def owners(router: Router) -> list[str]:
    return [router.owner_of(key) for key in KEYS]


def test_cl19_a_log_is_routed_by_its_name() -> None:
    router = Router.of(FLEET)
    assert router.owner_of_log("räder/1") == router.owner_of("räder/1".encode())
    assert set(owners(router)) == set(FLEET)


def test_cl13_isolation_moves_the_keys_of_the_isolated_only() -> None:
    before = Router.of(FLEET)
    after = before.changed(isolated={"b"})
    for old, new in zip(owners(before), owners(after), strict=True):
        assert new == old if old != "b" else new != "b"
    assert "b" not in after.in_use


def test_cl08_recovery_gives_back_exactly_what_isolation_took() -> None:
    before = Router.of(FLEET)
    after = before.changed(isolated={"b", "c"}).changed(isolated={"c"}).changed(isolated=())
    assert owners(after) == owners(before)


def test_cl08_callers_see_one_router_or_the_next_never_a_mix() -> None:
    routes = Routes(Router.of(FLEET))
    held = routes.now
    before = owners(held)
    routes.change(isolated={"a"}, pins={KEYS[0]: "d"})
    assert owners(held) == before  # who took it once asks the same one
    assert routes.now.version == held.version + 1
    assert routes.now.isolated == {"a"}
    assert routes.now.owner_of(KEYS[0]) == "d"


def test_cl08_a_change_read_by_other_threads_is_never_half() -> None:
    """Pins and isolation change together, and nobody sees the one without the other."""
    routes = Routes(Router.of(FLEET))
    other = next(name for name in FLEET if name != routes.owner_of(KEYS[0]))
    states = [{"isolated": {other}, "pins": {}}, {"isolated": (), "pins": {KEYS[0]: other}}]
    allowed = {(frozenset({other}), routes.owner_of(KEYS[0])), (frozenset(), other)}
    routes.change(**states[0])
    seen: set[tuple[frozenset[str], str]] = set()
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            router = routes.now
            seen.add((router.isolated, router.owner_of(KEYS[0])))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(300):
        routes.change(**states[turn % 2])
    stop.set()
    for thread in threads:
        thread.join()
    assert seen <= allowed


def test_cl08_a_router_does_not_change_with_what_it_was_made_of() -> None:
    weights, pins = {"a": 1.0, "b": 1.0}, {b"k": "a"}
    router = Router.of(weights, pins=pins)
    weights.clear()
    pins[b"k"] = "b"
    assert router.owner_of(b"k") == "a"
    assert router.weights == {"a": 1.0, "b": 1.0}
    with pytest.raises(TypeError):
        router.pins[b"k"] = "b"  # type: ignore[index]


def test_cl20_every_change_is_a_version_and_none_is_none() -> None:
    router = Router.of(FLEET)
    changes = (
        {"isolated": {"a"}},
        {"isolated": ()},
        {"servers": [*FLEET, "e"]},
        {"servers": FLEET},
        {"servers": {**dict.fromkeys(FLEET, 1), "a": 2}},
        {"pins": {b"k": "b"}},
    )
    for number, change in enumerate(changes, 2):
        router = router.changed(**change)
        assert router.version == number
        assert router.changed(**change) is router


def test_cl20_scale_out_and_isolation_are_one_path() -> None:
    """Whichever comes first."""
    one = Router.of(FLEET).changed(isolated={"a"}).changed(servers=[*FLEET, "e"])
    other = Router.of(FLEET).changed(servers=[*FLEET, "e"]).changed(isolated={"a"})
    assert owners(one) == owners(other)
    assert "a" not in owners(one)


def test_cl20_who_leaves_takes_its_isolation_and_its_pins_along() -> None:
    router = Router.of(FLEET, pins={b"k": "a", b"l": "b"}).changed(isolated={"a"})
    left = router.changed(servers=["b", "c"])
    assert left.isolated == frozenset()
    assert left.pins == {b"l": "b"}
    again = left.changed(servers=FLEET)
    assert "a" in again.in_use


def test_cl21_a_pin_overrides_the_ring() -> None:
    router = Router.of(FLEET)
    key = KEYS[0]
    elsewhere = next(name for name in FLEET if name != router.owner_of(key))
    pinned = router.changed(pins={key: elsewhere})
    assert pinned.owner_of(key) == elsewhere
    assert owners(pinned)[1:] == owners(router)[1:]


def test_cl21_a_key_pinned_to_an_isolated_server_goes_by_the_ring_meanwhile() -> None:
    router = Router.of(FLEET, pins={b"k": "a"})
    assert router.changed(isolated={"a"}).owner_of(b"k") in {"b", "c", "d"}
    assert router.changed(isolated={"a"}).changed(isolated=()).owner_of(b"k") == "a"


def test_cl21_weights_say_who_gets_how_much() -> None:
    shares = Router.of({"a": 1, "b": 3}).shares()
    assert 2.4 < shares["b"] / shares["a"] < 3.6


def test_cl21_a_weight_moves_keys_to_or_from_that_server_only() -> None:
    before = Router.of(FLEET)
    after = before.changed(servers={**dict.fromkeys(FLEET, 1), "a": 0.5})
    for old, new in zip(owners(before), owners(after), strict=True):
        assert new == old or old == "a"


@given(st.sets(st.sampled_from(FLEET), max_size=3), st.integers(0, 50))
def test_keyless_goes_round_among_those_in_use(isolated, first: int) -> None:
    router = Router.of(FLEET).changed(isolated=isolated)
    count = len(router.in_use)
    turns = [router.owner_of_turn(first + turn) for turn in range(2 * count)]
    assert sorted(turns) == sorted(2 * router.in_use)


def test_keyless_takes_turns() -> None:
    routes = Routes(Router.of(FLEET))
    assert [routes.owner_of(None) for _ in range(5)] == ["a", "b", "c", "d", "a"]
    assert routes.owner_of(b"k") == routes.now.owner_of(b"k")


def test_with_all_isolated_there_is_nobody() -> None:
    router = Router.of(FLEET).changed(isolated=FLEET)
    with pytest.raises(Unavailable):
        router.owner_of(b"k")
    with pytest.raises(Unavailable, match="every server"):
        router.owner_of_turn(0)


@pytest.mark.parametrize(
    "change",
    [{"isolated": {"x"}}, {"pins": {b"k": "x"}}, {"servers": ["a", "a"]}, {"servers": {"a": 0}}],
)
def test_a_change_that_makes_no_sense_changes_nothing(change) -> None:
    routes = Routes(Router.of(FLEET))
    before = routes.now
    with pytest.raises(ConfigError):
        routes.change(**change)
    assert routes.now is before


def test_a_router_may_count_as_twemproxy_does() -> None:
    weights = {f"s{number:02}": 1 for number in range(25)}
    router = Router.of(weights, make=Ring.as_twemproxy)
    twin = Ring.as_twemproxy(weights)
    assert owners(router) == [twin.owner_of_key(key) for key in KEYS]
    smaller = router.changed(servers=dict(list(weights.items())[:24]))
    twin = Ring.as_twemproxy(dict(list(weights.items())[:24]))
    assert owners(smaller) == [twin.owner_of_key(key) for key in KEYS]
