"""The table of handles is complete: a new kind of handle, or a new call of a store, needs a row."""

from __future__ import annotations

from tests.handles.faults import CALLS
from tests.handles.kinds import LIVES
from tests.handles.table import NO_ROW, ROWS, kind_of, public_kinds
from tests.handles.verbs import VERBS


def test_every_class_that_asks_has_a_row_or_a_reason() -> None:
    rows = {kind_of(way) for way in (*ROWS, *VERBS)}
    assert not rows & NO_ROW.keys(), "what has a row needs no reason"
    assert rows | NO_ROW.keys() == public_kinds()


def test_every_row_says_something_of_every_call() -> None:
    for way, row in ROWS.items():
        assert sorted(row) == CALLS, way


def test_every_row_is_played() -> None:
    assert ROWS.keys() == LIVES.keys()
