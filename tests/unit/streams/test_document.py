"""A stream as a value: what changes leave behind, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog import limits
from dlog.errors import ConfigError, Conflict, FormatError, NotFound, TooLarge, Unsupported
from dlog.options import LogOptions
from dlog.streams.document import ShardState, StreamMeta, StreamState, of_one_log
from dlog.streams.routes import routes_of
from tests.unit.streams.histories import KEYS, fresh, history

RANDOM = st.randoms(use_true_random=False)


@given(RANDOM, st.integers(1, 3))
def test_each_hash_has_one_owner_whatever_changes(random: Any, shards: int) -> None:
    """And each key goes to an open shard, by the document as by its routes."""
    for meta in history(random.randrange, 12, shards):
        owned = sorted(shard.range for shard in meta.open_shards)
        assert owned[0].first_hash == 0
        assert owned[-1].last_hash == (1 << 32) - 1
        for low, high in itertools.pairwise(owned):
            assert low.last_hash + 1 == high.first_hash
        routes = routes_of(meta)
        for key in KEYS:
            owner = meta.owner_of(key)
            assert owner.is_open
            assert routes.owner_of(key) == owner.number


@given(RANDOM)
def test_parents_are_all_that_may_hold_earlier_messages_of_a_key(random: Any) -> None:
    """So every shard that had a key stands before the one that has it."""
    had: dict[bytes, set[int]] = {key: set() for key in KEYS}
    for meta in history(random.randrange, 15):
        for key in KEYS:
            owner = meta.owner_of(key).number
            had[key].add(owner)
            assert had[key] <= {shard.number for shard in meta.before((owner,))}


@given(RANDOM)
def test_bytes_say_all(random: Any) -> None:
    for meta in history(random.randrange, 12):
        raw = meta.to_bytes()
        assert StreamMeta.from_bytes(raw, "here") == meta
        assert StreamMeta.from_bytes(raw, "here").to_bytes() == raw


def test_what_nobody_knows_is_kept() -> None:
    fields = json.loads(fresh().to_bytes()) | {"later": [1]}
    meta = StreamMeta.from_bytes(json.dumps(fields).encode(), "here")
    assert json.loads(meta.split("s", 0, [5], "t").to_bytes())["later"] == [1]


@pytest.mark.parametrize(
    "damage",
    [
        {"format": 2},
        {"state": "x"},
        {"routing": "x"},
        {"next_number": 1},
        {"uid": 1},
        {"shards": [1]},
        {"shards": []},
        {"pins": [{"key": "a2V5", "shard": 9}]},
        {"pins": [{"key": "%", "shard": 0}]},
        {"options": {"ensemble": -1}},
    ],
)
def test_damage_is_named(damage: dict[str, Any]) -> None:
    fields = json.loads(fresh().to_bytes()) | damage
    with pytest.raises(FormatError):
        StreamMeta.from_bytes(json.dumps(fields).encode(), "here")


@pytest.mark.parametrize(
    "damage",
    [{"first_hash": 7}, {"state": "sealed"}, {"parents": [3]}, {"weight": 0}, {"number": 1}],
)
def test_damage_of_a_shard_is_named(damage: dict[str, Any]) -> None:
    fields = json.loads(fresh().to_bytes())
    fields["shards"][0] |= damage
    with pytest.raises(FormatError):
        StreamMeta.from_bytes(json.dumps(fields).encode(), "here")


def test_only_open_shards_of_open_streams_are_changed() -> None:
    meta = fresh(3).split("s", 0, [5], "t")
    with pytest.raises(Conflict, match="sealed"):
        meta.split("s", 0, [7], "u")
    with pytest.raises(NotFound):
        meta.split("s", 99, [7], "u")
    with pytest.raises(ConfigError, match="neighbours"):
        meta.merged("s", [3, 2], "u")
    with pytest.raises(ConfigError):
        meta.merged("s", [1], "u")
    with pytest.raises(ConfigError):
        meta.split("s", 1, [], "u")
    with pytest.raises(NotFound, match="not pinned"):
        meta.pinned("s", b"k", None, "u")
    ended = meta.terminated()
    assert ended.state is StreamState.TERMINATED
    assert not ended.open_shards
    with pytest.raises(Conflict, match="terminated"):
        ended.split("s", 1, [7], "u")
    with pytest.raises(Unsupported):
        fresh(2, routing="ketama").split("s", 0, [7], "u")


def test_a_pin_that_moves_nothing_makes_nothing() -> None:
    meta = fresh()
    owner = meta.owner_of(b"k").number
    pinned = meta.pinned("s", b"k", owner, "t")
    assert pinned.shards == meta.shards
    assert (pinned.pins, pinned.version) == ({b"k": owner}, meta.version + 1)
    assert pinned.pinned("s", b"k", None, "u").pins == {}


def test_a_change_is_known_by_its_token() -> None:
    meta = fresh().split("s", 0, [5], "a token that is long").merged("s", [2, 3], "another one")
    assert [shard.number for shard in meta.made_in("a token that is long")] == [2, 3]
    assert [shard.number for shard in meta.made_in("another one")] == [4]


def test_shards_end_and_are_forgotten_oldest_first() -> None:
    meta = fresh().split("s", 0, [5], "t").split("s", 2, [3], "u")
    assert [s.state for s in meta.ended([0]).shards][:3] == [
        ShardState.ENDED,
        ShardState.OPEN,
        ShardState.SEALED,
    ]
    both = meta.ended([2])  # and all before it
    assert [s.number for s in both.shards if s.state is ShardState.ENDED] == [0, 2]
    with pytest.raises(Conflict):
        both.forgotten([2])
    with pytest.raises(Conflict):
        meta.forgotten([0])
    assert [s.number for s in both.forgotten([0, 2]).shards] == [1, 3, 4, 5]


def test_there_are_bounds() -> None:
    with pytest.raises(ConfigError):
        fresh(limits.SHARDS_MAX)
    with pytest.raises(ConfigError):
        fresh(2, pins={b"x" * 1000: 0})
    with pytest.raises(TooLarge):
        fresh(2, pins={b"%d" % n: 0 for n in range(limits.STREAM_PINS_MAX + 1)})
    meta = fresh(1)
    with pytest.raises(TooLarge, match="trim"):
        meta.split("s", 0, list(range(1, limits.SHARDS_MAX + 1)), "t")


def test_a_plain_log_is_one_shard() -> None:
    meta = of_one_log("plain", "uid", LogOptions())
    assert [shard.log for shard in meta.shards] == ["plain"]
    assert [s.log for s in meta.split("plain", 0, [9], "t").open_shards] == ["plain/1", "plain/2"]


def test_single_copies_come_back_as_they_were() -> None:
    options = LogOptions(ensemble=1, write_quorum=1, ack_quorum=1, unsafe_single_copy=True)
    meta = dataclasses.replace(fresh(), options=options)
    assert StreamMeta.from_bytes(meta.to_bytes(), "here").options == options


def test_a_pinned_key_remembers_the_shard_that_it_was_in() -> None:
    """Of the shards that a change replaced, and of no others."""
    meta = fresh(3, pins={b"in 0": 0, b"in 1": 1})
    split = meta.split("s", 0, [5], "t")
    for child in split.shards[3:]:
        assert child.came_from(b"in 0") == 0
        assert child.came_from(b"in 1") is None
        assert child.came_from(b"of nobody") is None
    (merged,) = split.merged("s", [1, 2], "u").shards[5:]
    assert merged.came_from(b"in 1") == 1
    assert merged.came_from(b"in 0") is None


def test_each_change_of_who_has_a_key_is_one_version() -> None:
    meta = fresh(3)
    split = meta.split("s", 0, [5, 9], "t")
    assert split.version == meta.version + 1
    assert split.merged("s", [1, 2], "u").version == meta.version + 2
    assert split.ended([0]).version == split.version, "it moves no key"


def test_a_new_stream_has_room_for_each_of_its_shards_to_be_replaced() -> None:
    most = limits.SHARDS_MAX // 2
    assert len(fresh(most).shards) == most
    for wrong in (0, most + 1, 2.0, True):
        with pytest.raises(ConfigError, match=f"1 to {most} shards"):
            fresh(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("pin", ["k", 7, {"key": "*", "shard": 0}, {"key": "aw=="}, {"shard": 0}])
def test_a_pinned_key_that_is_garbled_is_refused(pin: Any) -> None:
    fields = json.loads(fresh(1).to_bytes())
    fields["shards"][0]["pinned_in"] = [pin]
    with pytest.raises(FormatError, match="at /s"):
        StreamMeta.from_bytes(json.dumps(fields).encode(), "at /s")
