"""The tree as rows: what each call of the contract means in SQL.

An ephemeral node whose session is dead counts as absent from the moment its owner died; its row
goes with the next write that meets it, and each store sweeps once, with its first write, what
others left. Versions count up per node; a deleted node pushes a floor up, from which new nodes
start, so that a path that is made again never repeats a version and an ordinary `put` still
touches one page only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from dlog.errors import AlreadyExists, ConfigError, Conflict, NotFound
from dlog.meta.nodes import sequential_path
from dlog.meta.sqlite_file import DatabaseFile, Turn
from dlog.meta.sqlite_sessions import SessionLocks
from dlog.meta.store import Created, Versioned, parent_of

T = TypeVar("T")


class Sight(NamedTuple):
    """What a watch compares: a node, the names below it, and whose deaths would change them."""

    version: int | None  # None: there is no such node
    children: tuple[str, ...]
    sessions: frozenset[str]


class Tree:
    """Raises typed errors, and OSError for what happens to lock files; both mean: not written."""

    def __init__(self, file: DatabaseFile, sessions: SessionLocks) -> None:
        self._file = file
        self._sessions = sessions
        self._swept = False

    def get(self, turn: Turn, path: str) -> Versioned:
        rows = self._file.query(
            turn, "SELECT value, version, session FROM node WHERE path = ?", (path,)
        )
        for value, version, session in rows:
            if self._alive(session):
                return Versioned(value, version)
        raise _not_found(path)

    def children(self, turn: Turn, path: str) -> list[str]:
        sight = self.look(turn, path)
        if sight.version is None:
            raise _not_found(path)
        return list(sight.children)

    def look(self, turn: Turn, path: str) -> Sight:
        rows = self._file.query(
            turn,
            "SELECT path, version, session FROM node WHERE path = ?1 "
            "UNION ALL SELECT path, NULL, session FROM node WHERE parent = ?1 ORDER BY path",
            (path,),
        )
        verdicts = {session: self._alive(session) for _, _, session in rows}
        version, children = None, []
        for found, found_version, session in rows:
            if not verdicts[session]:
                continue
            if found == path:
                version = found_version
            else:
                children.append(found.rsplit("/", 1)[1])
        alive = (session for session, is_alive in verdicts.items() if session and is_alive)
        return Sight(version, tuple(children), frozenset(alive))

    def create(
        self, turn: Turn, path: str, value: bytes, *, ephemeral: bool, sequential: bool
    ) -> Created:
        session = None
        if ephemeral:
            session = self._sessions.own_id
            self._sessions.hold()
        return self._write(
            turn, lambda writing: writing.create(path, value, session, sequential=sequential)
        )

    def put(self, turn: Turn, path: str, value: bytes, version: int) -> int:
        return self._write(turn, lambda writing: writing.put(path, value, version))

    def delete(self, turn: Turn, path: str, version: int) -> None:
        if path == "/":
            raise ConfigError("the root of the metadata tree cannot be deleted")
        self._write(turn, lambda writing: writing.delete(path, version))

    def _alive(self, session: str | None) -> bool:
        return session is None or self._sessions.alive(session)

    def _write(self, turn: Turn, act: Callable[[_Writing], T]) -> T:
        if not self._swept:
            self._judge_all(turn)
        writing = _Writing(self._sessions)
        result = self._file.write(turn, lambda connection: act(writing.begin(connection)))
        self._swept = True
        for session in writing.purged:
            self._sessions.forget(session)
        return result

    def _judge_all(self, turn: Turn) -> None:
        """Before the transaction: it shall hold no lock while we look at files."""
        rows = self._file.query(turn, "SELECT DISTINCT session FROM node WHERE session NOT NULL")
        for (session,) in rows:
            self._sessions.alive(session)
        self._sessions.judge_files()


class _Writing:
    """The steps of one write transaction."""

    def __init__(self, sessions: SessionLocks) -> None:
        self.purged: set[str] = set()
        self._sessions = sessions
        self._connection: sqlite3.Connection

    def begin(self, connection: sqlite3.Connection) -> _Writing:
        self._connection = connection
        for session in sorted(self._sessions.dead):
            self._purge(session)
        return self

    def create(self, path: str, value: bytes, session: str | None, *, sequential: bool) -> Created:
        if sequential:
            path = sequential_path(path, self._count_up("sequential"))
        if self._row(path) is not None:
            raise AlreadyExists(f"there is a node {path}", path=path)
        missing, parent = [], parent_of(path)
        while (row := self._row(parent)) is None:
            missing.append(parent)
            parent = parent_of(parent)
        if row.session is not None:
            raise Conflict(f"{parent} is ephemeral and can have no children", path=path)
        execute = self._connection.execute
        (version,) = execute("SELECT next FROM counter WHERE name = 'version'").fetchone()
        for step in reversed(missing):
            execute(_INSERT, (step, parent_of(step), version, None, b""))
        execute(_INSERT, (path, parent_of(path), version, session, value))
        return Created(path, version)

    def put(self, path: str, value: bytes, version: int) -> int:
        self._row_at(path, version)
        self._connection.execute(
            "UPDATE node SET value = ?, version = ? WHERE path = ?", (value, version + 1, path)
        )
        return version + 1

    def delete(self, path: str, version: int) -> None:
        self._row_at(path, version)
        if self._has_children(path):
            raise Conflict(f"{path} has children", path=path)
        self._raise_floor(version)
        self._connection.execute("DELETE FROM node WHERE path = ?", (path,))

    def _row(self, path: str) -> _Row | None:
        found = self._connection.execute(
            "SELECT version, session FROM node WHERE path = ?", (path,)
        ).fetchone()
        if found is None:
            return None
        row = _Row(*found)
        return row if self._keep(row.session) else None

    def _row_at(self, path: str, version: int) -> None:
        row = self._row(path)
        if row is None:
            raise _not_found(path)
        if row.version != version:
            raise Conflict(f"{path} is at version {row.version}, not {version}", path=path)

    def _has_children(self, path: str) -> bool:
        owners = self._connection.execute(
            "SELECT DISTINCT session FROM node WHERE parent = ?", (path,)
        ).fetchall()
        return any(self._keep(session) for (session,) in owners)

    def _keep(self, session: str | None) -> bool:
        """False for a dead owner's: its nodes are gone when this returns."""
        if session is None or self._sessions.alive(session):
            return True
        self._purge(session)
        return False

    def _purge(self, session: str) -> None:
        (last_version,) = self._connection.execute(
            "SELECT max(version) FROM node WHERE session = ?", (session,)
        ).fetchone()
        if last_version is not None:
            self._raise_floor(last_version)
            self._connection.execute("DELETE FROM node WHERE session = ?", (session,))
        self.purged.add(session)

    def _raise_floor(self, version: int) -> None:
        self._connection.execute(
            "UPDATE counter SET next = ? WHERE name = 'version' AND next <= ?",
            (version + 1, version),
        )

    def _count_up(self, name: str) -> int:
        (number,) = self._connection.execute(
            "SELECT next FROM counter WHERE name = ?", (name,)
        ).fetchone()
        self._connection.execute("UPDATE counter SET next = next + 1 WHERE name = ?", (name,))
        return int(number)


class _Row(NamedTuple):
    version: int
    session: str | None


_INSERT = "INSERT INTO node (path, parent, version, session, value) VALUES (?, ?, ?, ?, ?)"


def _not_found(path: str) -> NotFound:
    return NotFound(f"there is no node {path}", path=path)
