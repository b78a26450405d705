"""What shards inherit of producers, against a model that remembers every message."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog import limits
from dlog.errors import AlreadyExists, FormatError, NotFound
from dlog.forgotten import ForgottenIds
from dlog.streams.document import StreamMeta
from dlog.streams.numbers import Inherited, Numbers, Piece, inherit
from dlog.streams.routing.hashing import key_hash
from dlog.streams.routing.ranges import WHOLE_SPACE
from tests.unit.streams.histories import KEYS, changed, fresh

PRODUCERS = (7, 8)


class _Stream:
    """The product's part: the numbers in each shard's log, and what each shard inherited."""

    def __init__(self, meta: StreamMeta) -> None:
        self.meta = meta
        self.logs: dict[int, dict[int, int]] = {}
        self.kept: dict[int, Inherited] = {}

    def inherited(self, number: int) -> Inherited:
        shard = self.meta.shard(number)
        if not shard.parents:
            return Inherited()
        if number not in self.kept:
            ends = {
                parent: (self.inherited(parent), Numbers(dict(self.logs.get(parent, {}))))
                for parent in shard.parents
            }
            found = inherit(self.meta, shard, ends)
            self.kept[number] = Inherited.from_bytes(found.to_bytes(), "here")
        return self.kept[number]

    def takes(self, key: bytes, producer: int, number: int) -> bool:
        owner = self.meta.owner_of(key).number
        try:
            self.inherited(owner).refuse_known(key, producer, number)
        except AlreadyExists:
            return False
        log = self.logs.setdefault(owner, {})
        if number <= log.get(producer, -1):
            return False
        log[producer] = number
        return True


class _Model:
    """Which shards each key was ever in, and the last number of each producer in each."""

    def __init__(self) -> None:
        self.had: dict[bytes, set[int]] = {key: set() for key in KEYS}
        self.last: dict[tuple[int, int], int] = {}

    def saw(self, meta: StreamMeta) -> None:
        for key in KEYS:
            self.had[key].add(meta.owner_of(key).number)

    def takes(self, meta: StreamMeta, key: bytes, producer: int, number: int) -> bool:
        last = max(self.last.get((shard, producer), -1) for shard in self.had[key])
        if number <= last:
            return False
        self.last[meta.owner_of(key).number, producer] = number
        return True


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_what_was_taken_is_known_and_what_was_not_is_free(random: Any) -> None:
    """Splits, merges, pins and messages, in any order; numbers also go back, as those of a
    producer do that sends again."""
    stream, model = _Stream(fresh(2)), _Model()
    taken: set[tuple[bytes, int, int]] = set()
    model.saw(stream.meta)
    for step in range(60):
        if random.randrange(4) == 0:
            stream.meta = changed(stream.meta, random.randrange, f"token {step}")
            model.saw(stream.meta)
            continue
        key = KEYS[random.randrange(len(KEYS))]
        producer = PRODUCERS[random.randrange(2)]
        number = max(0, step + random.randrange(5) - 20 * random.randrange(2))
        expected = model.takes(stream.meta, key, producer, number)
        assert stream.takes(key, producer, number) == expected
        if expected:
            assert (key, producer, number) not in taken
            taken.add((key, producer, number))


def test_neighbours_that_know_the_same_are_one_piece() -> None:
    meta = fresh(1).split("s", 0, [1 << 31], "t").merged("s", [1, 2], "u")
    first = inherit(meta, meta.shard(1), {0: (Inherited(), Numbers({7: 3}))})
    second = inherit(meta, meta.shard(2), {0: (Inherited(), Numbers({7: 3}))})
    joined = inherit(meta, meta.shard(3), {1: (first, Numbers()), 2: (second, Numbers())})
    assert [piece.range for piece in joined.pieces] == [WHOLE_SPACE]
    apart = inherit(meta, meta.shard(3), {1: (first, Numbers({7: 4})), 2: (second, Numbers())})
    assert [dict(piece.numbers.last) for piece in apart.pieces] == [{7: 4}, {7: 3}]


def test_who_was_silent_longest_is_forgotten_and_that_is_said() -> None:
    meta = fresh(1).split("s", 0, [1 << 31], "t")
    many = limits.INHERITED_ROWS_MAX + 5
    ends = {0: (Inherited(), Numbers(dict.fromkeys(range(many), 9)))}
    found = inherit(meta, meta.shard(1), ends)
    assert len(found.pieces[0].numbers.last) <= limits.INHERITED_ROWS_MAX
    with pytest.raises(NotFound, match="forgot"):
        found.refuse_known(KEYS[0] if meta.owner_of(KEYS[0]).number == 1 else _low(meta), 0, 10)
    with pytest.raises(NotFound, match="forgotten"):
        found.refuse_known(_low(meta), 0, 0)  # its first message may have been there
    found.refuse_known(_low(meta), many + 1, 0)  # nobody heard of this one
    again = Inherited.from_bytes(found.to_bytes(), "here")
    assert again.pieces == found.pieces
    with pytest.raises(AlreadyExists):
        found.refuse_known(_low(meta), many - 1, 9)
    found.refuse_known(_low(meta), many - 1, 10)


def _low(meta: StreamMeta) -> bytes:
    return next(key for key in KEYS if meta.owner_of(key).number == 1)


def test_the_higher_number_counts() -> None:
    both = Numbers({1: 5, 2: 9}).followed_by(Numbers({2: 4, 3: 1}, ForgottenIds.of([8])))
    assert (dict(both.last), both.forgotten.ranges) == ({1: 5, 2: 9, 3: 1}, ((8, 8),))
    assert list(both.last) == [1, 2, 3]  # who was silent longest first


def test_of_a_key_that_was_pinned_once_the_parent_tells_that_has_its_hash() -> None:
    """What another one knows of it is from before it went back, and out of date."""
    meta = fresh(1).split("s", 0, [1 << 31], "t").merged("s", [1, 2], "u")
    for number, other in ((1, 2), (2, 1)):
        key = next(key for key in KEYS if meta.shard(number).range.contains(key_hash(key)))
        known = {number: Numbers({7: 5}), other: Numbers({7: 1})}
        ends = {
            parent: (
                Inherited(
                    (
                        Piece(meta.shard(parent).range, Numbers()),
                        Piece(None, known[parent], frozenset((key,))),
                    )
                ),
                Numbers(),
            )
            for parent in (1, 2)
        }
        assert dict(inherit(meta, meta.shard(3), ends).of(key).last) == {7: 5}


def test_equal_pieces_have_equal_bytes() -> None:
    """Keys in order, however the set was made; and all of it comes back."""
    keys = [b"%d" % number for number in range(20)]
    pieces = [
        Inherited((Piece(None, Numbers({7: 1, 3: 2}, ForgottenIds.of([9])), frozenset(some)),))
        for some in (keys, keys[::-1])
    ]
    assert pieces[0].to_bytes() == pieces[1].to_bytes()
    told = json.loads(pieces[0].to_bytes())["pieces"][0]["keys"]
    assert [base64.b64decode(each) for each in told] == sorted(keys)
    back = Inherited.from_bytes(pieces[0].to_bytes(), "here")
    assert back == pieces[0]
    assert list(back.of(b"3").last.items()) == [(7, 1), (3, 2)], "who was silent longest first"
    assert back.of(b"another") == Numbers()


def test_damage_is_named() -> None:
    whole = Inherited((Piece(WHOLE_SPACE, Numbers({7: 1}), frozenset((b"k",))),)).to_bytes()
    assert Inherited.from_bytes(whole, "here").of(b"k").last == {7: 1}
    for old, new in (
        (b'"format":1', b'"format":2'),
        (b"[7,1]", b"[7]"),
        (b'"aw=="', b'"%"'),
        (b"[0,4294967295]", b"[5,0]"),
        (b'"forgot":false', b'"forgot":1'),
        (b'"pieces":[', b'"pieces":[7,'),
    ):
        assert old in whole, whole
        with pytest.raises(FormatError):
            Inherited.from_bytes(whole.replace(old, new), "here")
