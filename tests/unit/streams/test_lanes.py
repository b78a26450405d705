"""Which shards a writer has, and in which order its messages go on: pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.chance import SYSTEM_CHANCE
from dlog.effects import Effect, Procedure, ReadNode, ReplaceNode, Together
from dlog.errors import DlogError, NotFound, Unavailable
from dlog.options import LogOptions
from dlog.streams.document import StreamMeta, new_stream
from dlog.streams.lanes import (
    CountNumbers,
    Lanes,
    LastWriter,
    Left,
    OpenLane,
    Resend,
    TellApart,
    Told,
    carry_on,
    in_order,
)
from dlog.streams.numbers import Numbers
from dlog.streams.reshard import EndLog, Site
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


def test_what_a_sister_left_over_is_looked_at_first() -> None:
    """Shard 1 is sealed while shard 0's log is ended: what both left over is sent in one order, so
    nothing goes to their child before shard 1 is told apart."""
    site = Site("s", "/s", SYSTEM_CHANCE)
    first = new_stream("s", "u", LogOptions(), shards=2)
    split = first.split("s", 0, (1 << 20,), "one")
    node = [split.to_bytes(), 1]
    lanes = Lanes(None)
    lanes.saw(first)
    lanes.opened, lanes.dead = {0, 1}, {0}
    asked: list[str] = []

    def answer(effect: Effect) -> Any:
        match effect:
            case ReadNode(path="/s"):
                return tuple(node)
            case ReadNode(path=path):
                raise NotFound(f"no node {path}")
            case ReplaceNode(value=value):
                node[:] = [value, node[1] + 1]
                return node[1]
            case EndLog(log="s/0"):  # meanwhile somebody merges
                now = StreamMeta.from_bytes(node[0], "s")
                node[:] = [now.merged("s", (3, 1), "two").to_bytes(), node[1] + 1]
            case Together(procedures=procedures):
                return [run(each) for each in procedures]
            case TellApart(number=number):
                asked.append(f"tell apart {number}")
                left = Left(b"", b"k", (), None, (7, 10 * number), None)
                return Told((left,), was_last=True)
            case OpenLane(shard=shard):
                asked.append(f"open {shard.number}")
            case Resend(messages=messages):
                asked.append(f"send {[each.producer for each in messages]}")
                return ()
            case CountNumbers():
                return Numbers()
            case LastWriter():
                return 0
        return None

    def run(procedure: Procedure[Any]) -> Any:
        told: Any = None
        error: DlogError | None = None
        while True:
            try:
                effect = procedure.send(told) if error is None else procedure.throw(error)
            except StopIteration as stop:
                return stop.value
            told = error = None
            try:
                told = answer(effect)
            except DlogError as refused:
                error = refused

    run(carry_on(lanes, site))
    assert asked.index("tell apart 1") < min(asked.index("open 2"), asked.index("open 4"))
    assert asked[-1] == "send [(7, 0), (7, 10)]"
