"""The order of reading: pure, over random histories of changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import ConfigError, FormatError, Truncated
from dlog.ids import Position
from dlog.streams.document import ShardState, StreamMeta, StreamState
from dlog.streams.places import ReadOrder, StreamPosition, ends_are_looked_for
from tests.unit.streams.histories import fresh, history

RANDOM = st.randoms(use_true_random=False)


def _at(number: int, seq: int = 0) -> Position:
    return Position(f"log {number}", seq, None)


def _last(random: Any, changes: int = 12) -> StreamMeta:
    *_, meta = history(random.randrange, changes)
    return meta


@given(RANDOM)
def test_a_shard_is_read_when_all_before_it_are(random: Any) -> None:
    """Whatever is read first, and wherever another reader goes on in between: each shard is read
    once, and never before one that stands before it."""
    meta = _last(random)
    order = ReadOrder(meta, StreamPosition(meta.uid), only=None)
    read: list[int] = []
    while not order.is_over:
        for shard in order.ready():
            order.begin(shard.number, _at(shard.number))
        number = sorted(order.reading)[random.randrange(len(order.reading))]
        assert {s.number for s in meta.before((number,))} - {number} <= set(read)
        order.end(number)
        read.append(number)
        if random.randrange(3) == 0:
            again = StreamPosition.parse(order.position.to_text())
            assert again == order.position
            order = ReadOrder(meta, again, only=None)
    assert sorted(read) == [shard.number for shard in meta.shards]


@given(RANDOM)
def test_a_place_tells_no_more_than_it_must(random: Any) -> None:
    """Of what is done only what no shard that was begun tells: so places do not grow with the
    history."""
    meta = _last(random)
    order = ReadOrder(meta, StreamPosition(meta.uid), only=None)
    while not order.is_over:
        for shard in order.ready():
            order.begin(shard.number, _at(shard.number))
        for number in sorted(order.reading):
            if not meta.shard(number).is_open:
                order.end(number)
        if all(meta.shard(number).is_open for number in order.reading) and not order.ready():
            break
    assert set(order.position.shards) == {shard.number for shard in meta.open_shards}
    assert order.position.done == frozenset()


def test_some_shards_alone_do_not_wait_for_others() -> None:
    meta = fresh(2).split("s", 0, [5], "t").merged("s", [3, 1], "u")
    order = ReadOrder(meta, StreamPosition(meta.uid), only=[0, 4])
    assert [shard.number for shard in order.ready()] == [0, 4]


def test_what_was_trimmed_is_told_or_skipped() -> None:
    before = fresh(2).split("s", 0, [5], "t")
    at = StreamPosition("uid", {0: _at(0, 3), 1: _at(1, 5)})
    meta = before.ended([0]).forgotten([0])
    with pytest.raises(Truncated, match=r"\[0\]"):
        ReadOrder(meta, at, only=None).refuse_forgotten()
    order = ReadOrder(meta, at, only=None)
    assert order.skip_forgotten() == [0]
    assert [shard.number for shard in order.ready()] == [2, 3]
    assert list(order.reading) == [1]


@given(RANDOM)
def test_what_is_trimmed_unread_is_missed_and_nothing_else(random: Any) -> None:
    """Whatever is trimmed while somebody reads, and goes on from the text of its place: a shard
    that was not read to its end is told, once what follows it is to begin; all others never are."""
    metas = list(history(random.randrange, 14))
    meta = metas[0]
    at = StreamPosition(meta.uid, heads={})
    trimmed: set[int] = set()
    told: set[int] = set()
    order = ReadOrder(meta, at, only=None)
    read: set[int] = set()
    for newer in metas[1:]:
        sealed = [s.number for s in newer.shards if s.state is ShardState.SEALED]
        meta = newer.ended(sealed)
        gone = [s for s in meta.shards if s.number in trimmed or random.randrange(3) == 0]
        for shard in gone:  # oldest first, and nothing that is open
            before = {each.number for each in meta.before(shard.parents)} - {shard.number}
            if not shard.is_open and before <= trimmed:
                trimmed.add(shard.number)
        meta = meta.forgotten(n for n in trimmed if meta.has(n))
        order = ReadOrder(meta, StreamPosition.parse(order.position.to_text()), only=None)
        assert set(order.missed()) <= trimmed - read
        told.update(order.missed(), order.skip_forgotten())
        for shard in order.ready():
            assert set(shard.parents) <= read | told
            order.begin(shard.number, _at(shard.number))
        for number in sorted(order.reading):
            if not meta.shard(number).is_open and random.randrange(2):
                order.end(number)
                read.add(number)


@given(RANDOM)
def test_what_was_missed_is_known_exactly(random: Any) -> None:
    """Also in the end, when no shard is listed any more: from the text of a place, whatever was
    trimmed before and behind it, each shard that was not read is told, and no other."""
    metas = list(history(random.randrange, 10))
    meta = metas[0]
    at = StreamPosition(
        meta.uid,
        heads={},
        next_number=meta.next_number,
        to_come=frozenset(s.number for s in meta.shards),
    )
    order = ReadOrder(meta, at, only=None)
    read: set[int] = set()
    trimmed: set[int] = set()
    for newer in (*metas[1:], metas[-1].terminated()):
        sealed = [s.number for s in newer.shards if s.state is ShardState.SEALED]
        meta = newer.ended(sealed)
        for shard in meta.shards:
            before = {each.number for each in meta.before(shard.parents)} - {shard.number}
            is_last = newer.state is StreamState.TERMINATED
            if not shard.is_open and before <= trimmed and (is_last or random.randrange(4) == 0):
                trimmed.add(shard.number)
        meta = meta.forgotten(n for n in trimmed if meta.has(n))
        order = ReadOrder(meta, StreamPosition.parse(order.position.to_text()), only=None)
        gone = {n for n in order.reading if not meta.has(n)}
        assert set(order.missed()) | gone == trimmed - read
        assert order.missed() == ReadOrder(meta, order.position, only=None).missed()
        order.skip_forgotten()
        read |= trimmed
        for shard in order.ready():
            order.begin(shard.number, _at(shard.number))
        for number in sorted(order.reading):
            if not meta.shard(number).is_open and random.randrange(2):
                order.end(number)
                read.add(number)
    assert meta.shards == ()


def test_of_a_place_that_does_not_say_what_it_knew_younger_shards_are_missed() -> None:
    """As an older version wrote it."""
    meta = fresh(1).split("s", 0, [5], "t").terminated().ended([0, 1, 2]).forgotten([0, 1, 2])
    begun = StreamPosition("uid", {0: _at(0, 3)})
    assert ReadOrder(meta, begun, only=None).missed() == [1, 2]
    assert ReadOrder(meta, StreamPosition("uid", done=frozenset((2,))), only=None).missed() == []
    younger = StreamPosition("uid", {2: _at(2)})
    assert ReadOrder(meta, younger, only=None).missed() == [], "1 is older: it may have been read"
    assert ReadOrder(meta, StreamPosition("uid", heads={}), only=None).missed() == []
    assert ReadOrder(meta, StreamPosition("uid", heads={1: _at(1)}), only=None).missed() == [1]


def test_of_shards_that_are_read_alone_those_are_missed() -> None:
    meta = fresh(2).split("s", 0, [5], "t")
    order = ReadOrder(meta, StreamPosition("uid", {0: _at(0)}), only=[0, 2])
    order.saw(meta.terminated().ended([0, 2, 3]).forgotten([0, 2, 3]))
    assert order.missed() == [2]
    assert order.position.to_come == {1, 2, 3}


def test_what_follows_a_shard_that_was_trimmed_waits_for_who_reads_it() -> None:
    """It is being read still: what it has comes before what follows it."""
    meta = fresh(1).split("s", 0, [5], "t")
    order = ReadOrder(meta, StreamPosition("uid", {0: _at(0, 3)}), only=None)
    order.saw(meta.ended([0]).forgotten([0]))
    assert order.ready() == []
    assert order.missed() == []
    order.end(0)
    assert [shard.number for shard in order.ready()] == [1, 2]
    assert order.missed() == []
    assert order.position.done == {0}, "kept for the children, though it is listed no more"
    order.begin(1, _at(1))
    order.begin(2, _at(2))
    assert order.position.done == frozenset()


def test_a_place_keeps_the_heads_of_what_is_still_to_begin() -> None:
    meta = fresh(1).split("s", 0, [5], "t")
    at = StreamPosition("uid", heads={1: _at(1, 7), 0: _at(0, 2)})
    order = ReadOrder(meta, at, only=None)
    assert order.position == StreamPosition.parse(order.position.to_text()) == at
    assert order.head_of(1) == _at(1, 7)
    assert order.head_of(2) is None
    order.begin(0, _at(0, 2))
    assert order.position.heads == {1: _at(1, 7)}
    order.end(0)
    order.begin(1, _at(1, 7))
    assert order.position.heads is None
    assert not order.position.is_blank
    nothing = ReadOrder(meta, StreamPosition("uid", heads={}), only=None).position
    assert nothing.heads == {}, "somebody looked: it is no beginning any more"
    assert not StreamPosition.parse(nothing.to_text()).is_blank
    assert StreamPosition("uid").is_blank


def test_some_shards_of_a_place_are_read_and_the_others_stay() -> None:
    meta = fresh(3)
    order = ReadOrder(meta, StreamPosition("uid", {0: _at(0, 1), 1: _at(1, 2)}), only=[1])
    assert order.reading == {1: _at(1, 2)}
    order.end(1)
    assert order.is_over
    assert order.position == StreamPosition("uid", {0: _at(0, 1)}, frozenset({1}))


def test_a_place_of_another_stream_is_refused() -> None:
    with pytest.raises(ConfigError, match="made anew"):
        ReadOrder(fresh(), StreamPosition("another"), only=None)
    order = ReadOrder(fresh(), StreamPosition(""), only=None)
    assert [shard.number for shard in order.ready()] == [0, 1], "one that names none is of any"


@given(RANDOM)
def test_ends_are_looked_for_in_children_before_their_parents(random: Any) -> None:
    """All at once of those that are open, and of those that ended whenever."""
    meta = _last(random)
    sealed = [s.number for s in meta.shards if s.state is ShardState.SEALED]
    if sealed:
        meta = meta.ended([sealed[random.randrange(len(sealed))]])
    groups = ends_are_looked_for(meta)
    assert sorted(shard.number for group in groups for shard in group) == sorted(
        shard.number for shard in meta.shards
    )
    assert groups[0] == meta.open_shards
    assert all(shard.state is ShardState.ENDED for shard in groups[-1])
    looked: set[int] = set()
    for group in groups[:-1]:
        for shard in group:
            assert not looked & {each.number for each in meta.before(shard.parents)}
        assert len({shard.state for shard in group}) <= 1
        looked |= {shard.number for shard in group}


def test_the_text_of_a_place() -> None:
    at = StreamPosition("uid", {10: _at(10), 2: _at(2, 7)}, frozenset((4, 1)), 99)
    text = at.to_text()
    assert StreamPosition.parse(text) == at
    assert text.index('"10"') < text.index('"2"')
    assert '"done":[1,4]' in text
    assert "since_us" not in dataclasses.replace(at, since_us=None).to_text()
    good = '{"stream":"u","shards":{},"done":[]}'
    assert StreamPosition.parse(good) == StreamPosition("u")
    for wrong in (
        "x",
        "[]",
        "[" * 10_000,
        good.replace("[]", "[-1]"),
        good.replace("[]", "[true]"),
        good.replace('"u"', "1"),
        good.replace("{}", '{"a":1}'),
        good.replace("{}", '{"1":{}}'),
        good.replace("}", ',"more":1}', 1),
        good[:-1] + ',"more":1}',
        good[:-1] + ',"since_us":"1"}',
        good[:-1] + ',"heads":null}',
        good[:-1] + ',"heads":{"x":{}}}',
        " " * (2 << 20),
    ):
        with pytest.raises(FormatError):
            StreamPosition.parse(wrong)
