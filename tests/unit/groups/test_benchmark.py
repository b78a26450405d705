"""The rows of `python -m benchmarks.groups` run, with small sizes."""

from __future__ import annotations

import pytest

from benchmarks.groups import ROWS


@pytest.mark.timeout(120)
@pytest.mark.parametrize("row", ROWS)
def test_a_row_runs(row: str) -> None:
    told = ROWS[row](True)
    assert told["passed"], told
