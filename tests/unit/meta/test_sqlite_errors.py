"""Result codes of SQLite and what they become."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from dlog.errors import AuthError, Broken, Corrupt, DlogError, Outcome, Unavailable
from dlog.meta.sqlite_errors import translated

PATH = Path("/data/meta.db")
NO, UNKNOWN = Outcome.NOT_HAPPENED, Outcome.UNKNOWN


@pytest.mark.parametrize(
    ("code", "committing", "kind", "outcome"),
    [
        (sqlite3.SQLITE_IOERR_WRITE, False, Unavailable, NO),
        (sqlite3.SQLITE_IOERR_FSYNC, True, Unavailable, UNKNOWN),
        (sqlite3.SQLITE_FULL, False, Unavailable, NO),
        (sqlite3.SQLITE_FULL, True, Unavailable, NO),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, False, Unavailable, NO),
        (sqlite3.SQLITE_READONLY_DIRECTORY, False, AuthError, NO),
        (sqlite3.SQLITE_CORRUPT_INDEX, False, Corrupt, NO),
        (sqlite3.SQLITE_NOTADB, False, Corrupt, NO),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, False, Broken, UNKNOWN),
        (None, False, Broken, UNKNOWN),
    ],
)
def test_each_code_has_its_error(
    code: int | None, committing: bool, kind: type[DlogError], outcome: Outcome
) -> None:
    raised = sqlite3.OperationalError("what sqlite says")
    if code is not None:
        raised.sqlite_errorcode = code
    error = translated(raised, PATH, committing=committing)
    assert type(error) is kind
    assert error.outcome is outcome
    assert error.path == str(PATH)
    assert str(PATH) in error.message
