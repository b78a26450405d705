"""What can be done with logs while something is down (E=3, W=3, A=2, four bookies), as one table.

DLOG_AVAILABILITY_TABLE=docs/AVAILABILITY.md python -m pytest integration/log/test_availability.py
writes the table of that page anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlog.errors import Timeout, Unavailable
from dlog.testing.children import Children
from integration.conftest import OwnCluster
from integration.log.availability import COLUMNS, FROZEN, KILLED, OPEN_TIMEOUT_MS, Row, Table
from tests.tidy.source import ROOT

pytestmark = pytest.mark.timeout(300)
PAGE = os.environ.get("DLOG_AVAILABILITY_TABLE")


def _all_ok(row: Row) -> None:
    failed = {column: cell.error for column, cell in row.cells.items() if not cell.is_ok}
    assert failed == {}, row.name


def _two_are_missing(row: Row, victims: set[str]) -> None:
    """What needs no third bookie goes on; the rest says who is missing and how many would do,
    within one time-out."""
    refused = {column: cell.error for column, cell in row.cells.items() if cell.error is not None}
    assert refused.keys() == {"create", "open", "rotate"}, refused
    for column, error in refused.items():
        assert isinstance(error, (Unavailable, Timeout)), column
        assert row.cells[column].took_s < OPEN_TIMEOUT_MS / 1000 + 1, column
        assert error.needed is not None, (column, error)
        assert error.needed >= 1, (column, error)
        assert error.missing, (column, error)
        named = [victim for victim in victims if victim in str(error)]
        assert named or "needs 1 more than the 2 that are writable" in str(error), (column, error)


async def test_the_availability_table(own_cluster: OwnCluster, tmp_path: Path) -> None:
    """DL-22, DL-36a to DL-36f: on stock ZooKeeper and bookies, and nothing else."""
    table = Table(own_cluster(bookies=4))
    first, second, third, fourth = table.cluster.bookies
    try:
        with Children(tmp_path, python_path=ROOT) as children:
            _all_ok(await table.row_of_bookies("nobody"))
            _all_ok(
                await table.row_of_a_dead_writer(
                    lambda *names: children.start(
                        "integration.log.writing", table.cluster.url, *names
                    )
                )
            )
        _all_ok(await table.row_of_bookies("one bookie killed", KILLED, [first]))
        _all_ok(await table.row_of_bookies("one bookie frozen", FROZEN, [second]))
        two = await table.row_of_bookies("two bookies killed", KILLED, [third, fourth])
        _two_are_missing(two, {third.bookie_id, fourth.bookie_id})
    finally:
        print(table.markdown())
        for row in table.rows:
            for column in COLUMNS:
                if column in row.cells and (error := row.cells[column].error) is not None:
                    print(row.name, column, error, error.missing, error.needed)
    if PAGE is not None:
        table.write(Path(PAGE))
