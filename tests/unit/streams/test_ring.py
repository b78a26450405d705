"""The ketama ring: CL-13 to CL-18, and the two figures of how evenly it spreads."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError, Unavailable
from dlog.streams.routing.hashing import KEY_HASH_MAX, key_hash
from dlog.streams.routing.ring import Ring, twemproxy_labels

VECTORS = Path(__file__).parents[2] / "vectors" / "ketama" / "twemproxy.json"
SETS = json.loads(VECTORS.read_text())["sets"]

names = st.text(min_size=1, max_size=8)
fleets = st.lists(names, min_size=2, max_size=6, unique=True)
keys = st.lists(st.binary(max_size=12), min_size=1, max_size=50)


def equal(fleet: list[str]) -> dict[str, float]:
    return dict.fromkeys(fleet, 1)


@pytest.mark.parametrize("golden", SETS, ids=[each["what"] for each in SETS])
def test_cl18_the_ring_is_twemproxys(golden) -> None:
    ring = Ring.as_twemproxy(golden["weights"])
    order = list(golden["weights"])
    counts = {name: 4 * labels for name, labels in twemproxy_labels(golden["weights"]).items()}
    assert counts == golden["point_counts"]
    points = [[hash, order.index(owner)] for hash, owner in ring.points()]
    assert points[:8] == golden["first_points"]
    assert points[-4:] == golden["last_points"]
    packed = b"".join(struct.pack("<II", *point) for point in points)
    assert hashlib.sha256(packed).hexdigest() == golden["points_sha256"]
    for key, hash, owner in golden["keys"]:
        assert key_hash(key.encode()) == hash
        assert ring.owner_of_key(key.encode()) == owner
    for hash, owner in golden["hashes"]:
        assert ring.owner_of(hash) == owner


@pytest.mark.parametrize("golden", SETS, ids=[each["what"] for each in SETS])
def test_cl18_equal_weights_have_160_points_however_many_servers_there_are(golden) -> None:
    """Where twemproxy has 160, ours is the same ring."""
    ours = Ring.of(equal(list(golden["weights"])))
    assert len(ours) == 160 * len(golden["weights"])
    if set(golden["point_counts"].values()) == {160}:
        assert list(ours.points()) == list(Ring.as_twemproxy(golden["weights"]).points())


def test_cl18_a_label_is_the_name_and_an_index_and_gives_four_points() -> None:
    digest = hashlib.md5(b"a-7").digest()
    points = {hash for hash, _ in Ring.of({"a": 1}).points()}
    assert {int.from_bytes(digest[at : at + 4], "little") for at in (0, 4, 8, 12)} <= points


def test_cl14_a_server_owns_its_own_point_and_what_is_behind_the_one_before() -> None:
    ring = Ring([(100, "a"), (200, "b")])
    owners = [ring.owner_of(hash) for hash in (0, 99, 100, 101, 200)]
    assert owners == ["a", "a", "a", "b", "b"]


def test_cl14_past_the_last_point_the_first_owns() -> None:
    ring = Ring([(100, "a"), (200, "b")])
    assert ring.owner_of(201) == ring.owner_of(KEY_HASH_MAX) == ring.owner_of(0) == "a"


def test_cl14_points_at_both_ends_of_the_space() -> None:
    ring = Ring([(0, "a"), (KEY_HASH_MAX, "b")])
    assert ring.owner_of(0) == "a"
    assert ring.owner_of(1) == ring.owner_of(KEY_HASH_MAX) == "b"


def test_cl14_of_equal_points_the_server_named_first_owns() -> None:
    points = [(9, "z"), (50, "late"), (50, "a"), (90, "z")]
    assert Ring(points).owner_of(50) == Ring(points).owner_of(10) == "late"
    assert Ring(points).without({"late"}).owner_of(50) == "a"


@pytest.mark.parametrize("hash", [-1, KEY_HASH_MAX + 1])
def test_cl14_nothing_is_outside_the_space(hash: int) -> None:
    with pytest.raises(ConfigError):
        Ring([(5, "a")]).owner_of(hash)


@given(fleets, keys, st.data())
def test_cl15_a_server_that_leaves_moves_its_own_keys_only(fleet, some, data) -> None:
    ring = Ring.of(equal(fleet))
    gone = data.draw(st.sampled_from(fleet))
    after = ring.without({gone})
    assert after.servers == set(fleet) - {gone}  # CL-17: with all of its points
    assert len(after) == len(ring) - 160
    for key in some:
        before = ring.owner_of_key(key)
        if before != gone:
            assert after.owner_of_key(key) == before


@given(fleets, st.data())
def test_cl15_its_keys_go_to_the_next_on_the_ring(fleet, data) -> None:
    gone = data.draw(st.sampled_from(fleet))
    ring = Ring.of(equal(fleet))
    points = list(ring.points())
    after = ring.without({gone})
    for index, (hash, owner) in enumerate(points):
        if owner == gone:
            beyond = points[index:] + points[:index]
            assert after.owner_of(hash) == next(other for _, other in beyond if other != gone)


@given(fleets, keys, st.floats(0.025, 4.0), st.floats(0.025, 4.0))
def test_cl16_a_server_that_comes_takes_keys_and_nobody_else_gets_any(
    fleet, some, one: float, other: float
) -> None:
    """Whatever the weights: twemproxy's counts, of a mean that changed, move others' keys too."""
    weights = {name: one if index % 2 else other for index, name in enumerate(fleet)}
    newcomer = fleet[-1]
    before = Ring.of({name: weights[name] for name in fleet[:-1]})
    after = Ring.of(weights)
    for key in some:
        assert after.owner_of_key(key) in (before.owner_of_key(key), newcomer)
    assert list(after.without({newcomer}).points()) == list(before.points())


def test_cl16_twemproxys_counts_move_keys_between_those_that_stay() -> None:
    """What `Ring.of` is for: 24 equal servers and one more."""

    def moved_astray(make) -> int:
        fleet = [f"s{number:02}" for number in range(25)]
        before, after = make(dict.fromkeys(fleet[:-1], 1)), make(dict.fromkeys(fleet, 1))
        hashes = range(0, KEY_HASH_MAX, KEY_HASH_MAX // 20_000)
        return sum(
            after.owner_of(hash) not in (before.owner_of(hash), fleet[-1]) for hash in hashes
        )

    assert moved_astray(Ring.of) == 0
    assert moved_astray(Ring.as_twemproxy) > 0


@given(st.sampled_from([0.025, 0.5, 1, 2, 3.5]))
def test_cl17_points_are_as_many_as_the_weight_says(weight: float) -> None:
    ring = Ring.of({"a": weight, "b": 1})
    assert len(ring) == int(160 * weight) // 4 * 4 + 160


@given(fleets)
def test_shares_are_what_each_owns_of_the_space(fleet) -> None:
    ring = Ring.of(equal(fleet))
    shares = ring.shares()
    assert sum(shares.values()) == pytest.approx(1)
    hashes = range(0, KEY_HASH_MAX, KEY_HASH_MAX // 2_000)
    owned = [ring.owner_of(hash) for hash in hashes]
    for name, share in shares.items():
        assert owned.count(name) / len(owned) == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("weight", [0, -1, 0.02, float("nan"), float("inf"), 1e9, "1", None])
def test_a_weight_that_is_none_is_refused(weight) -> None:
    with pytest.raises(ConfigError):
        Ring.of({"a": weight})


@pytest.mark.parametrize("weight", [0, -3, 1.5])
def test_twemproxys_weights_are_whole(weight) -> None:
    with pytest.raises(ConfigError, match="whole"):
        Ring.as_twemproxy({"a": weight})


@pytest.mark.parametrize("name", ["", "n" * 256])
def test_a_name_that_twemproxy_would_cut_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        Ring.of({name: 1})


def test_a_ring_of_nobody_says_so() -> None:
    with pytest.raises(Unavailable):
        Ring.of({}).owner_of(0)
    with pytest.raises(Unavailable):
        Ring.of({"a": 1}).without({"a"}).owner_of_key(b"key")
    assert Ring.of({}).shares() == {}
