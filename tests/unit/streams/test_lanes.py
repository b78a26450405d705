"""Which shards a writer has, and in which order its messages go on: pure."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.chance import SYSTEM_CHANCE
from dlog.effects import Effect, Procedure, ReadNode, ReplaceNode, Together
from dlog.errors import DlogError, NotFound, Outcome, Unavailable, Unsupported
from dlog.meta.shards import ShardLog
from dlog.options import LogOptions
from dlog.streams.document import StreamMeta, new_stream
from dlog.streams.lanes import (
    CountNumbers,
    Lanes,
    LastWriter,
    Left,
    LoseLane,
    OpenLane,
    Publish,
    Refuse,
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


class World:
    """A stream's node, and logs of which only the epoch of the last writer counts."""

    def __init__(self, meta: StreamMeta) -> None:
        self.site = Site("s", "/s", SYSTEM_CHANCE)
        self.meta, self.version = meta, 1
        self.epochs: dict[int, int] = {}
        self.lost_replies: set[int] = set()  # opened, and the reply does not come
        self.before_opening: Any = None
        self.left: dict[int, list[Left]] = {}
        self.was_last: dict[int, bool] = {}
        self.asked: list[tuple[Any, ...]] = []

    def of(self, kind: str) -> list[Any]:
        return [what for name, what in self.asked if name == kind]

    def run(self, procedure: Procedure[Any]) -> Any:
        told: Any = None
        error: DlogError | None = None
        while True:
            try:
                effect = procedure.send(told) if error is None else procedure.throw(error)
            except StopIteration as stop:
                return stop.value
            told = error = None
            try:
                told = self.answer(effect)
            except DlogError as refused:
                error = refused

    def answer(self, effect: Effect) -> Any:
        match effect:
            case ReadNode(path="/s"):
                return self.meta.to_bytes(), self.version
            case ReadNode(path=path):
                raise NotFound(f"no node {path}")
            case ReplaceNode(value=value):
                self.meta, self.version = StreamMeta.from_bytes(value, "s"), self.version + 1
                return self.version
            case Together(procedures=procedures):
                return self._together(procedures)
            case TellApart(number=number):
                self.asked.append(("tell apart", number))
                return Told(self.left.pop(number, ()), self.was_last.get(number, True))
            case OpenLane(shard=shard):
                return self._open(shard.number)
            case Resend(messages=messages):
                self.asked.append(("send", [each.key for each in messages]))
                return ()
            case Refuse(messages=messages):
                self.asked.append(("refuse", [each.key for each in messages]))
            case LoseLane(number=number):
                self.asked.append(("lose", number))
            case Publish():
                self.asked.append(("publish", None))
            case CountNumbers():
                return Numbers()
            case LastWriter(shard=shard):
                return self.epochs.get(int(shard.name.removeprefix("s/")), 0)
        return None

    def _together(self, procedures: Any) -> list[Any]:
        answers, errors = [], []
        for each in procedures:
            try:
                answers.append(self.run(each))
            except DlogError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return answers

    def _open(self, number: int) -> None:
        if self.before_opening is not None:
            self.before_opening(number)
        if not self.meta.shard(number).is_open:
            raise Unsupported("its log has ended")
        self.asked.append(("open", number))
        self.epochs[number] = self.epochs.get(number, 0) + 1
        if number in self.lost_replies:
            raise Unavailable("no reply", outcome=Outcome.UNKNOWN)


def key_of(meta: StreamMeta, number: int) -> bytes:
    return next(key for n in itertools.count() if meta.owner_of(key := b"%d" % n).number == number)


@pytest.mark.parametrize("last", [-1, 0, 1, 2])
def test_several_shards_that_end_behind_one_unknown_reply_are_each_told_by_their_last_writer(
    last: int,
) -> None:
    """Two children were opened, with a reply that was lost, and were split before we looked again.
    What follows a child goes on here if nobody but us wrote it, each by itself."""
    world = World(fresh(1))
    lanes = Lanes(None)
    world.run(carry_on(lanes, world.site))
    assert world.of("open") == [0]
    world.meta = world.meta.split("s", 0, [1 << 31], "one")  # into 1 and 2
    low, high = (key_of(world.meta, n) for n in (1, 2))
    world.left[0] = [Left(b"", key, None, None, None, key) for key in (low, high)]
    world.lost_replies = {1, 2}
    with pytest.raises(Unavailable):
        world.run(carry_on(lanes, world.site))
    assert lanes.tried == {0: 1, 1: 1, 2: 1}
    assert [each.key for each in lanes.left] == [low, high], "not forgotten"
    assert world.of("send") == []
    world.meta = world.meta.split("s", 1, [1 << 30], "two").split("s", 2, [3 << 30], "three")
    assert [shard.number for shard in world.meta.open_shards] == [3, 4, 5, 6]
    world.epochs[2] = last
    world.asked.clear()
    world.run(carry_on(lanes, world.site))
    is_ours = last in (0, 1)
    assert lanes.lost == (set() if is_ours else {2})
    assert lanes.opened == ({3, 4, 5, 6} if is_ours else {3, 4})
    assert world.of("send") == ([[low, high]] if is_ours else [[low]])
    assert world.of("refuse") == ([] if is_ours else [[high]])
    assert world.asked[-1] == ("publish", None)
    assert lanes.left == ()


def test_a_shard_that_was_made_under_us_is_ours_only_if_nobody_wrote_it_before() -> None:
    world = World(fresh(1))
    lanes = Lanes(None)
    world.epochs = {0: 7}  # who had it before does not count: it was there when we came
    world.run(carry_on(lanes, world.site))
    assert lanes.opened == {0}
    world.meta = world.meta.split("s", 0, [1 << 31], "one")
    world.epochs[2] = 1
    low, high = (key_of(world.meta, n) for n in (1, 2))
    world.left[0] = [Left(b"", key, None, None, None, key) for key in (high, low, high)]
    world.run(carry_on(lanes, world.site))
    assert lanes.opened == {1}
    assert lanes.lost == {2}
    assert world.of("refuse") == [[high, high]]
    assert world.of("send") == [[low]]


def test_what_ended_before_we_came_is_nobody_s_concern() -> None:
    """Whoever wrote it, what follows it is for who comes now."""
    world = World(fresh(1).split("s", 0, [1 << 31], "one").split("s", 1, [5], "two"))
    world.epochs = {0: 5, 1: 3}
    lanes = Lanes(None)
    world.run(carry_on(lanes, world.site))
    assert lanes.opened == {2, 3, 4}
    assert lanes.lost == set()
    assert not lanes.follows(4)
    assert lanes.follows(5)


def test_what_follows_a_shard_that_somebody_wrote_after_us_is_refused() -> None:
    """Its children are not opened either, and messages of other shards go on."""
    world = World(fresh(2))
    lanes = Lanes(None)
    world.run(carry_on(lanes, world.site))
    world.meta = world.meta.split("s", 0, [1 << 20], "one").split("s", 1, [3 << 30], "two")
    theirs = key_of(world.meta, 3)
    mine = key_of(world.meta, 4)
    world.left = {
        0: [Left(b"", theirs, None, None, None, 0), Left(b"", None, None, None, None, 0)],
        1: [Left(b"", mine, None, None, None, 1)],
    }
    world.was_last[0] = False
    world.run(carry_on(lanes, world.site))
    assert lanes.lost == {0}
    assert lanes.opened == {4, 5}
    assert world.of("refuse") == [[theirs, None]], "whatever their keys"
    assert world.of("send") == [[mine]]


def test_a_lane_that_died_under_an_open_shard_is_lost_and_no_other() -> None:
    world = World(fresh(3))
    lanes = Lanes(None)
    world.run(carry_on(lanes, world.site))
    lanes.dead.add(1)
    world.run(carry_on(lanes, world.site))
    assert world.of("lose") == [1]
    assert (lanes.opened, lanes.dead, lanes.lost) == ({0, 2}, set(), {1})
    world.run(carry_on(lanes, world.site))
    assert world.of("lose") == [1]
    assert world.of("open") == [0, 1, 2]


def test_a_shard_that_is_sealed_while_it_is_opened_is_followed_by_its_children() -> None:
    world = World(fresh(1))
    lanes = Lanes(None)

    def split(number: int) -> None:
        world.before_opening = None
        world.meta = world.meta.split("s", 0, [1 << 31], "one")

    world.before_opening = split
    world.run(carry_on(lanes, world.site))
    assert lanes.opened == {1, 2}
    assert world.of("publish") == [None]


def test_a_log_that_was_ended_by_somebody_who_knows_of_no_streams_is_an_error() -> None:
    world = World(fresh(1))

    def refuse(number: int) -> None:
        raise Unsupported("its log has ended")

    world.before_opening = refuse
    with pytest.raises(Unsupported, match="has ended"):
        world.run(carry_on(Lanes(None), world.site))


@pytest.mark.parametrize("key", [None, b"k"])
def test_a_message_without_a_key_goes_to_any_lane_and_by_its_producer_to_one(
    key: bytes | None,
) -> None:
    world = World(fresh(4))
    lanes = Lanes(None)
    world.run(carry_on(lanes, world.site))
    lost = world.meta.owner_of(b"7:3" if key is None else key).number
    lanes.dead.add(lost)
    lanes.left = (
        Left(b"", key, None, None, (7, 3), "named"),
        Left(b"", None, None, None, None, "any"),
    )
    world.run(carry_on(lanes, world.site))
    assert world.of("refuse") == [[key]]
    assert world.of("send") == [[None]]


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
            case EndLog(shard=ShardLog(name="s/0")):  # meanwhile somebody merges
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
