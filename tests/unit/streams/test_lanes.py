"""Which shards a writer has, and in which order its messages go on: pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import Unavailable
from dlog.streams.lanes import Lanes, Left, TellApart, Told, carry_on, in_order
from dlog.streams.reshard import Site
from tests.unit.streams.histories import fresh


def _left(lane: int, at: int, producer: tuple[int, int] | None = None) -> Left:
    return Left(b"", None, None, None, producer, (lane, at))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-1, 2)), max_size=30))
def test_the_order_of_lanes_and_of_numbers_is_kept(sent: list[tuple[int, int]]) -> None:
    """Messages as they were sent: to a lane each, by a producer or by none."""
    lanes: list[list[Left]] = [[], [], []]
    numbers = dict.fromkeys(range(3), 0)
    for at, (lane, producer) in enumerate(sent):
        named = None
        if producer >= 0:
            named = (producer, numbers[producer])
            numbers[producer] += 1
        lanes[lane].append(_left(lane, at, named))
    ordered = in_order(lanes)
    assert sorted(each.ticket for each in ordered) == sorted(
        each.ticket for lane in lanes for each in lane
    )
    for lane in range(3):
        assert [each for each in ordered if each.ticket[0] == lane] == lanes[lane]
    for producer in range(3):
        own = [e.producer[1] for e in ordered if e.producer and e.producer[0] == producer]
        assert own == sorted(own)


def test_a_child_belongs_to_whoever_has_its_first_parent() -> None:
    meta = fresh(4).merged("s", [1, 2], "t").split("s", 0, [5], "u")
    low, high = Lanes(frozenset((0, 1))), Lanes(frozenset((2, 3)))
    for lanes in (low, high):
        lanes.saw(meta)
    assert [shard.number for shard in low.to_open()] == [4, 5, 6]
    assert [shard.number for shard in high.to_open()] == [3]
    everything = Lanes(None)
    everything.saw(meta)
    assert [shard.number for shard in everything.to_open()] == [3, 4, 5, 6]


def test_what_was_taken_from_us_stays_with_its_children() -> None:
    lanes = Lanes(None)
    lanes.saw(fresh(2))
    lanes.opened |= {0, 1}
    lanes.dead.add(0)
    assert lanes.lost_now() == [0]
    lanes.lost.add(0)
    lanes.forget(0)
    lanes.saw(fresh(2).split("s", 0, [5], "t"))
    assert lanes.to_open() == []


def test_a_lane_that_could_not_be_told_apart_takes_no_other_with_it() -> None:
    """Two shards were merged, and one of them cannot be looked at for now: what the other had on
    its way is not forgotten until both are told apart."""
    meta = fresh(2).merged("s", [0, 1], "t").ended([0, 1])
    lanes = Lanes(None)
    lanes.opened |= {0, 1}
    left = _left(0, 1)
    procedure = carry_on(lanes, Site("s", "/s", chance=None))  # type: ignore[arg-type]
    effect: Any = next(procedure)
    while not (isinstance(effect, TellApart) and effect.number == 1):
        is_read = not isinstance(effect, TellApart)
        effect = procedure.send((meta.to_bytes(), 1) if is_read else Told((left,), True))
    with pytest.raises(Unavailable):
        procedure.throw(Unavailable("for now"))
    assert lanes.opened == {0, 1}
    assert lanes.left == ()
