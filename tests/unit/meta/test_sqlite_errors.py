"""Result codes of SQLite and what they become."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from dlog.errors import (
    AuthError,
    Broken,
    ConfigError,
    Corrupt,
    DlogError,
    Outcome,
    Unavailable,
)
from dlog.meta import sqlite_errors
from dlog.meta.sqlite_errors import denied_or_away, lock_holder, locked_out, translated

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


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (errno.EACCES, AuthError),
        (errno.EPERM, AuthError),
        (errno.EROFS, AuthError),
        (errno.EEXIST, ConfigError),
        (errno.ENOTDIR, ConfigError),
        (errno.ENOSPC, Unavailable),
        (errno.EIO, Unavailable),
    ],
    ids=errno.errorcode.get,
)
@pytest.mark.parametrize("filename", [None, "/data/other"])
def test_each_error_of_a_directory_has_its_error(
    code: int, kind: type[DlogError], filename: str | None
) -> None:
    error = denied_or_away(OSError(code, os.strerror(code), filename), PATH)
    assert type(error) is kind
    assert error.path == (filename or str(PATH))
    assert error.path in error.message


LINE = "7: POSIX  ADVISORY  WRITE {pid} fe:00:{inode} {first} {last}"


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the kernel lists of locks, as this test says."""
    listed = tmp_path / "locks"
    real = open
    monkeypatch.setattr(
        sqlite_errors,
        "open",
        lambda path, *mode: real(listed if path == "/proc/locks" else path, *mode),
        raising=False,
    )
    return listed


@pytest.mark.parametrize(
    ("suffix", "first", "last", "holds"),
    [
        ("-shm", 120, 120, True),
        ("-shm", 122, 122, True),
        ("-shm", 121, 121, False),
        ("-shm", 119, 119, False),
        ("-shm", 123, 130, False),
        ("-shm", 100, 130, True),
        ("-shm", 0, "EOF", True),
        ("-shm", 123, "EOF", False),
        ("", 0x40000002, 0x40000002, True),
        ("", 0x40000001, 0x40000001, False),
        ("", 0x40000003, "EOF", False),
        ("", 120, 120, False),
    ],
)
def test_who_holds_a_lock_is_known_by_its_bytes(
    locks: Path, tmp_path: Path, suffix: str, first: int, last: int | str, holds: bool
) -> None:
    database = tmp_path / "meta.db"
    for each in ("", "-shm"):
        Path(f"{database}{each}").write_bytes(b"")
    inode = os.stat(f"{database}{suffix}").st_ino
    line = LINE.format(pid=4075, inode=inode, first=first, last=last)
    locks.write_text(line + "\n")
    assert lock_holder(database) == (4075 if holds else None)
    for other in (
        line.replace("WRITE", "READ"),
        line.replace("POSIX", "FLOCK"),
        line.replace(f":{inode} ", f":{inode}1 "),
        line.replace("4075", "0"),
        line.replace("7: ", "7: -> "),
        line + " more",
        "",
    ):
        locks.write_text(other + "\n")
        assert lock_holder(database) is None, other


def test_who_is_in_the_way_is_named_as_far_as_it_is_known(locks: Path, tmp_path: Path) -> None:
    database = tmp_path / "meta.db"
    database.write_bytes(b"")
    inode = os.stat(database).st_ino
    first = 0x40000002
    locks.write_text(LINE.format(pid=os.getpid(), inode=inode, first=first, last=first))
    error = locked_out(database, 12.4)
    assert f"waited 12 ms for a lock of {database}, held by process {os.getpid()}" in error.message
    assert "stopped" not in error.message
    assert (error.about["pid"], error.about["elapsed_ms"]) == (os.getpid(), 12.4)
    locks.unlink()
    assert "a process that cannot be found out here" in locked_out(database, 5).message
