"""The counts, in SQLite: any database with transactions would do."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SCHEMA = """
create table if not exists shards (log text primary key, token integer, next_seq integer);
create table if not exists words (log text, word text, times integer, primary key (log, word));
"""


class Line(NamedTuple):
    seq: int
    text: str


class Zombie(Exception):
    """Somebody with a larger token counts this shard by now."""


class Counts:
    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self._db.execute("pragma journal_mode=wal")
        self._db.executescript(SCHEMA)

    def begin(self, log: str, token: int) -> None:
        """From here on no smaller token is let in."""
        with self._transaction():
            self._let_in(log, token)

    def add(self, log: str, token: int, lines: Sequence[Line]) -> int:
        """Count what is not counted yet; how many lines that were."""
        with self._transaction():
            next_seq = self._let_in(log, token)
            new = [line for line in lines if line.seq >= next_seq]
            words = Counter(word for line in new for word in line.text.split())
            self._db.executemany(
                "insert into words values (?, ?, ?) "
                "on conflict (log, word) do update set times = times + excluded.times",
                [(log, word, times) for word, times in words.items()],
            )
            if new:
                at = new[-1].seq + 1
                self._db.execute("update shards set next_seq = ? where log = ?", (at, log))
        return len(new)

    def _let_in(self, log: str, token: int) -> int:
        self._db.execute("insert or ignore into shards values (?, 0, 0)", (log,))
        found = self._db.execute("select token, next_seq from shards where log = ?", (log,))
        largest, next_seq = found.fetchone()
        if token < largest:
            raise Zombie(f"token {token} of {log} is refused: {largest} was here")
        self._db.execute("update shards set token = ? where log = ?", (token, log))
        return int(next_seq)

    def is_free(self) -> bool:
        """Nobody is in the middle of a transaction."""
        self._db.execute("pragma busy_timeout = 100")
        try:
            with self._transaction():
                return True
        except sqlite3.OperationalError:
            return False
        finally:
            self._db.execute("pragma busy_timeout = 30000")

    def lines(self) -> int:
        (total,) = self._db.execute("select coalesce(sum(next_seq), 0) from shards").fetchone()
        return int(total)

    def next_seqs(self) -> dict[str, int]:
        """The first line that is not counted yet, of each log."""
        return dict(self._db.execute("select log, next_seq from shards").fetchall())

    def words(self) -> Counter[str]:
        found = self._db.execute("select word, sum(times) from words group by word")
        return Counter(dict(found.fetchall()))

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)

    def close(self) -> None:
        self._db.close()


class _Transaction:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("begin immediate")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._db.execute("commit" if error is None else "rollback")
