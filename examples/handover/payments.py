"""The database that the services guard with the log's fencing token: SQLite.

Whoever writes says with which epoch. The database remembers the largest it has seen and refuses a
smaller one, in the transaction that would have the effect: so a service that was replaced and does
not know it yet changes nothing.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

_SCHEMA = """
CREATE TABLE IF NOT EXISTS guard (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), epoch INTEGER);
INSERT OR IGNORE INTO guard VALUES (1, 0);
CREATE TABLE IF NOT EXISTS payments (
    number INTEGER PRIMARY KEY, cents INTEGER, seq INTEGER UNIQUE, epoch INTEGER
);
"""


class Zombie(Exception):
    """A smaller epoch than the database has seen: somebody else is the writer by now."""


@dataclass(frozen=True)
class Payment:
    number: int
    cents: int
    seq: int  # of the order in the log
    epoch: int


class Payments:
    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, timeout=10, isolation_level=None)
        with self._db:
            self._db.executescript(_SCHEMA)

    def guard(self, epoch: int) -> None:
        """From here on, whoever had a smaller epoch is refused."""
        self._in_transaction(epoch, None)

    def pay(self, payment: Payment) -> bool:
        """False when it was paid before. Paid exactly once, whoever is told to do it how often."""
        return self._in_transaction(payment.epoch, payment)

    def _in_transaction(self, epoch: int, payment: Payment | None) -> bool:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            changed = self._db.execute(
                "UPDATE guard SET epoch = ? WHERE epoch <= ?", (epoch, epoch)
            ).rowcount
            if changed == 0:
                (newest,) = self._db.execute("SELECT epoch FROM guard").fetchone()
                raise Zombie(f"epoch {epoch} is refused: {newest} was here")
            paid = 0
            if payment is not None:
                paid = self._db.execute(
                    "INSERT OR IGNORE INTO payments VALUES (?, ?, ?, ?)",
                    (payment.number, payment.cents, payment.seq, payment.epoch),
                ).rowcount
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        return paid == 1

    def last_seq(self) -> int:
        """Of the log, the last order that was paid; -1 for none."""
        (seq,) = self._db.execute("SELECT coalesce(max(seq), -1) FROM payments").fetchone()
        return int(seq)

    def all(self) -> list[Payment]:
        rows = self._db.execute("SELECT number, cents, seq, epoch FROM payments ORDER BY seq")
        return [Payment(*row) for row in rows]

    def close(self) -> None:
        self._db.close()
