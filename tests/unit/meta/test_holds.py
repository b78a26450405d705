"""Holds: what each lets a truncation do, and what its node says."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest

from dlog.errors import FormatError
from dlog.ids import MessageId
from dlog.meta.holds import Hold, bounded
from dlog.meta.listed import Point

HOLD = Hold("h", "uid", "ada", 5, 6, 100, MessageId(10, 3, 2), "why", True)
SEQS = (99, 100, 101)
IDS = [MessageId(*each) for each in ((9, 9, 9), (10, 3, 1), (10, 3, 2), (10, 3, 3), (10, 4, 0))]


def test_a_truncation_goes_up_to_a_hold_by_seq_and_by_id() -> None:
    for seq, id_ in itertools.product(SEQS, IDS):
        point = Point(seq, *id_)
        let = HOLD.bounds(point)
        assert (let.seq, MessageId(*let.id_key)) == (min(seq, 100), min(id_, HOLD.id))
        assert HOLD.is_behind(point) == (seq > 100 or id_ > HOLD.id)
        assert HOLD.is_behind(point) == (let != point)
        assert not let.is_past(100, *HOLD.id)


def test_the_strictest_of_all_holds_counts() -> None:
    other = dataclasses.replace(HOLD, seq=50, id=MessageId(11, 0, 0))
    point = Point(200, 20, 0, 0)
    for holds in ([HOLD, other], [other, HOLD]):
        assert bounded(point, holds) == Point(50, *HOLD.id)
    assert bounded(point, []) == point


@pytest.mark.parametrize("note", [None, "why"])
@pytest.mark.parametrize("made", [True, False])
def test_there_and_back(note: str | None, made: bool) -> None:
    hold = dataclasses.replace(HOLD, note=note, made=made)
    again = Hold.from_bytes(hold.to_bytes(), "h", where="here")
    assert again == hold
    assert again.extra == {}


def test_what_another_version_says_survives() -> None:
    fields = json.loads(HOLD.to_bytes()) | {"newer": [1, 2]}
    hold = Hold.from_bytes(json.dumps(fields).encode(), "h", where="here")
    assert hold == HOLD
    moved = dataclasses.replace(hold, seq=101)
    assert json.loads(moved.to_bytes()) == fields | {"seq": 101}


@pytest.mark.parametrize("field", sorted(json.loads(HOLD.to_bytes())))
def test_each_field_is_there_and_of_its_kind(field: str) -> None:
    fields = json.loads(HOLD.to_bytes())
    with pytest.raises(FormatError, match="here"):
        Hold.from_bytes(json.dumps(fields | {field: [1]}).encode(), "h", where="here")
    del fields[field]
    if field != "note":
        with pytest.raises(FormatError, match="here"):
            Hold.from_bytes(json.dumps(fields).encode(), "h", where="here")


@pytest.mark.parametrize("newer", [0, 2])
def test_another_format_is_refused(newer: int) -> None:
    fields = json.loads(HOLD.to_bytes()) | {"format": newer}
    with pytest.raises(FormatError, match="this version knows 1"):
        Hold.from_bytes(json.dumps(fields).encode(), "h", where="here")
