"""What stands beside us: a plain file (the limit of the disk), SQLite and LMDB (two good stores in
one process). All are asked for the same promise: durable when the call returns.

SQLite runs in WAL mode with synchronous=FULL, as one who wants that promise configures it; LMDB
with its defaults, which sync at each commit. Keys are numbers in order, the kindest case for both.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.common import MIB

BATCH_BYTES = 256 << 10  # of one transaction: what one entry of ours holds
LMDB_MAP_BYTES = 4 << 30
_KEY = struct.Struct(">Q")

_sync = getattr(os, "fdatasync", os.fsync)


class Peer(Protocol):
    """A store that takes values in order and gives them back."""

    def append(self, value: bytes) -> None: ...

    def append_batch(self, values: Sequence[bytes]) -> None: ...

    def values(self) -> Iterator[bytes]: ...

    def close(self) -> None: ...


class SqlitePeer:
    def __init__(self, directory: Path) -> None:
        self._connection = sqlite3.connect(directory / "peer.db", isolation_level=None)
        execute = self._connection.execute
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("CREATE TABLE IF NOT EXISTS message (seq INTEGER PRIMARY KEY, value BLOB)")

    def append(self, value: bytes) -> None:
        self._connection.execute("INSERT INTO message (value) VALUES (?)", (value,))

    def append_batch(self, values: Sequence[bytes]) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(
            "INSERT INTO message (value) VALUES (?)", ((value,) for value in values)
        )
        self._connection.execute("COMMIT")

    def values(self) -> Iterator[bytes]:
        for (value,) in self._connection.execute("SELECT value FROM message ORDER BY seq"):
            yield value

    def close(self) -> None:
        self._connection.close()


class LmdbPeer:
    def __init__(self, directory: Path) -> None:
        import lmdb

        self._env = lmdb.open(os.fspath(directory / "peer.lmdb"), map_size=LMDB_MAP_BYTES)
        self._next = 0

    def append(self, value: bytes) -> None:
        self.append_batch([value])

    def append_batch(self, values: Sequence[bytes]) -> None:
        first, self._next = self._next, self._next + len(values)
        items = zip(map(_KEY.pack, range(first, self._next)), values, strict=True)
        with self._env.begin(write=True) as transaction:
            transaction.cursor().putmulti(items, append=True)

    def values(self) -> Iterator[bytes]:
        with self._env.begin() as transaction:
            yield from transaction.cursor().iternext(keys=False)

    def close(self) -> None:
        self._env.close()


def peers() -> dict[str, Callable[[Path], Peer]]:
    """Those that can run here; who is missing is named by the command."""
    found: dict[str, Callable[[Path], Peer]] = {"sqlite": SqlitePeer}
    if has_lmdb():
        found["lmdb"] = LmdbPeer
    return found


def has_lmdb() -> bool:
    try:
        import lmdb  # noqa: F401
    except ImportError:
        return False
    return True


def batches_of(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    per_batch = max(1, BATCH_BYTES // len(values[0]))
    for at in range(0, len(values), per_batch):
        yield values[at : at + per_batch]


class BareFile:
    """write + fdatasync, and nothing else."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "bare"
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)

    def append(self, value: Any) -> None:
        os.write(self._fd, value)
        _sync(self._fd)

    def append_blocks(self, raw: memoryview, block_bytes: int = MIB) -> None:
        for at in range(0, len(raw), block_bytes):
            self.append(raw[at : at + block_bytes])

    def read_all(self, block_bytes: int = 4 * MIB) -> int:
        buffer = bytearray(block_bytes)
        done = 0
        while got := os.preadv(self._fd, [buffer], done):
            done += got
        return done

    def close(self) -> None:
        os.close(self._fd)
        self._path.unlink()
