"""The table of handles is complete: a new kind of handle, or a new call of a store, needs a row."""

from __future__ import annotations

from tests.handles.faults import CALLS
from tests.handles.kinds import LIVES
from tests.handles.table import LATER, ROWS, kind_of, public_kinds


def test_every_kind_of_handle_has_a_row_or_waits_for_one() -> None:
    rows = {kind_of(way) for way in ROWS}
    assert not rows & LATER.keys(), "what has a row does not wait for one"
    assert rows | LATER.keys() == public_kinds()


def test_every_row_says_something_of_every_call() -> None:
    for way, row in ROWS.items():
        assert sorted(row) == CALLS, way


def test_every_row_is_played() -> None:
    assert ROWS.keys() == LIVES.keys()
