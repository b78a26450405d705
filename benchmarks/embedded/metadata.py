"""What appending asks of the metadata store: `metadata`, which should be nothing.

10^6 messages of 100 B go into one segment. Every call of the metadata store is counted, from the
first append to the return of the last; and SQLite's write-ahead log must have the size it had.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dlog
from benchmarks.common import Finding, Setting, random_values
from dlog.meta.sqlite import DATABASE_NAME, SqliteMetaStore

READS = ("get", "children", "look", "sync", "wait_change")
WRITES = ("create", "put", "delete")


def metadata(setting: Setting) -> list[Finding]:
    values = random_values(setting.pick(1_000_000, 2_000), 100)
    with setting.scratch() as directory, counted() as calls:
        with dlog.open_writer("bench", url=f"file:{directory}") as log:
            wal = directory / f"{DATABASE_NAME}-wal"
            opening = calls.copy()
            calls.clear()
            before_bytes = wal.stat().st_size
            for value in values:
                log.submit(value)
            log.flush()
            after_bytes = wal.stat().st_size
            reads = sum(calls[name] for name in READS)
            writes = sum(calls[name] for name in WRITES)
    grown = after_bytes - before_bytes
    return [
        Finding(
            "metadata",
            f"{len(values):,} appends",
            f"{reads} reads, {writes} writes, WAL {grown:+d} bytes",
            "0 reads, 0 writes",
            reads == writes == grown == 0,
            beside=f"opening: {sum(opening.values())} calls",
            values={"reads": reads, "writes": writes, "wal_bytes": grown},
        )
    ]


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts calls of every SQLite metadata store made meanwhile."""
    calls: Counter[str] = Counter()
    kept = {name: getattr(SqliteMetaStore, name) for name in READS + WRITES}

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def count(*arguments: Any, **more: Any) -> Any:
            calls[name] += 1
            return call(*arguments, **more)

        return count

    for name, call in kept.items():
        setattr(SqliteMetaStore, name, counting(name, call))
    try:
        yield calls
    finally:
        for name, call in kept.items():
            setattr(SqliteMetaStore, name, call)
