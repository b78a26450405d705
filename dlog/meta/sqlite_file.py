"""The database file of the SQLite store: opening it, its format, its locks, its transactions.

It belongs to one thread. SQLite's own waiting is switched off: whoever waits here waits in
`_patiently`, which ends at the caller's deadline, at once when the caller has left, and at once
when the store closes. Nothing in this process may open `meta.db` by any other way: closing a plain
descriptor of it would drop every lock that SQLite holds on it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dlog import trace
from dlog.errors import FormatError, Unsupported
from dlog.meta import sqlite_errors

APPLICATION_ID = 0x646C6F67  # "dlog", so that `file meta.db` and we know whose it is
FORMAT = 1
WAL_BYTES_KEPT = 8 << 20  # of the write-ahead log's file, after a burst has been checkpointed

_SCHEMA = """
CREATE TABLE node (
    path TEXT NOT NULL PRIMARY KEY,
    parent TEXT NOT NULL,
    version INTEGER NOT NULL,
    session TEXT,
    value BLOB NOT NULL
);
CREATE UNIQUE INDEX node_of_parent ON node (parent, path, session);
CREATE INDEX node_of_session ON node (session) WHERE session IS NOT NULL;
CREATE TABLE counter (name TEXT NOT NULL PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counter VALUES ('version', 0), ('sequential', 0);
INSERT INTO node VALUES ('/', '', 0, NULL, x'');
"""

T = TypeVar("T")


class Turn(Protocol):
    """One caller's patience with one call."""

    def pause(self, attempt: int) -> None:
        """Before another try for a lock. Raises when there shall be none."""
        ...

    def enter(self) -> None:
        """From here on the write may happen. Raises when its caller has left before."""
        ...


class DatabaseFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        self._inode = (-1, -1)
        self._write_count = 0

    def open(self, turn: Turn) -> None:
        """Idempotent; makes the directory and the database if they are missing."""
        if self._connection is not None:
            return
        _make_directory(self.path.parent)
        try:
            connection = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        except sqlite3.Error as error:
            raise sqlite_errors.translated(error, self.path) from error
        self._connection = connection
        try:
            self._prepare(turn)
            found = os.stat(self.path)
        except sqlite3.Error as error:
            self.close()
            raise sqlite_errors.translated(error, self.path) from error
        except BaseException:
            self.close()
            raise
        self._inode = (found.st_dev, found.st_ino)

    def close(self) -> None:
        """Idempotent. The last one to close moves the write-ahead log into the database."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def query(self, turn: Turn, sql: str, parameters: tuple[object, ...] = ()) -> list[Any]:
        """All rows of one statement, on one snapshot that is not older than the call."""
        try:
            return self._patiently(turn, lambda: self._open.execute(sql, parameters).fetchall())
        except sqlite3.Error as error:
            raise sqlite_errors.translated(error, self.path) from error

    def write(self, turn: Turn, act: Callable[[sqlite3.Connection], T]) -> T:
        """`act` in one transaction; what it raises rolls everything back."""
        connection, committing = self._open, False
        try:
            trace.before("meta.begun")
            self._patiently(turn, lambda: connection.execute("BEGIN IMMEDIATE"))
            trace.after("meta.begun")
            self._check_unmoved()
            result = act(connection)
            turn.enter()
            committing = True
            trace.before("meta.committed")
            connection.execute("COMMIT")
            trace.after("meta.committed")
        except sqlite3.Error as error:
            raise sqlite_errors.translated(error, self.path, committing=committing) from error
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        self._write_count += 1
        return result

    def stamp(self, turn: Turn) -> tuple[int, int]:
        """Changes with every write to the database, ours or anybody's."""
        ((others,),) = self.query(turn, "PRAGMA data_version")
        return others, self._write_count

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "open() comes first"
        return self._connection

    def _patiently(self, turn: Turn, step: Callable[[], T]) -> T:
        attempt = 0
        while True:
            try:
                return step()
            except sqlite3.OperationalError as error:
                if not sqlite_errors.busy(error):
                    raise
            turn.pause(attempt)
            attempt += 1

    def _check_unmoved(self) -> None:
        # SQLite would go on writing to a deleted file, beside everybody who opened the new one.
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            raise sqlite_errors.moved(self.path) from None
        if (found.st_dev, found.st_ino) != self._inode:
            raise sqlite_errors.moved(self.path)

    def _prepare(self, turn: Turn) -> None:
        connection = self._open
        # Even this one reads the file, and meets whoever just turns it into a new database.
        self._patiently(turn, lambda: connection.execute("PRAGMA synchronous = FULL"))
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        if self._patiently(turn, self._is_new):
            self._patiently(turn, self._use_write_ahead_log)
            self._patiently(turn, lambda: connection.execute("BEGIN IMMEDIATE"))
            try:
                if self._is_new():  # else somebody was faster
                    _make_schema(connection)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        else:
            self._patiently(turn, self._use_write_ahead_log)

    def _is_new(self) -> bool:
        """Nothing in it yet; `FormatError` if what is in it is not for us."""
        # One statement, one snapshot: between two, somebody else may make the schema.
        tables, application_id, format_ = self._open.execute(
            "SELECT (SELECT count(*) FROM sqlite_schema), application_id, user_version "
            "FROM pragma_application_id, pragma_user_version"
        ).fetchone()
        if application_id == APPLICATION_ID and format_ == FORMAT:
            return False
        if application_id == APPLICATION_ID:
            raise FormatError(
                f"{self.path} has format {format_}; this version of dlog knows format {FORMAT}",
                path=str(self.path),
            )
        if application_id != 0 or format_ != 0 or tables != 0:
            raise FormatError(
                f"{self.path} is a database of another program (application id "
                f"{application_id:#x}, {tables} tables)",
                path=str(self.path),
            )
        return True

    def _use_write_ahead_log(self) -> None:
        (mode,) = self._open.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise Unsupported(
                f"the file system of {self.path} has no shared memory files, so SQLite stays in "
                f"mode {mode}; put the directory on a local disk",
                path=str(self.path),
            )


def _make_schema(connection: sqlite3.Connection) -> None:
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")


def _make_directory(directory: Path) -> None:
    """With its parents, durably: a directory is an entry in its parent, which is fsynced."""
    try:
        missing = []
        while not directory.is_dir():
            missing.append(directory)
            directory = directory.parent
        for step in reversed(missing):
            step.mkdir(exist_ok=True)
            fd = os.open(step.parent, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    except OSError as error:
        raise sqlite_errors.denied_or_away(error, directory) from error
